"""What commands print: budgets that are exceeded, warnings, defaults in the help, costs beside the accuracy they belong to."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hwbmpq.allocate import explain
from hwbmpq.cli.main import main
from hwbmpq.search import planning

pytestmark = pytest.mark.usefixtures("own_folder")
Typed = Callable[..., tuple[str, str]]
NETWORK = ["--model", "hwbmpq:resnet8", "--target", "mpic"]
SMALL = [*NETWORK, "--data", "fake", "--train-images", "64", "--test-images", "32", "--batch-size", "16"]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    def run(*words: str, code: int = 0) -> tuple[str, str]:
        if "--help" in words:
            with pytest.raises(SystemExit):
                main(list(words))
        else:
            assert main(list(words)) == code
        printed = capsys.readouterr()
        return " ".join(printed.out.split()), " ".join(printed.err.split())

    return run


def test_a_run_over_its_budget_is_marked(typed: Typed) -> None:
    options = (
        "--method",
        "hpq",
        "--bits",
        "8",
        "--budget",
        "memory=24KiB",
        "--epochs",
        "1",
        "--run-dir",
        "one",
    )
    out, err = typed("compress", *SMALL, *options)
    assert "this plan, over budget" in out
    assert "the method hpq does not enforce budgets: memory may exceed its limit" in err
    assert "24.00 KiB exceeded" in typed("report", "one")[0]


def test_a_run_in_float_says_nothing_about_widths_and_counts_no_packed_weights(typed: Typed) -> None:
    out, err = typed("compress", *SMALL, "--method", "fp32", "--epochs", "1", "--run-dir", "one")
    assert "activation width" not in err
    assert "weights 0" not in out


def test_the_warning_of_random_weights_is_not_quiet(typed: Typed) -> None:
    _, err = typed("compress", *SMALL, "--epochs", "0", "--run-dir", "one", "-q")
    assert "the weights are random, and nothing is trained" in err


def test_a_new_profile_of_a_known_name_warns(typed: Typed) -> None:
    _, err = typed("targets", "new", "mpic")
    assert (
        "there is a profile mpic already: --target mpic may find that one, --target mpic.yaml finds yours"
        in err
    )
    assert "already" not in typed("targets", "new", "my_board")[1]


def test_explanations_are_by_the_solver_that_was_asked_for(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def spy(*args: object, solver: str = "auto", **options: object) -> object:
        asked.append(solver)
        return explain(*args, solver=solver, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(planning, "explain", spy)
    typed("plan", *NETWORK, "--sensitivity", "uniform", "--budget", "memory=80%", "--solver", "glpk")
    assert asked == ["glpk"]


def test_help_has_the_defaults_of_switches(typed: Typed) -> None:
    out, _ = typed("compress", "--help")
    for flag in ("--pretrained", "--nesterov", "--amp", "--baseline"):
        assert re.search(rf"{flag}, --no-{flag[2:]} [^()]*\(default: no\)", out), flag
    assert "seed for weights, data order and augmentation (default: 0)" in out
    assert "where data sets are (default: where the run's are)" in typed("evaluate", "--help")[0]


def test_a_run_that_was_stopped_after_a_decision_has_the_costs_of_the_widths_that_were_measured(
    typed: Typed,
) -> None:
    typed("compress", *SMALL, "--budget", "memory=30KiB", "--epochs", "3", "--run-dir", "one")
    lines = Path("one/history.jsonl").read_text().splitlines()
    Path("one/history.jsonl").write_text(lines[0] + "\n")  # as it was right after the first decision
    Path("one/allocation.json").unlink()
    first = json.loads(lines[0])
    assert first["decision"]["after"] != first["bits"]
    out, _ = typed("report", "one", "--json")
    report = json.loads(out)
    assert report["state"] == "epoch 1 of 3, before the widths that were decided after it"
    memory = next(one for one in report["headlines"] if one["name"] == "memory")
    assert not memory["is_met"]  # all layers at their widest, as in the epoch whose accuracy stands beside it
