"""Accuracy as the question: ``compress --max-drop`` and ``frontier --accuracy`` as they are typed."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from hwbmpq.cli.main import main
from hwbmpq.errors import HwbmpqError
from hwbmpq.report import AccuracyProbe
from hwbmpq.training import RunSettings
from hwbmpq.training.probes import Prober
from hwbmpq.training.trainer import Trainer

FACTORY = """
import torch
from torch import nn

def make_net():
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 10))
    net.input_size = (3, 8, 8)
    return net
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network that knows the digits, as a Python file and its weights."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "net.py").write_text(FACTORY)
    command = f"compress --model file:{folder}/net.py:make_net --input 3x8x8 --target mpic --method fp32 --epochs 10 -q"
    assert main([*command.split(), "--run-dir", str(folder / "float")]) == 0
    import hwbmpq

    state = hwbmpq.training.RunDirectory(folder / "float").load_checkpoint()[0]["model"]
    names = nn.Sequential(
        nn.Flatten(), *(m for _ in range(3) for m in (nn.Linear(1, 1), nn.ReLU())), nn.Linear(1, 1)
    )
    torch.save({name: state[name] for name in names.state_dict()}, folder / "net.pt")
    return folder


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: Path
) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def typed(command: str, *words: str) -> tuple[int, str, str]:
        network = (
            f"--model file:{trained}/net.py:make_net --weights {trained}/net.pt --input 3x8x8 --target mpic"
        )
        try:
            code = main([command, *network.split(), "--bits", "2,4,8", *words])
        except SystemExit as error:
            code = int(error.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return typed


def search_of(folder: str) -> dict:  # type: ignore[type-arg]
    found = json.loads(Path(folder, "allocation.json").read_text())["accuracy_search"]
    assert isinstance(found, dict)
    return found


def test_a_larger_drop_costs_less_and_every_probe_is_kept(run: Run) -> None:
    searches = {}
    for drop in ("0.3%", "40%"):
        code, out, err = run(
            "compress", *"--epochs 0 --activation-bits same --max-drop".split(), drop, "--run-dir", drop
        )
        assert code == 0, err
        searches[drop] = found = search_of(drop)
        assert found["least"] == pytest.approx(found["in_float"] - float(drop[:-1]) / 100)
        assert all(probe["holds"] == (probe["value"] >= found["least"] - 1e-9) for probe in found["probes"])
        assert found["budget"] == min(p["costs"]["memory"] for p in found["probes"] if p["holds"])
        assert found["reached"] in [
            p["value"] for p in found["probes"] if p["costs"]["memory"] == found["budget"]
        ]
        assert found["is_met"]
        assert f"probe {len(found['probes'])}: memory" in err
        assert "Accuracy that was measured" in out
        assert "against float" in Path(drop, "report.html").read_text()
    assert searches["40%"]["budget"] < searches["0.3%"]["budget"]
    assert yaml.safe_load(Path("40%/config.yaml").read_text())["max_drop"] == pytest.approx(0.4)


def test_another_cost_and_a_budget_on_a_third(run: Run) -> None:
    words = ("--epochs", "0", "--min-accuracy", "60%", "--minimise", "latency", "--budget", "memory=6KiB")
    code, _, err = run("compress", *words, "--run-dir", "one")
    assert code == 0, err
    result = json.loads(Path("one/allocation.json").read_text())
    assert result["accuracy_search"]["cost"] == "latency"
    assert result["allocation"]["costs"]["latency"] <= result["allocation"]["budgets"]["latency"]
    assert result["allocation"]["budgets"]["memory"] == 6 * 8192
    assert all(probe["costs"]["memory"] <= 6 * 8192 for probe in result["accuracy_search"]["probes"])


def test_a_run_that_trains_tries_one_smaller_point(run: Run) -> None:
    code, _, err = run("compress", "--epochs", "2", "--max-drop", "3%", "--run-dir", "one")
    assert code == 0, err
    found = search_of("one")
    trained = [probe for probe in found["probes"] if probe["is_trained"]]
    assert 1 <= len(trained) <= 2
    assert trained[-1]["value"] == found["reached"]
    assert trained[-1]["costs"]["memory"] <= found["budget"]
    history = [json.loads(line) for line in Path("one/history.jsonl").read_text().splitlines()]
    assert history[-1]["validation_accuracy"] == found["reached"]


def test_a_search_that_was_cut_off_goes_on_with_the_probes_it_has(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--epochs 3 --activation-bits same --max-drop 0.3% --run-dir".split()
    assert run("compress", *words, "whole")[0] == 0
    calls: list[str] = []
    whole_probe, whole_step = Prober.probe, Trainer._after_step

    def probe(self: Prober, budget: float) -> AccuracyProbe:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append("calibrated")
        return whole_probe(self, budget)

    def after_step(self: Trainer) -> None:
        calls.append("step")
        whole_step(self)
        if calls.count("step") == 25:  # in the second epoch of the trained probe
            raise KeyboardInterrupt

    monkeypatch.setattr(Prober, "probe", probe)
    assert run("compress", *words, "cut")[0] == 130
    assert len(json.loads(Path("cut/probes.json").read_text())) == 2
    monkeypatch.setattr(Prober, "probe", whole_probe)
    monkeypatch.setattr(Trainer, "_after_step", after_step)
    assert main(["compress", "--resume", "cut", "--trust"]) == 130
    assert Path("cut/probe/checkpoint.pt").exists()
    monkeypatch.setattr(Trainer, "_after_step", whole_step)
    monkeypatch.setattr(Prober, "probe", lambda *_: pytest.fail("a probe was made again"))
    assert main(["compress", "--resume", "cut", "--trust"]) == 0
    capsys.readouterr()
    assert search_of("cut") == search_of("whole")
    assert not Path("cut/probe").exists()


def test_probes_that_somebody_broke_are_one_sentence(run: Run) -> None:
    assert run("compress", *"--epochs 2 --max-drop 3% --run-dir one".split())[0] == 0
    for checkpoint in Path("one").glob("checkpoint*"):
        checkpoint.unlink()
    Path("one/probes.json").write_text('[{"budget": "much"}]')
    assert main(["compress", "--resume", "one", "--trust"]) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--max-drop 1", "write 1% for 1 percent"),
        ("--max-drop lots", "such as 1%"),
        ("--max-drop 1% --method fp32", "keeps no budget"),
        ("--minimise latency", "give --max-drop 1% or --min-accuracy 91%"),
        ("--max-drop 1% --minimise beauty", "no cost named 'beauty'"),
        ("--min-accuracy 100%", "in float on"),
        ("--max-drop 0% --bits 2 --activation-bits same", "cannot be held without training"),
    ],
)
def test_demands_that_cannot_be_are_one_sentence(run: Run, words: str, message: str) -> None:
    code, _, err = run("compress", "--epochs", "0", "--run-dir", "one", *words.split())
    assert code == 2
    assert message in " ".join(err.split())
    assert not Path("one").exists()


def test_random_weights_have_no_accuracy_to_hold(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = "compress --model hwbmpq:resnet8 --target mpic --data fake --epochs 0 --max-drop 1% -q"
    assert main(command.split()) == 2
    assert "its weights are missing" in " ".join(capsys.readouterr().err.split())


def test_the_curve_of_a_device(run: Run) -> None:
    code, out, err = run("frontier", "--accuracy", "--samples", "3", "--json", "--plot", "curve.svg")
    assert code == 0, err
    curve = json.loads(out)["accuracy"]["mpic"]
    costs = [probe["costs"]["memory"] for probe in curve["probes"]]
    assert 2 <= len(costs) <= 4
    assert costs == sorted(set(costs))
    assert curve["in_float"] > 0.8
    assert curve["probes"][-1]["value"] > curve["in_float"] - 0.05  # 8 bits lose next to nothing
    assert curve["drops"] == [curve["in_float"] - probe["value"] for probe in curve["probes"]]
    assert "validation accuracy (%)" in Path("curve.svg").read_text()


@pytest.mark.parametrize(("typed", "expected"), [([], True), (["--no-per-channel"], False)])
def test_the_curve_has_a_scale_for_each_channel_unless_none_is_typed(
    run: Run, monkeypatch: pytest.MonkeyPatch, typed: list[str], expected: bool
) -> None:
    seen = []

    def curve(network: object, data: object, settings: RunSettings, **_: object) -> None:
        seen.append(settings.per_channel)
        raise HwbmpqError("enough")

    monkeypatch.setattr("hwbmpq.pipeline.accuracy_curve", curve)
    assert run("frontier", "--accuracy", "--samples", "2", "--no-plot", *typed)[0] == 2
    assert seen == [expected]


def test_the_curve_is_of_one_cost(run: Run) -> None:
    code, _, err = run("frontier", "--accuracy", "--cost", "memory", "--cost", "latency")
    assert code == 2
    assert "along one cost, not 2" in err
