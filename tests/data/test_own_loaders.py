"""Data that a function of the user's own makes: ``file:data.py:make_loaders``."""

from pathlib import Path
from typing import Any

import pytest
import torch

from hwbmpq.data import load_data, load_images, open_data
from hwbmpq.data.batches import LoaderBatches
from hwbmpq.data.validation import hold_out_validation
from hwbmpq.errors import HwbmpqError, UnknownNameError

CODE = """
import torch
from torch.utils.data import DataLoader, TensorDataset

def part(count):
    return TensorDataset(torch.arange(count * 12.0).view(count, 3, 4), torch.arange(count) % 5)

def make_loaders():
    return DataLoader(part(50), batch_size=8), DataLoader(part(20), batch_size=20)

def make_datasets():
    return part(50), part(20)

def make_lists():
    batches = [(torch.ones(4, 6), torch.tensor([0, 1, 2, 6]))] * 3
    return batches, batches[:1]

def make_tokens():
    tokens = TensorDataset(torch.arange(60).view(10, 6), torch.arange(10) % 2)
    return tokens, tokens

def make_targets():
    values = TensorDataset(torch.ones(10, 6), torch.ones(10, 2))
    return values, values

def make_one():
    return part(50)

def make_generators():
    return (x for x in ()), (x for x in ())

def make_empty():
    return [], []

def make_error():
    raise KeyError("nothing")
"""


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "data.py").write_text(CODE)
    return f"file:{tmp_path}/data.py"


def all_labels(batches: Any) -> list[int]:
    return [int(label) for _, labels in batches for label in labels]


@pytest.mark.parametrize("function", ["make_loaders", "make_datasets"])
def test_both_parts_arrive(source: str, function: str) -> None:
    opened = open_data(f"{source}:{function}")
    assert (opened.classes, opened.default_input_size) == (5, (3, 4))
    data = opened.sized((3, 4), batch_size=10)
    assert (len(data.train), len(data.test)) == (50, 20)
    assert all_labels(data.test.batches(7)) == [number % 5 for number in range(20)]
    assert (data.augment, data.normalise) == ("none", "none")
    assert data.inputs == "inputs: as the loaders give them"


def test_batches_of_a_loader_are_its_own(source: str) -> None:
    data = open_data(f"{source}:make_loaders").sized((3, 4), batch_size=10)
    assert [len(labels) for _, labels in LoaderBatches(data.train.loader).epoch(0)] == [8] * 6 + [2]


def test_data_sets_are_shuffled_by_seed_and_epoch_only(source: str) -> None:
    def epoch(number: int, seed: int = 0) -> list[int]:
        data = open_data(f"{source}:make_datasets").sized((3, 4), batch_size=10, seed=seed)
        batches = LoaderBatches(data.train.loader)
        assert len(batches) == 5
        return [int(value) for inputs, _ in batches.epoch(number) for value in inputs[:, 0, 0]]

    batches = LoaderBatches(open_data(f"{source}:make_datasets").sized((3, 4), batch_size=10).train.loader)
    later = [inputs for inputs, _ in batches.epoch(1)][2:]
    assert all(torch.equal(*pair) for pair in zip(later, (x for x, _ in batches.epoch(1, 2)), strict=True))
    assert sorted(epoch(0)) == [12 * number for number in range(50)]
    assert epoch(1) == epoch(1) != epoch(0)
    assert epoch(0, seed=1) != epoch(0)


@pytest.mark.parametrize("function", ["make_loaders", "make_datasets"])
def test_limits_hold(source: str, function: str) -> None:
    data = open_data(f"{source}:{function}").sized((3, 4), train_limit=12, test_limit=5, batch_size=4)
    assert len(all_labels(data.train.batches(100))) == len(data.train) == 12
    assert len(all_labels(data.test.batches(100))) == len(data.test) == 5
    assert len(load_images(f"{source}:{function}", input_size=(3, 4), count=9)) == 9


def test_classes_are_counted_where_nothing_says_them(source: str) -> None:
    assert open_data(f"{source}:make_lists").classes == 7
    assert open_data(f"{source}:make_lists", classes=9).classes == 9


def test_token_ids_stay_integers(source: str) -> None:
    opened = open_data(f"{source}:make_tokens")
    assert opened.input_dtype() == torch.int64
    assert next(opened.sized((6,)).test.batches(4))[0].dtype == torch.int64


def test_targets_that_are_not_classes_need_another_task(source: str) -> None:
    with pytest.raises(HwbmpqError, match=r"labels of type float32 and shape .* are not class numbers"):
        open_data(f"{source}:make_targets")
    assert open_data(f"{source}:make_targets", has_classes=False).classes is None


BAD = {
    "make_one": "returned TensorDataset, not a pair",
    "make_generators": "a generator has no length",
    "make_empty": "the training part is empty",
    "make_error": "make_error in .* raised KeyError: 'nothing'",
}


@pytest.mark.parametrize(("function", "message"), BAD.items(), ids=BAD)
def test_a_function_that_returns_something_else_is_one_sentence(
    source: str, function: str, message: str
) -> None:
    with pytest.raises(HwbmpqError, match=message):
        open_data(f"{source}:{function}")


def test_a_function_that_is_not_there_is_looked_for(source: str) -> None:
    with pytest.raises(UnknownNameError, match="did you mean make_loaders"):
        open_data(f"{source}:make_loader")


def test_a_specification_without_a_function_is_told_its_form() -> None:
    with pytest.raises(HwbmpqError, match=r"cannot read file:data\.py") as raised:
        open_data("file:data.py")
    assert raised.value.hint == "use file:PATH.py:FUNCTION"


def test_loaders_do_their_own_normalisation_and_layout(source: str) -> None:
    for options in ({"normalise": "data"}, {"layout": "channels-last"}):
        with pytest.raises(HwbmpqError, match="your own loaders normalise and arrange their inputs"):
            load_data(f"{source}:make_loaders", input_size=(3, 4), **options)


def test_an_input_of_another_size_is_refused(source: str) -> None:
    with pytest.raises(HwbmpqError, match="yields inputs of 3x4, but the network takes 3x32x32"):
        load_data(f"{source}:make_loaders", input_size=(3, 32, 32))


@pytest.mark.parametrize("function", ["make_loaders", "make_datasets"])
def test_validation_samples_are_held_out_of_the_training_part(source: str, function: str) -> None:
    data = hold_out_validation(open_data(f"{source}:{function}").sized((3, 4), batch_size=10), 10)
    assert data.validation is not None

    def numbers(part: Any) -> set[int]:
        return {int(value) for inputs, _ in part.batches(100) for value in inputs[:, 0, 0]}

    assert len(numbers(data.validation)) == 10
    assert not numbers(data.validation) & numbers(data.train)
    first, again, second = (
        [int(x) for inputs, _ in LoaderBatches(data.train.loader).epoch(number) for x in inputs[:, 0, 0]]
        for number in (1, 1, 2)
    )
    if function == "make_datasets":
        assert first == again != second
        assert len(first) == 40
