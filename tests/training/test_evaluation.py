"""Accuracy and loss against figures worked by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from hwbmpq.errors import HwbmpqError
from hwbmpq.training.evaluation import evaluate, evaluation_batches

Batch = tuple[Tensor, Tensor]


class Answers(nn.Module):
    """Hands out its input as scores."""

    def forward(self, x: Tensor) -> Tensor:
        return x


SCORES = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0]])
LABELS = torch.tensor([0, 1, 1])
RIGHT, WRONG = math.log(1 + math.exp(-2)), math.log(1 + math.exp(2))


@pytest.mark.parametrize("sizes", [[3], [1, 2], [2, 1], [1, 1, 1]])
def test_every_image_counts_the_same_whatever_the_batches(sizes: list[int]) -> None:
    batches = zip(SCORES.split(sizes), LABELS.split(sizes), strict=True)
    found = evaluate(Answers(), batches)
    assert found.accuracy == pytest.approx(2 / 3)
    assert found.loss == pytest.approx((2 * RIGHT + WRONG) / 3)
    assert found.images == 3


@pytest.mark.parametrize(
    ("size", "batch"), [((3, 32, 32), 250), ((3, 1024, 1024), 5), ((3, 4096, 4096), 1), ((5,), 250)]
)
def test_a_batch_of_large_inputs_is_small(size: tuple[int, ...], batch: int) -> None:
    asked: list[int] = []
    evaluation_batches(SimpleNamespace(input_size=size, batches=asked.append))  # type: ignore[arg-type]
    assert asked == [batch]


def test_no_images_are_an_error() -> None:
    with pytest.raises(HwbmpqError, match="no images to evaluate on"):
        evaluate(Answers(), [])


@pytest.mark.parametrize("shape", [(3,), (3, 2, 1)])
def test_what_is_no_classifier_is_an_error(shape: tuple[int, ...]) -> None:
    with pytest.raises(HwbmpqError, match="returns no scores"):
        evaluate(Answers(), [(torch.zeros(shape), LABELS)])


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_restored_and_nothing_is_learned(
    training: bool, tiny_cnn: nn.Module, images: Tensor
) -> None:
    tiny_cnn.train(training)
    before = {name: value.clone() for name, value in tiny_cnn.state_dict().items()}
    first = evaluate(tiny_cnn, [(images, torch.tensor([0, 1, 2, 3]))])
    assert evaluate(tiny_cnn, [(images, torch.tensor([0, 1, 2, 3]))]) == first
    assert tiny_cnn.training is training
    assert all(torch.equal(value, before[name]) for name, value in tiny_cnn.state_dict().items())
    assert all(p.grad is None for p in tiny_cnn.parameters())


def test_the_mode_is_restored_after_an_error(tiny_cnn: nn.Module) -> None:
    tiny_cnn.train()
    with pytest.raises(RuntimeError):
        evaluate(tiny_cnn, [(torch.zeros(2, 7, 8, 8), torch.tensor([0, 1]))])
    assert tiny_cnn.training


def test_half_precision_scores_are_judged_in_float() -> None:
    scores = torch.tensor([[60000.0, 0.0]], dtype=torch.float16)
    assert evaluate(Answers(), [(scores, torch.tensor([1]))]).loss == pytest.approx(60000, rel=1e-3)


class Pair(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": x, "features": x * 0}


def test_the_first_tensor_of_an_answer_counts() -> None:
    assert evaluate(Pair(), [(SCORES, LABELS)]).accuracy == pytest.approx(2 / 3)


def test_modules_return_to_the_modes_they_were_in() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)).train()
    model[1].eval()  # a frozen norm
    evaluate(model, [(torch.randn(3, 4), torch.tensor([0, 1, 0]))])
    assert (model.training, model[1].training, model[2].training) == (True, False, True)
