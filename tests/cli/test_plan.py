"""``hwbmpq plan`` as a person types it."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hwbmpq.cli.main import main
from hwbmpq.costs import parse_budget
from hwbmpq.units import budget_text

pytestmark = pytest.mark.usefixtures("own_folder")

NETWORK = ("--model", "hwbmpq:resnet8", "--target", "mpic")


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run_plan(*arguments: str, code: int = 0) -> str:
        assert main(["plan", *NETWORK, "--sensitivity", "uniform", *arguments]) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    return run_plan


def test_report_shows_layers_costs_budgets_and_alternatives(plan: Callable[..., str]) -> None:
    text = plan("--budget", "memory=12x", "latency=13ms")
    assert "layer3.0.conv2" in text
    assert "runner-up" in text
    assert "24.67 KiB" in text  # (74,800 weights × 4 bytes + 3,936 bytes of norms and biases) / 12
    assert "all W4A4, over budget" in text
    assert "proven by exact search" in text
    assert "float" in text


@pytest.mark.parametrize("columns", ["60", "80", "160"])
def test_no_line_is_wider_than_the_terminal(
    plan: Callable[..., str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    text = plan("--budget", "memory=12x", "latency=13ms", "energy=80%")
    assert max(map(len, text.splitlines())) <= int(columns)


def test_json_holds_the_whole_plan(plan: Callable[..., str]) -> None:
    content = json.loads(plan("--budget", "memory=12x", "--json"))
    assert content["allocation"]["optimal"] is True
    assert content["costs"]["memory"]["total"] <= content["costs"]["memory"]["budget"]
    assert content["explanation"]["prices"][1]["increase"] == 8 * 10 * 1024


def test_brief_leaves_the_explanation_out(plan: Callable[..., str]) -> None:
    assert "runner-up" not in plan("--budget", "memory=12x", "--brief")


def test_pasting_the_corrected_budgets_works(plan: Callable[..., str]) -> None:
    error = plan("--budget", "memory=16KiB", "latency=13ms", "energy=1uJ", code=2)
    assert "22.98 KiB" in error
    assert "conv1, linear" in " ".join(error.split())
    pasted = error.rpartition("--budget ")[2].split()
    assert [text.partition("=")[0] for text in pasted] == ["memory", "latency", "energy"]
    assert "latency=13ms" in pasted  # said as it was
    assert "proven by exact search" in plan("--budget", *pasted)


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ("memory", "write COST=AMOUNT"),
        ("=3", "write COST=AMOUNT"),
        ("memory=", "write COST=AMOUNT"),
        ("memory=12 KB", "KB"),
        ("memory=-3KiB", "greater than zero"),
        ("latency=12x", "only a memory"),
        ("bops=130%", "more than every layer at its widest"),
        ("memroy=3KiB", "did you mean memory"),
    ],
)
def test_a_wrong_budget_is_one_sentence(plan: Callable[..., str], budget: str, message: str) -> None:
    error = plan("--budget", budget, code=2)
    assert message in error
    assert "Traceback" not in error


def test_two_budgets_on_one_cost_are_refused(plan: Callable[..., str]) -> None:
    assert "two budgets on memory" in plan("--budget", "memory=12x", "memory=10x", code=2)


def test_scores_are_kept_and_read_again(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", *NETWORK, "--budget", "memory=12x", "--json"]
    assert main([*arguments, "--sensitivity", "weight-error", "--save-sensitivity", "scores.json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main([*arguments, "--sensitivity", "scores.json"]) == 0
    second = json.loads(capsys.readouterr().out)
    assert first["allocation"]["bits"] == second["allocation"]["bits"]
    assert any("random" in remark for remark in first["remarks"])


def test_calibration_on_embedded_digits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *NETWORK, "--budget", "memory=12x", "--images", "16", "--brief"]) == 0
    assert "calibrated on 16 images of digits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "scores.json"),
        ('{"conv1": "much"}', "conv1"),
        ('{"conv1": 1.0}', "no sensitivity for 7 of 8 layers"),
    ],
    ids=["a list", "no number", "other layers"],
)
def test_a_wrong_file_of_scores_is_one_sentence(
    capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    Path("scores.json").write_text(content)
    assert main(["plan", *NETWORK, "--budget", "memory=12x", "--sensitivity", "scores.json"]) == 2
    assert message in capsys.readouterr().err


def test_an_unknown_method_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *NETWORK, "--sensitivity", "magic"]) == 2
    assert "enbg" in capsys.readouterr().err


def test_an_objective_without_its_errors_says_what_to_measure(plan: Callable[..., str]) -> None:
    assert "--sensitivity enbg, divergence" in plan("--objective", "error", code=2)


@pytest.mark.parametrize("value", [1.0, 66.2959, 999.99951, 8192 * 1.00001, 3.5e6, 1e11])
@pytest.mark.parametrize(
    ("cost", "unit"), [("memory", "bit"), ("latency", "ms"), ("energy", "uJ"), ("bops", "bit-op")]
)
def test_a_suggested_budget_is_read_back_as_no_less_and_hardly_more(
    cost: str, unit: str, value: float
) -> None:
    amount = parse_budget(cost, budget_text(value, unit)).amount
    assert amount is not None
    assert value <= amount <= value * 1.01 + 1


def widths(text: str) -> dict[str, str]:
    return {layer["name"]: layer["precision"] for layer in json.loads(text)["layers"]}


def test_layers_are_pinned_and_kept_in_float_by_patterns(plan: Callable[..., str]) -> None:
    options = (
        "--budget",
        "memory=95%",
        "--pin",
        "layer1.*=8",
        "linear=W4A8",
        "--json",
        "--target",
        "generic",
    )
    found = widths(plan(*options, "--pin", "conv1=8", "--keep-float", "layer3.0.conv1"))
    assert found["layer1.0.conv1"][:2] == found["layer1.0.conv2"][:2] == found["conv1"][:2] == "W8"
    assert (found["linear"], found["layer3.0.conv1"]) == ("W4A8", "W32A32")


@pytest.mark.parametrize("sensitivity", ["enbg", "weight-error", "divergence", "hessian-trace"])
@pytest.mark.parametrize("objective", ["linear", "error"])
def test_sensitivities_are_measured_beside_layers_in_float(
    plan: Callable[..., str], sensitivity: str, objective: str
) -> None:
    if (sensitivity, objective) == ("hessian-trace", "error"):
        objective = "hawq"
    options = ("--sensitivity", sensitivity, "--objective", objective, "--images", "4", "--target", "generic")
    text = plan("--budget", "memory=99%", "--keep-float", "layer3.0.conv1", "--json", "--brief", *options)
    assert widths(text)["layer3.0.conv1"] == "W32A32"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--pin", "layer1"], "--pin 'layer1': write PATTERN=WIDTH"),
        (["--pin", "layer1.*=8", "layer1.*=4"], "is pinned to 8 already"),
        (["--pin", "layr1.0.conv1=8"], "did you mean layer1.0.conv1"),
        (["--pin", "layer1.*=wide"], "neither a weight width nor a pair"),
        (["--keep-float", "gate"], "no layer named 'gate'"),
        (["--pin", "layer1.*=16"], "pin layer1.*=16: layer 'layer1.0.conv1': profile 'mpic' does not run"),
    ],
)
def test_pins_that_are_wrong(plan: Callable[..., str], options: list[str], told: str) -> None:
    assert told in plan(*options, code=2)


def test_no_width_is_named_without_its_activations(plan: Callable[..., str]) -> None:
    assert not re.search(r"\bW\d+\b", plan("--budget", "memory=12x"))


def test_widths_that_the_device_promotes_say_what_they_cost_and_what_to_take(
    plan: Callable[..., str],
) -> None:
    text = " ".join(plan("--budget", "memory=80%", "--bits", "3,5", "--brief").split())
    assert (
        "W3A8 is stored and runs as W4A8 on mpic: it costs as much and rounds more; use 4 bits instead of 3"
        in text
    )
    assert "W5A8 is stored and runs as W8A8 on mpic" in text
    assert "runs as" not in plan("--budget", "memory=80%", "--bits", "4,8", "--brief")


def test_a_network_that_the_embedded_images_do_not_fit_is_planned_by_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(
        "from torch import nn\n"
        "def make():\n"
        "    return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))\n"
    )
    arguments = ["plan", "--model", "file:net.py:make", "--input", "49x10", "--target", "mpic"]
    assert main([*arguments, "--json"]) == 0
    out, _ = capsys.readouterr()
    found = json.loads(out)
    assert found["sensitivity"]["method"] == "weight_error"
    assert any("sensitivities are those of the weights alone" in remark for remark in found["remarks"])
    assert main([*arguments, "--sensitivity", "enbg"]) == 2, "what was asked for is not replaced"
    assert "do not fit a network that takes 49x10" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "memory: one scale per layer is counted; --per-channel counts one per output channel"),
        (
            ["--per-channel"],
            "memory: one scale per output channel is counted; --no-per-channel counts one per layer",
        ),
    ],
    ids=["layer", "channel"],
)
def test_a_budget_on_memory_says_which_scales_it_counts(
    plan: Callable[..., str], options: list[str], told: str
) -> None:
    assert told in " ".join(plan("--budget", "memory=10x", "--brief", *options).split())


def test_other_budgets_say_nothing_of_scales(plan: Callable[..., str]) -> None:
    assert "one scale per" not in plan("--budget", "latency=90%", "--brief")
