"""``hwbmpq targets measure``, ``import`` and ``validate``."""

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hwbmpq.cli.commands import targets_measure
from hwbmpq.cli.main import main
from hwbmpq.measure import format_duration, kit_runner

pytestmark = pytest.mark.usefixtures("own_folder")
Run = Callable[..., str]
NETWORK = """
import torch
def make_net():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3)
    )
"""
MODEL = ("--model", "file:net.py:make_net", "--input", "1x12x12")


@pytest.fixture(autouse=True)
def _network(own_folder: None) -> None:
    Path("net.py").write_text(NETWORK)


@pytest.fixture
def measured(run: Run) -> str:
    return run("measure", "acme", *MODEL, "--rounds", "3")


def test_a_measurement_becomes_a_profile_that_works_by_name(
    measured: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    (table,) = Path("mine").glob("acme_layers-*.json")
    said = rf"acme.yaml with its table {table.name}: (9|12) kernels and 52 operations between layers timed"
    assert re.search(said, measured)
    assert "fewer bits buy size, not time" in measured
    assert "hwbmpq targets validate acme --model" in measured
    assert "ok acme: 8 width pairs" not in run("check", "acme")  # no linear layer: no weight-only pairs
    budget = ["--bits", "4,8,16", "--budget", "latency=100%", "--sensitivity", "uniform", "--brief"]
    assert main(["plan", *MODEL, "--target", "acme", *budget]) == 0
    assert "of float's time" in capsys.readouterr().out


def test_the_estimate_is_said_before_it_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "measure", "acme", *MODEL, "--quick", "--widths", "W8A8 W32A32", "--json"]) == 0
    printed = capsys.readouterr()
    assert "6 kernels and 52 operations between layers, 5 rounds: about 5 s" in printed.err
    content = json.loads(printed.out)
    assert content["measurement"]["widths"] == ["W8A8", "W32A32"]
    assert content["findings"]


def test_an_existing_profile_is_refused_before_anything_slow(
    measured: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kit_runner, "measure", None)
    assert "exists" in run("measure", "acme", *MODEL, code=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("measure", "../acme"), "not a valid name for a profile"),
        (("measure", "acme", "--widths", "W8A32", *MODEL), "no layer of these networks can run at W8A32"),
        (("measure", "acme", "--widths", "8", *MODEL), "not a pair of widths"),
        (("measure", "acme", "--kit", "kit.tgz", *MODEL), "a kit is a zip file"),
        (("measure", "acme", "--threads", "9999", *MODEL), "9999 threads: this machine has "),
        (("import", "acme", "nowhere.json"), "error: nowhere.json: no such file"),
        (("import", "acme", "net.py"), "is not JSON"),
        (("validate", "mpic", *MODEL), "was not written by"),
        (("validate", "nothing", *MODEL), "no hardware profile named"),
    ],
)
def test_mistakes_are_explained(arguments: tuple[str, ...], message: str, run: Run) -> None:
    assert message in run(*arguments, code=2)


@pytest.mark.parametrize("rounds", ["0", "2", "many", "10001"])
def test_too_few_or_too_many_rounds_are_refused(rounds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "measure", "acme", "--rounds", rounds]) == 2
    assert "--rounds" in capsys.readouterr().err


def test_the_bounds_of_rounds_are_those_of_results() -> None:
    assert targets_measure.FEWEST_ROUNDS == kit_runner.FEWEST_ROUNDS
    assert targets_measure.MOST_ROUNDS == kit_runner.MOST_ROUNDS


def test_an_interruption_writes_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = kit_runner.measure

    def interrupted(folder: Path, **options: object) -> object:
        def stop(done: int, total: int) -> None:
            if done > total * 0.8:
                raise KeyboardInterrupt

        return real(folder, **{**options, "on_progress": stop})  # type: ignore[arg-type]

    monkeypatch.setattr(kit_runner, "measure", interrupted)
    said = run("measure", "acme", *MODEL, "--rounds", "3", code=130)
    assert "stopped: not all kernels have all their rounds; nothing was written" in said
    assert not Path("mine").exists()


@pytest.fixture
def results(run: Run) -> Path:
    """What a kit brings back."""
    said = run("measure", "acme", *MODEL, "--kit", "kit.zip")
    assert "hwbmpq targets import acme results.json" in said
    with zipfile.ZipFile("kit.zip") as kit:
        kit.extractall()
    content = kit_runner.measure(Path("kit"), rounds=3, threads=1)
    Path("results.json").write_text(json.dumps(content))
    return Path("results.json")


def test_a_kit_comes_back_as_a_profile(results: Path, run: Run) -> None:
    assert "wrote" in run("import", "acme", str(results), "--output", "profiles")
    names = sorted(path.name for path in Path("profiles").iterdir())
    assert names[0] == "acme.yaml"
    assert [name[:12] for name in names[1:]] == ["acme_layers-"]
    assert "ok profiles/acme.yaml" in run("check", "profiles/acme.yaml")
    assert "--overwrite" in run("import", "acme", str(results), "--output", "profiles", code=2)
    run("import", "acme", str(results), "--output", "profiles", "--overwrite")


def test_damaged_results_write_nothing(results: Path, run: Run) -> None:
    results.write_text(results.read_text().replace('"threads": 1', '"threads": 2'))
    said = run("import", "acme", str(results), "--output", "profiles", code=2)
    assert "checksum differs" in said
    assert not Path("profiles").exists()


def test_results_of_an_interrupted_run_need_a_word(results: Path, run: Run) -> None:
    content = json.loads(results.read_text())
    last = content["manifest"]["kernels"][-1]["id"]
    del content["times"][last]
    content["is_complete"] = False
    content["sha256"] = kit_runner.digest(content)
    results.write_text(json.dumps(content))
    assert "--partial" in run("import", "acme", str(results), code=2)
    said = run("import", "acme", str(results), "--partial")
    assert "wrote" in said
    assert f"1 of {len(content['manifest']['kernels'])} kernels are missing" in said


def test_the_kit_itself_is_no_results(results: Path, run: Run) -> None:
    assert "this is the kit itself" in run("import", "acme", "kit.zip", code=2)


def test_predictions_are_compared_with_whole_networks(measured: str, run: Run) -> None:
    said = json.loads(run("validate", "acme", *MODEL, "--bits", "W8A8,W32A32", "--rounds", "3", "--json"))
    assert [item["widths"] for item in said["comparisons"]] == ["W8A8", "W32A32"]
    assert all(item["measured_layers"] == item["layers"] == 3 for item in said["comparisons"])
    assert all(
        item["ratio"] == pytest.approx(item["predicted_ms"] / item["measured_ms"])
        for item in said["comparisons"]
    )
    assert said["mean_absolute_error"] >= 0
    table = run("validate", "acme", *MODEL, "--bits", "W8A8", "--rounds", "3")
    assert "mean absolute error" in table
    assert "3/3" in table


@pytest.mark.parametrize(("seconds", "text"), [(1, "about 5 s"), (12, "about 15 s"), (61, "about 2 min")])
def test_times_are_said_roundly(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
