"""Tasks: figures worked by hand, and errors that say what a task of one's own lacks."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hwbmpq.errors import HwbmpqError, UnknownNameError
from hwbmpq.tasks import TASKS, Task, check_task, get_task
from hwbmpq.training import evaluate


class Echo(nn.Module):
    """Hands out its input."""

    def forward(self, x: Any) -> Any:
        return x


def test_regression_is_mean_squared_and_mean_absolute_error() -> None:
    outputs, targets = torch.tensor([[1.0], [2.0], [6.0]]), torch.tensor([0.0, 4.0, 6.0])
    task = get_task("regression")
    assert float(task.loss(outputs, targets)) == pytest.approx((1 + 4 + 0) / 3)
    found = evaluate(Echo(), [(outputs[:1], targets[:1]), (outputs[1:], targets[1:])], task)
    assert (found.value, found.loss, found.images) == (pytest.approx(1.0), pytest.approx(5 / 3), 3)
    assert task.is_better(0.1, than=0.2)


def test_regression_does_not_broadcast() -> None:
    with pytest.raises(HwbmpqError, match=r"outputs of \(3, 2\) with targets of \(3,\)"):
        get_task("regression").loss(torch.zeros(3, 2), torch.zeros(3))


def test_segmentation_is_cross_entropy_and_mean_iou() -> None:
    task = get_task("segmentation")
    labels = torch.tensor([[[0, 0], [1, 255]]])
    answers = torch.tensor([[[0, 1], [1, 0]]])  # of class 0: 1 of 2; of class 1: 1 of 2; class 2 never occurs
    scores = 20.0 * nn.functional.one_hot(answers, 3).permute(0, 3, 1, 2).float()
    found = evaluate(Echo(), [(scores, labels)], task)
    assert found.value == pytest.approx((1 / 2 + 1 / 2) / 2)
    assert found.loss == pytest.approx(20 / 3, rel=1e-3)  # one of three pixels is wrong by 20
    twice = evaluate(Echo(), [({"out": scores}["out"], labels)] * 2, task)
    assert twice.value == found.value


def test_segmentation_says_which_shapes_it_needs() -> None:
    with pytest.raises(HwbmpqError, match=r"not \(1, 3, 2, 2\) and \(1, 4, 4\)"):
        get_task("segmentation").loss(torch.zeros(1, 3, 2, 2), torch.zeros(1, 4, 4))


def test_label_smoothing_is_for_tasks_with_labels() -> None:
    assert get_task("classification", label_smoothing=0.1).label_smoothing == 0.1  # type: ignore[attr-defined]
    assert get_task("classification").label_smoothing == 0.0  # type: ignore[attr-defined]
    with pytest.raises(HwbmpqError, match="Regression has no label smoothing"):
        get_task("regression", label_smoothing=0.1)


@pytest.mark.parametrize("name", TASKS.ours)
def test_every_task_of_ours_says_what_it_measures(name: str) -> None:
    task = get_task(name)
    assert task.metric
    assert isinstance(task.higher_is_better, bool)


class Own(Task):
    metric, higher_is_better = "largest error", False

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        return (outputs["y"] - targets["y"]).square().mean()

    def measure(self, outputs: Any, targets: Any) -> Any:
        return float((outputs["y"] - targets["y"]).abs().max())

    def value(self, measured: Any) -> float:
        return max(measured)


def test_a_task_of_ones_own_takes_dicts_and_collects_what_it_wants() -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"y": x}

    batches = [
        (torch.tensor([1.0, 2.0]), {"y": torch.tensor([1.5, 2.0])}),
        (torch.tensor([9.0]), {"y": torch.tensor([6.0])}),
    ]
    found = evaluate(Net(), batches, Own())
    assert (found.value, found.images) == (3.0, 3)
    assert found.loss == pytest.approx((2 * 0.125 + 9) / 3)


def test_a_metric_that_is_not_a_number_is_an_error() -> None:
    class NotANumber(Own):
        def value(self, measured: Any) -> float:
            return math.nan

    with pytest.raises(HwbmpqError, match="the largest error is nan"):
        evaluate(Echo(), [(({"y": torch.zeros(1)},), {"y": torch.zeros(1)})], NotANumber())


TASK_FILE = """
from hwbmpq.tasks import Task

class Good(Task):
    metric, higher_is_better = "goodness", True
    def loss(self, outputs, targets): return outputs.mean()
    def measure(self, outputs, targets): return 1, 1

class Nameless(Good):
    metric = None

class Half(Task):
    metric, higher_is_better = "half", True
    def loss(self, outputs, targets): return outputs.mean()

class Stranger:
    pass

class Costly(Good):
    def __init__(self, price): pass

def make(): return Good()
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Half", r"has no measure\(outputs, targets\)"),
        ("Nameless", "Nameless does not say its metric"),
        ("Stranger", "is not a hwbmpq.tasks.Task but of type Stranger"),
        ("Costly", "raised TypeError when it was made"),
        ("Nothing", "has no Nothing"),
    ],
)
def test_a_task_in_a_file_that_lacks_something_is_told_so(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK_FILE)
    with pytest.raises(HwbmpqError, match=message):
        get_task(f"file:{tmp_path}/task.py:{name}")


@pytest.mark.parametrize("name", ["Good", "make"])
def test_a_task_in_a_file_is_a_class_or_a_function_that_returns_one(name: str, tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK_FILE)
    assert get_task(f"file:{tmp_path}/task.py:{name}").metric == "goodness"


def test_an_unknown_task_gets_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="no task named 'regresion': did you mean regression") as error:
        get_task("regresion")
    assert "file:PATH.py:NAME" in error.value.hint


class Silly(Task):
    metric, higher_is_better = "silliness", True

    def __init__(self, loss: Any, measured: Any = (1, 1)) -> None:
        self._loss, self._measured = loss, measured

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        found: Tensor = self._loss(outputs, targets)
        return found

    def measure(self, outputs: Any, targets: Any) -> Any:
        return self._measured


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Silly(lambda outputs, targets: 3.0), "loss returned a float, not one number as a tensor"),
        (Silly(lambda outputs, targets: outputs), r"loss returned a tensor of shape \(2, 3\)"),
        (Silly(lambda outputs, targets: outputs.detach().mean()), "does not depend on the network's outputs"),
        (Silly(lambda outputs, targets: outputs["pose"]), "Silly: loss raised"),
        (Silly(lambda outputs, targets: outputs.mean(), (1, 0)), "value raised ZeroDivisionError"),
        (Silly(lambda outputs, targets: outputs.mean(), "x"), "value raised"),
    ],
    ids=["float", "not one number", "detached", "raises", "no samples", "not numbers"],
)
def test_a_task_is_tried_before_training(task: Task, message: str) -> None:
    with pytest.raises(HwbmpqError, match=message):
        check_task(task, lambda: torch.zeros(2, 3, requires_grad=True) * 1, torch.zeros(2))
