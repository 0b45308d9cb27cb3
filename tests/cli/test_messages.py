"""What the command line answers to what is mistyped, out of range or impossible; every hint is tried."""

import io
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from hwbmpq.cli.main import main
from hwbmpq.cli.render.tables import print_remarks, print_wrapped

pytestmark = pytest.mark.usefixtures("own_folder")
Typed = Callable[..., tuple[int, str]]
NETWORK = ["--model", "hwbmpq:resnet8", "--target", "mpic"]
SMALL = [
    *NETWORK,
    "--data",
    "fake",
    "--train-images",
    "64",
    "--test-images",
    "32",
    "--batch-size",
    "16",
    "-q",
]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    """A command's exit code and what it said on stderr."""

    def run(*words: str) -> tuple[int, str]:
        code = main(list(words))
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["plan", "--modle", "x"], "there is no flag --modle: did you mean --model?"),
        (["plan", *NETWORK, "--buget=memory=12x"], "there is no flag --buget: did you mean --budget?"),
        (["targets", "show", "mpic", "--breif"], "there is no flag --breif: did you mean --brief?"),
        (["plann"], "no command named 'plann': did you mean plan?"),
        (["targets", "shwo"], "no action named 'shwo': did you mean show?"),
        (["compress", "--augment", "crp"], "--augment 'crp': did you mean crop?"),
        (["compress", "--lr", "inf"], "--lr 'inf': give a number above 0"),
        (["compress", "--epochs", "many"], "--epochs 'many': give a whole number at least 0"),
    ],
)
def test_the_nearest_is_offered_for_what_is_mistyped(typed: Typed, words: list[str], told: str) -> None:
    code, said = typed(*words)
    assert code == 2
    assert told in said
    assert "try: " in said


@pytest.mark.parametrize(
    ("flag", "value", "told", "hint"),
    [
        ("--epochs", "-1", "must be at least 0 and at most 1,000,000", "--epochs 0"),
        ("--lr", "0", "must be above 0", "--lr 0.1"),
        ("--momentum", "2", "must be at least 0 and below 1", "--momentum 0.9"),
        ("--lr-decay", "1.5", "must be above 0 and at most 1", "--lr-decay 0.1"),
        ("--workers", "-2", "must be at least 0 and at most 256", "--workers 0"),
    ],
)
def test_a_number_out_of_range_names_the_flag(
    typed: Typed, flag: str, value: str, told: str, hint: str
) -> None:
    code, said = typed("compress", *NETWORK, flag, value)
    assert code == 2
    assert said == f"error: {flag} {value}: {told}\ntry: {hint}\n"


def test_a_number_out_of_range_in_a_file(typed: Typed) -> None:
    Path("run.yaml").write_text("model: hwbmpq:resnet8\ntarget: mpic\nmomentum: 2\n")
    assert "momentum: must be below 1 (given: 2" in typed("compress", "--config", "run.yaml")[1]


def settings_of(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(Path(folder, "config.yaml").read_text())
    return found


def hinted(said: str) -> str:
    return said.partition("try: ")[2].strip()


@pytest.mark.parametrize(
    ("budget", "hint"), [("size=24KiB", "--budget memory=24KiB"), ("bits=4", "--budget memory=4b/weight ")]
)
def test_a_budget_on_what_is_not_a_cost_gets_one_that_works(typed: Typed, budget: str, hint: str) -> None:
    code, said = typed("plan", *NETWORK, "--sensitivity", "uniform", "--brief", "--budget", budget)
    assert code == 2
    assert hinted(said).startswith(hint)
    words = hint.split()
    assert typed("plan", *NETWORK, "--sensitivity", "uniform", "--brief", *words)[0] == 0


def test_one_epoch_is_answered_with_what_works(typed: Typed) -> None:
    code, said = typed("compress", *SMALL, "--epochs", "1")
    assert code == 2
    assert hinted(said).startswith("train more epochs, at least 2 (--epochs 2;")
    assert "--epochs 0" in said
    assert typed("compress", *SMALL, "--epochs", "2")[0] == 0
    assert typed("compress", *SMALL, "--max-steps", "2")[0] == 0


def test_a_warm_up_as_long_as_the_run_is_answered_with_a_shorter_one(typed: Typed) -> None:
    code, said = typed("compress", *SMALL, "--epochs", "3", "--warmup-epochs", "3")
    assert code == 2
    flag = re.search(r"--warmup-epochs \d", said)
    assert flag is not None
    assert typed("compress", *SMALL, "--epochs", "3", *flag[0].split())[0] == 0


def test_resuming_a_run_without_training_is_answered_with_commands_that_work(typed: Typed) -> None:
    words = [word for word in SMALL if word != "-q"]
    assert typed("compress", *words, "--epochs", "0", "--run-dir", "zero")[0] == 0
    assert settings_of("zero")["validation"] is None  # nothing was chosen, so nothing was decided
    code, said = typed("compress", "--resume", "zero")
    assert code == 2
    assert "nothing is left to train" not in said  # and then an error all the same
    first, second = (
        shlex.split(command.replace("--epochs 20", "--epochs 2"))
        for command in re.findall(r"hwbmpq (report zero|compress --config \S+ --epochs 20)", said)
    )
    assert typed(*first)[0] == 0
    code, said = typed(*second, "--run-dir", "trained")
    assert code == 0
    assert "58 training, 6 validation and 32 test images" in " ".join(said.split())
    assert "chosen by the test images" not in said
    assert typed("compress", *words, "--epochs", "2", "--run-dir", "anew")[0] == 0
    assert settings_of("trained") == settings_of("anew")


def test_settings_that_are_not_defaults_of_a_run_without_training_are_kept_for_training(typed: Typed) -> None:
    Path("run.yaml").write_text(
        "model: hwbmpq:resnet8\ntarget: mpic\ndata: fake\ntrain_images: 64\ntest_images: 32\nbatch_size: 16\n"
        "epochs: 0\nactivation_bits: same\nvalidation: 12\n"
    )
    assert typed("compress", "--config", "run.yaml", "--epochs", "2", "--run-dir", "one")[0] == 0
    found = settings_of("one")
    assert (found["activation_bits"], found["validation"], found["batch_size"]) == ("same", 12, 16)


def test_other_data_decides_anew_what_is_held_out(typed: Typed) -> None:
    assert typed("compress", *SMALL, "--epochs", "2", "--validation", "0", "--run-dir", "one")[0] == 0
    again = ["compress", "--config", "one/config.yaml", "-q"]
    assert typed(*again, "--run-dir", "two")[0] == 0
    assert settings_of("two")["validation"] == 0
    assert typed(*again, "--data", "digits", "--run-dir", "three")[0] == 0
    assert settings_of("three")["validation"] == 6


# word wrap


@pytest.mark.parametrize("columns", ["60", "80", "100"])
@pytest.mark.parametrize(
    "command",
    "|compress|plan|frontier|inspect|export|evaluate|benchmark|report|costs|targets|targets new|targets measure".split(
        "|"
    ),
)
def test_help_is_wrapped_at_words(
    command: str, columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    whole = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= int(columns)
    assert [word for word in text.split() if word != "\\"] == [word for word in whole.split() if word != "\\"]


@pytest.mark.parametrize("width", [40, 60, 80])
def test_errors_and_remarks_are_wrapped_at_words_in_a_terminal(width: int) -> None:
    sentence = (
        "the budgets cannot be met: memory needs at least 19.05 KiB and the budget is 1.000 KiB of flash"
    )
    for stderr in (False, True):
        console = Console(file=io.StringIO(), width=width, force_terminal=True, stderr=stderr, no_color=True)
        console.file = io.StringIO()
        print_remarks(console, [sentence])
        print_wrapped(console, sentence)
        text = re.sub("\x1b\\[[0-9;]*m", "", console.file.getvalue())
        assert max(map(len, text.splitlines())) <= width
        assert text.split() == ["!", *sentence.split(), *sentence.split()]


def test_an_error_in_a_pipe_stays_on_its_line(typed: Typed) -> None:
    _, said = typed("plan", *NETWORK, "--sensitivity", "uniform", "--budget", "memory=1KiB")
    assert any(line.startswith("error: ") and len(line) > 80 for line in said.splitlines())
