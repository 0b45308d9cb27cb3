"""A task of one's own on the command line: training, evaluation, export, report; and what validation says."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from hwbmpq.cli.main import main

TASK = """
from hwbmpq.tasks import Task
from torch.nn import functional as F

class Margin(Task):
    metric, higher_is_better = "mean margin loss", False

    def loss(self, outputs, targets):
        return F.multi_margin_loss(outputs, targets)

    def measure(self, outputs, targets):
        return self.loss(outputs, targets) * len(targets), len(targets)
"""
SHORT = (
    "compress --model hwbmpq:resnet8 --target mpic --budget memory=24KiB --data fake --input 3x16x16 "
    "--train-images 40 --test-images 16 --batch-size 12 --epochs 3"
).split()
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Type a command in a folder that holds the task: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    Path("task.py").write_text(TASK)

    def typed(*words: str) -> tuple[int, str, str]:
        try:
            code = main(list(words))
        except SystemExit as error:
            code = int(error.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return typed


def test_a_task_in_a_file_is_what_every_command_speaks_of(run: Run) -> None:
    code, out, err = run(*SHORT, "--task", "file:task.py:Margin", "--run-dir", "one")
    assert code == 0, err
    assert "36 training, 4 validation and 16 test images" in err
    assert re.search(r"validation mean margin loss \d", err)
    assert "train " not in err  # there is no right and wrong
    assert re.search(r"test mean margin loss \d", out)
    assert "accuracy" not in out + err
    assert (
        yaml.safe_load(Path("one/config.yaml").read_text())["task"]
        == f"file:{Path('task.py').absolute()}:Margin"
    )
    told = json.loads(Path("one/allocation.json").read_text())
    code, out, err = run("evaluate", "one", "--trust", "--json")
    assert code == 0, err
    assert json.loads(out)["test_metric"] == told["test_metric"]
    for words in (["evaluate", "one", "--best"], ["export", "one"], ["report", "one"]):
        trust = [] if words[0] == "report" else ["--trust"]
        code, out, err = run(*words, *trust)
        assert code == 0, err
        assert "accuracy" not in out
    assert "test mean margin loss" in out
    code, out, err = run("evaluate", "one", "--trust", "--runtime", "onnxruntime")
    assert code == 0, err
    assert "test mean margin loss" in out
    assert "the same answer" not in run("export", "one", "--trust")[1]
    assert run("compress", "--resume", "one", "--trust", "-q")[0] == 0


def test_the_code_of_a_task_is_not_run_unasked(run: Run) -> None:
    assert run(*SHORT, "--task", "file:task.py:Margin", "--run-dir", "one", "-q")[0] == 0
    Path("task.py").write_text("raise SystemExit('it ran')")
    code, _, err = run("evaluate", "one")
    assert code == 2
    assert "it ran" not in err
    assert "task: Margin in" in " ".join(err.split())
    assert run("report", "one")[0] == 0


def test_a_task_may_be_named_again_instead_of_trusted(run: Run) -> None:
    assert run(*SHORT, "--task", "file:task.py:Margin", "--run-dir", "one", "-q")[0] == 0
    assert run("evaluate", "one", "--task", "file:task.py:Margin")[0] == 0


def test_validation_is_stored_and_repeats(run: Run) -> None:
    assert run(*SHORT, "--validation", "0.25", "--run-dir", "one", "-q")[0] == 0
    assert yaml.safe_load(Path("one/config.yaml").read_text())["validation"] == 10
    assert run("compress", "--config", "one/config.yaml", "--run-dir", "two", "-q")[0] == 0
    one, two = (json.loads(Path(name, "allocation.json").read_text()) for name in ("one", "two"))
    assert one["best"] == two["best"]
    assert one["test_accuracy"] == two["test_accuracy"]


def test_without_validation_the_run_says_that_test_images_decide(run: Run) -> None:
    code, _, err = run(*SHORT, "--validation", "0", "--run-dir", "one")
    assert code == 0
    assert "the best epoch is chosen by the test images" in " ".join(err.split())
    history = [json.loads(line) for line in Path("one/history.jsonl").read_text().splitlines()]
    assert all("test_accuracy" in record for record in history)
    assert (
        json.loads(Path("one/allocation.json").read_text())["test_accuracy"] == history[-1]["test_accuracy"]
    )
    assert yaml.safe_load(Path("one/config.yaml").read_text())["validation"] == 0
    assert run("compress", "--resume", "one", "-q")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--validation", "1.5"), "give a share below 1, such as 0.1, or a whole number"),
        (("--validation", "0.9"), "36 of 40 training images cannot be held out"),
        (("--task", "regresion"), "no task named 'regresion': did you mean regression"),
        (("--task", "file:task.py"), "cannot read the task"),
        (("--task", "regression"), "regression compares outputs of (1, 10) with targets of (1,)"),
    ],
)
def test_what_cannot_be_done_is_said_before_training(run: Run, words: tuple[str, str], message: str) -> None:
    code, _, err = run(*SHORT, *words, "--run-dir", "one")
    assert code == 2
    assert message in " ".join(err.split())
    assert not Path("one").exists()


def test_a_recipe_of_the_paper_trains_on_all_images(run: Run) -> None:
    words = (
        "--recipe bmpq-cifar10-resnet18 --model hwbmpq:resnet8 --budget memory=12x --data fake --max-steps 3"
    )
    small = "--train-images 24 --test-images 8 --batch-size 8 --run-dir one"
    code, _, err = run("compress", *words.split(), *small.split())
    assert code == 0, err
    assert "24 training and 8 test images" in err


OWN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Samples(Dataset):
    def __init__(self, count):
        self.values = torch.randn(count, 12, generator=torch.Generator().manual_seed(count))
    def __len__(self):
        return len(self.values)
    def __getitem__(self, index):
        row = self.values[index]
        return {"right": row[8:], "left": row[:8]}, {"sum": row.sum()}

def data_sets():
    return Samples(60), Samples(20)

def loaders():
    return DataLoader(Samples(60), 8, shuffle=True), DataLoader(Samples(16), 8), DataLoader(Samples(20), 8)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = nn.Linear(8, 9), nn.Linear(4, 9), nn.Linear(9, 9), nn.Linear(9, 1)
    def forward(self, left, right):
        return {"sum": self.d(self.c((self.a(left) + self.b(right)).relu()).relu()).squeeze(1)}
"""


@pytest.mark.parametrize(
    ("function", "counts"), [("data_sets", "54 training, 6"), ("loaders", "60 training, 16")]
)
def test_own_network_data_and_task_with_named_inputs(run: Run, function: str, counts: str) -> None:
    Path("own.py").write_text(OWN)
    words = ["--model", "file:own.py:Net", "--data", f"file:own.py:{function}", "--task", "regression"]
    code, out, err = run("compress", *words, "--target", "generic", "--epochs", "2", "--run-dir", "one")
    assert code == 0, err
    assert f"{counts} validation and 20 test samples" in " ".join(err.split())
    assert re.search(r"test mean absolute error \d\S* on 20 samples", out)
    told = json.loads(Path("one/allocation.json").read_text())
    code, out, err = run("export", "one", "--trust", "--json")
    assert code == 0, err
    assert json.loads(out)["agreement"]["top1_agreement"] is None
    code, out, err = run("evaluate", "one", "--trust", "--runtime", "onnxruntime", "--json")
    assert code == 0, err
    assert json.loads(out)["test_metric"] == pytest.approx(told["test_metric"], rel=1e-3)


FIRST_NAN = """

class FirstNan(Margin):
    passes = 0

    def value(self, measured):
        is_test = sum(count for _, count in measured) == 16
        FirstNan.passes += is_test
        return float("nan") if is_test and FirstNan.passes == 1 else super().value(measured)
"""


def test_random_weights_of_a_models_own_code_need_no_figure(run: Run) -> None:
    Path("task.py").write_text(TASK + FIRST_NAN)
    Path("nets.py").write_text(
        "import hwbmpq\n\ndef net(num_classes=10):\n    return hwbmpq.models.load_model('hwbmpq:resnet8').network\n"
    )
    words = [word.replace("hwbmpq:resnet8", "file:nets.py:net") for word in SHORT]
    code, _, err = run(*words, "--task", "file:task.py:FirstNan", "--run-dir", "one")
    assert code == 0, err
    assert json.loads(Path("one/allocation.json").read_text())["float_metric"] is None
