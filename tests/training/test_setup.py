"""What has to fit before training starts."""

import pytest
import torch
from torch import Tensor, nn

from hwbmpq.data import load_data
from hwbmpq.data.images import ImageData
from hwbmpq.errors import HwbmpqError
from hwbmpq.training.setup import calibration_batches, check_outputs, example_input, find_device, place


@pytest.fixture(scope="module")
def data() -> ImageData:
    return load_data("fake", input_size=(3, 8, 8), classes=5, train_limit=50, test_limit=8)


def test_the_cpu_is_always_there() -> None:
    assert find_device("cpu") == torch.device("cpu")
    assert find_device("auto").type in ("cpu", "cuda", "mps")


@pytest.mark.parametrize("name", ["tpu", "", "gpu", "cuda:x" if not torch.cuda.is_available() else "vulkan"])
def test_a_device_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(HwbmpqError, match=f"no device '{name}'") as error:
        find_device(name)
    assert "cpu" in error.value.hint


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has it")
def test_cuda_that_is_not_there_is_an_error() -> None:
    with pytest.raises(HwbmpqError, match="no device 'cuda'"):
        find_device("cuda")


def test_the_wrong_number_of_classes_is_found_before_training(data: ImageData, tiny_cnn: nn.Module) -> None:
    tiny_cnn[8] = nn.Linear(12, 7)
    with pytest.raises(HwbmpqError, match="the network has 7 outputs, but fake has 5 classes") as error:
        check_outputs(tiny_cnn, data)
    assert "--num-classes 5" in error.value.hint


def test_images_that_do_not_fit_are_found_before_training(tiny_cnn: nn.Module) -> None:
    wide = load_data("fake", input_size=(3, 12, 12), classes=5, train_limit=4, test_limit=4)
    with pytest.raises(HwbmpqError, match="cannot take images of 3x12x12") as error:
        check_outputs(tiny_cnn, wide)
    assert "--input" in error.value.hint


def test_a_network_that_is_no_classifier_is_refused(data: ImageData) -> None:
    with pytest.raises(HwbmpqError, match=r"returns no scores.*it is not a classifier") as error:
        check_outputs(nn.Conv2d(3, 5, 3), data)
    assert "--task regression" in error.value.hint


def test_the_check_changes_nothing(data: ImageData, tiny_cnn: nn.Module) -> None:
    tiny_cnn.train()
    before = {name: value.clone() for name, value in tiny_cnn.state_dict().items()}
    check_outputs(tiny_cnn, data)
    assert tiny_cnn.training
    assert all(torch.equal(value, before[name]) for name, value in tiny_cnn.state_dict().items())


def test_placing_keeps_parameters_and_results(data: ImageData, tiny_cnn: nn.Module, images: Tensor) -> None:
    parameters = list(tiny_cnn.parameters())
    expected = tiny_cnn.eval()(images)
    placed = place(tiny_cnn, torch.device("cpu"), data)
    assert placed is tiny_cnn
    assert all(a is b for a, b in zip(placed.parameters(), parameters, strict=True))
    assert torch.allclose(placed(images), expected, atol=1e-6)


def test_an_example_is_one_image(data: ImageData, tiny_cnn: nn.Module) -> None:
    (example,) = example_input(tiny_cnn, data.train).tensors
    assert example.shape == (1, 3, 8, 8)


@pytest.mark.parametrize(
    ("count", "batch_size", "sizes"),
    [
        (32, 16, [16, 16]),
        (40, 16, [16, 16]),
        (8, 16, [8]),
        (1, 16, [1]),
        (500, 16, [16, 16, 16]),
        (500, 64, [50]),
    ],
)
def test_calibration_takes_whole_batches(
    count: int, batch_size: int, sizes: list[int], data: ImageData
) -> None:
    found = list(calibration_batches(data.train, count, batch_size=batch_size))
    assert [len(labels) for _, labels in found] == sizes


def test_calibration_images_are_shuffled_and_always_the_same(data: ImageData) -> None:
    first, again, other = (
        torch.cat([labels for _, labels in calibration_batches(data.train, 48, seed=seed)])
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, data.train.labels[:48])
    assert not torch.equal(first, other)
