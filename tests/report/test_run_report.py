"""Reports as values: what goes in comes out again, and what is missing is said."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hwbmpq
from hwbmpq.cli.main import main
from hwbmpq.errors import HwbmpqError
from hwbmpq.report import Plan, RunFacts, RunReport, report_on_run

MakeReport = Callable[..., RunReport]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small real run."""
    folder = tmp_path_factory.mktemp("report") / "run"
    words = "--model hwbmpq:resnet8 --target mpic --budget memory=24KiB --data fake --train-images 48 --test-images 16"
    assert main(["compress", *words.split(), "--epochs", "3", "-q", "--run-dir", str(folder)]) == 0
    return folder


def test_compress_writes_the_page_by_itself(run: Path) -> None:
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "hwbmpq:resnet8 at 3x32x32" in page
    assert not list(run.glob("*.unfinished"))


def test_the_report_says_what_the_run_said(run: Path) -> None:
    report = report_on_run(run)
    result = json.loads((run / "allocation.json").read_text())
    history = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    found = {one.name: one for one in report.headlines}
    assert found["memory"].value == result["allocation"]["costs"]["memory"]
    assert found["memory"].budget == 24 * 1024 * 8
    assert found["memory"].is_met
    assert found["test accuracy"].value == pytest.approx(100 * result["test_accuracy"])
    assert found["file on disk"].value == 8 * (run / "model.safetensors").stat().st_size
    assert {epoch.part for epoch in report.epochs} == {"validation"}
    assert [epoch.value for epoch in report.epochs] == [line["validation_accuracy"] for line in history]
    assert not any("test_accuracy" in line for line in history)
    assert report.state == "finished"
    moved = [move for line in history if line["decision"] for move in line["decision"]["moves"]]
    assert [move.layer for move in report.moves] == [move["layer"] for move in moved]
    assert all(move.why for move in report.moves)
    assert report.facts.command[0] == "hwbmpq"
    assert report.facts.settings["epochs"] == 3
    assert report.facts.versions["hwbmpq"] == hwbmpq.__version__
    assert report.facts.figures
    assert all(
        use.sources or use.is_doubtful for use in report.facts.figures if use.path.startswith("compute")
    )


def test_the_network_in_it_has_every_layer_and_joins_residuals(run: Path) -> None:
    facts = report_on_run(run).facts
    drawn = [node.layer for node in facts.nodes if node.layer]
    assert drawn == [layer.name for layer in facts.layers]
    joins = [node.name for node in facts.nodes if node.kind == "add"]
    assert len(joins) == 3
    assert all(sum(end == join for _, end in facts.edges) == 2 for join in joins)


def test_the_trade_off_starts_and_ends_at_the_uniform_widths_and_climbs(run: Path) -> None:
    trade_off = report_on_run(run).trade_off
    assert trade_off is not None
    shares = [point.share for point in trade_off.points]
    totals = [point.costs["memory"] for point in trade_off.points]
    assert (shares[0], shares[-1]) == (0.0, pytest.approx(1.0, rel=1e-12))
    assert shares == sorted(shares)
    assert totals == sorted(totals)
    within = [point.share for point in trade_off.points if point.costs["memory"] <= trade_off.chosen.cost]
    assert trade_off.chosen.share == pytest.approx(max(within))
    by_name = {control.name: control for control in trade_off.controls}
    assert {"all W2A8", "all W4A8", "greedy", "random 1", "random 5"} <= by_name.keys()
    budget = 24 * 1024 * 8
    for name, control in by_name.items():
        assert control.fits == (control.cost <= budget)
        if not name.startswith("all"):
            assert control.cost <= budget
            assert control.share <= trade_off.chosen.share + 1e-9


def test_everything_survives_json(run: Path, made_up_report: MakeReport) -> None:
    for report in (report_on_run(run), made_up_report()):
        content = json.loads(json.dumps(report.to_dict()))
        assert RunFacts.from_dict(content["facts"]).to_dict() == report.facts.to_dict()
        assert report.plan is not None
        assert Plan.from_dict(content["plan"]).to_dict() == report.plan.to_dict()


def test_a_run_that_goes_on_is_shown_as_far_as_it_is(run: Path, tmp_path: Path) -> None:
    for name in ("config.yaml", "facts.json", "history.jsonl"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    report = report_on_run(tmp_path)
    assert report.state == "epoch 3 of 3"
    assert report.plan is None
    assert len(report.epochs) == 3
    costs = {one.name: one for one in report.headlines}
    whole = {one.name: one for one in report_on_run(run).headlines}
    for name in ("memory", "latency", "energy"):
        assert costs[name] == whole[name]
    (tmp_path / "history.jsonl").unlink()
    assert report_on_run(tmp_path).state == "epoch 0 of 3"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "facts.json").unlink(), "an earlier version of hwbmpq wrote it"),
        (lambda folder: (folder / "facts.json").write_text("{"), r"facts\.json: is not valid JSON"),
        (
            lambda folder: (folder / "facts.json").write_text("{}"),
            "these are not the facts of a run: schema None",
        ),
        (lambda folder: (folder / "facts.json").write_text("[]"), "not the facts of a run: schema None"),
        (lambda folder: (folder / "history.jsonl").write_text("x"), r"history\.jsonl: is not valid JSON"),
        (lambda folder: (folder / "history.jsonl").write_text("{}"), "do not belong together"),
        (lambda folder: (folder / "allocation.json").write_text("{"), r"allocation\.json: is not valid JSON"),
        (lambda folder: (folder / "allocation.json").write_text("{}"), "do not belong together"),
    ],
)
def test_damage_is_named(damage: Callable[[Path], object], message: str, run: Path, tmp_path: Path) -> None:
    for name in ("config.yaml", "facts.json", "history.jsonl", "allocation.json"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    damage(tmp_path)
    with pytest.raises(HwbmpqError, match=message):
        report_on_run(tmp_path)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HwbmpqError, match="does not exist"):
        report_on_run(tmp_path / "nothing")
    with pytest.raises(HwbmpqError, match="is not a run of hwbmpq"):
        report_on_run(tmp_path)


def test_reading_a_run_needs_no_torch(run: Path) -> None:
    script = "import sys, hwbmpq.report; hwbmpq.report.report_on_run(sys.argv[1]); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script, str(run)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# On the command line.


def test_the_command_finds_the_page_in_a_process_of_its_own(run: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hwbmpq", "report", str(run), "--html", str(tmp_path / "page.html")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").is_file()


def typed(capsys: pytest.CaptureFixture[str], *words: Any, code: int = 0) -> str:
    found = main(["report", *map(str, words)])
    printed = capsys.readouterr()
    assert found == code, printed.err
    return printed.out + printed.err


def test_report_as_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["state"] == "finished"
    assert content["trade_off"]["cost"] == "memory"
    assert main(["report", str(run), str(run), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


def test_report_as_a_page(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "wrote" in typed(capsys, run, "--html", tmp_path / "one.html")
    assert "wrote" in typed(capsys, run, run, "--html", tmp_path / "two.html")
    assert "2 runs side by side" in (tmp_path / "two.html").read_text(encoding="utf-8")
    said = typed(capsys, run, "--html", tmp_path / "missing" / "one.html", code=2)
    assert "cannot be written" in said
    facts = (run / "facts.json").read_bytes()
    for name in (run / "facts.json", "-", "/dev/stdout"):
        assert "end with .html" in typed(capsys, run, "--html", name, code=2)
    assert (run / "facts.json").read_bytes() == facts


def test_a_run_in_float_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "--model hwbmpq:resnet8 --target mpic --method fp32 --data fake --train-images 32 --test-images 16"
    )
    assert main(["compress", *words.split(), "--epochs", "2", "-q", "--run-dir", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    said = typed(capsys, tmp_path / "run")
    assert "nothing is quantized: the run is in float" in said
    assert "parameters are quantized" not in said
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "the run is in float" in page
    assert "How the widths moved" not in page


def test_several_runs_say_what_they_are(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = " ".join(typed(capsys, run, run).split())
    assert said.count("hwbmpq:resnet8 at 3x32x32 on mpic, finished") == 2


def test_a_plan_as_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "plan.html"
    words = "--model hwbmpq:resnet8 --target mpic --budget memory=24KiB --sensitivity uniform --brief --html"
    assert main(["plan", *words.split(), str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "planned" in text
    assert "What memory buys" in text
    assert "Learning curves" not in text
