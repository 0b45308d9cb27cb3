"""``--calibrate best``: a quantized network learns to repeat its float network's answers, without labels."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hwbmpq
from hwbmpq import pipeline
from hwbmpq.data import load_data
from hwbmpq.errors import HwbmpqError, NonFiniteError
from hwbmpq.quant import quantized_layers
from hwbmpq.training import RunSettings, TrainingHook, resolve_settings
from hwbmpq.training.ptq.reconstruction import SplitInputs, reconstruct, split_inputs
from hwbmpq.training.ptq.rounding import float_copy
from hwbmpq.training.ptq.run import round_as_set

DATA = load_data("digits", input_size=(3, 8, 8), train_limit=512, test_limit=200)
IMAGES = load_data("digits", input_size=(3, 32, 32), train_limit=96, test_limit=32)


Build = Callable[..., nn.Module]


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    """A small network that knows some digits, in float."""
    torch.manual_seed(0)
    widths = zip((3, 16, 16, 16), (16, 16, 16, 16), strict=True)
    layers = [[nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU()] for i, o in widths]
    network = nn.Sequential(
        *(module for block in layers for module in block), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    for _ in range(10):
        for images, labels in DATA.train.batches(32):
            nn.functional.cross_entropy(network(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    return network.eval()


@pytest.fixture
def prepared(trained: nn.Module) -> Build:
    def build(**options: Any) -> nn.Module:
        network = copy.deepcopy(trained)
        layers = hwbmpq.describe(network, torch.zeros(1, *DATA.train.input_size))
        options = {"quantizer": "learned", "per_channel": True, **options}
        return hwbmpq.quant.prepare(network, layers, precision=(2, 2), **options)

    return build


def settings(**given: Any) -> RunSettings:
    said = {"model": "hwbmpq:resnet8", "target": "mpic", "weights": "given", "epochs": 0, "calibrate": "best"}
    return resolve_settings({**said, "calibration_images": 16, **given})


def inputs_of(**given: Any) -> SplitInputs:
    return split_inputs(DATA, settings(**given), 512, 64)


def distance(one: nn.Module, other: nn.Module) -> float:
    images, _ = next(iter(DATA.test.batches(200)))
    with torch.no_grad():
        return float((one.eval()(images) - other.eval()(images)).square().mean())


@pytest.mark.parametrize("quantizer", ["learned", "paper"])
def test_answers_come_closer_to_those_of_the_float_network_on_new_images(
    quantizer: str, prepared: Build
) -> None:
    fast, best = prepared(quantizer=quantizer), prepared(quantizer=quantizer)
    exact = float_copy(fast)
    round_as_set(fast, DATA, settings(calibrate="fast", calibration_images=256))
    round_as_set(best, DATA, settings(calibration_images=256, augment="none"))
    assert distance(best, exact) < distance(fast, exact)


def test_norms_keep_their_statistics_and_modules_their_modes(prepared: Build) -> None:
    network = prepared()
    exact = float_copy(network)
    network.train()
    before = network[1].running_mean.clone()
    reconstruct(network, exact, replace(inputs_of(), steps=2))
    assert torch.equal(network[1].running_mean, before)
    assert network.training
    assert not exact.training


def test_a_network_that_does_not_come_closer_stays_as_it_was(
    prepared: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hwbmpq.training.ptq.reconstruction._RATE", 1.0)
    network = prepared()
    exact = float_copy(network)
    inputs, _ = next(iter(DATA.train.batches(16)))
    network.eval()(inputs)
    before = copy.deepcopy(network.state_dict())
    assert not reconstruct(network, exact, replace(inputs_of(), steps=3))
    after = network.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_images_are_those_asked_for_and_come_again() -> None:
    images = inputs_of(calibration_images=48, augment="none")
    assert images.steps == 320
    taken = torch.cat([next(images.learning).args[0] for _ in range(images.steps)])
    rounding, others = (
        torch.cat([inputs.args[0] for inputs in part]) for part in (images.rounding, images.others)
    )
    assert (len(rounding), len(others)) == (48, 12)
    assert len(taken.flatten(1).unique(dim=0)) == 36
    assert len(torch.cat([taken, rounding]).flatten(1).unique(dim=0)) == 48
    assert len(torch.cat([taken, others]).flatten(1).unique(dim=0)) == 48


def test_the_last_batches_of_a_loader_are_compared_on() -> None:
    inputs = torch.arange(40.0)[:, None]
    loader = DataLoader(TensorDataset(inputs, torch.zeros(40, dtype=torch.long)), batch_size=10)
    data = hwbmpq.data.from_loaders(loader, loader, classes=2)
    images = split_inputs(data, settings(calibration_images=40), 512, 64)
    assert [float(part.args[0][0]) for part in images.rounding] == [0, 10, 20, 30]
    assert [float(part.args[0][0]) for part in images.others] == [30]
    assert [float(next(images.learning).args[0][0]) for _ in range(4)] == [0, 10, 20, 0]


def test_answers_that_are_not_finite_are_an_error(prepared: Build) -> None:
    network = prepared()
    exact = float_copy(network)
    with torch.no_grad():
        exact[-1].bias.fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="calibration step 1"):
        reconstruct(network, exact, inputs_of())


def test_outputs_without_weights_are_an_error() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Linear(2, 2)

        def forward(self, images: Tensor) -> Tensor:
            return images.flatten(1)

    network = Constant()
    with pytest.raises(HwbmpqError, match="do not depend on its weights"):
        reconstruct(network, copy.deepcopy(network), inputs_of())


def test_a_run_without_training_uses_it_and_says_how_far_it_is(tmp_path: Any) -> None:
    class Said(TrainingHook):
        def during_calibration(self, what: str, done: int, total: int) -> None:
            seen.append((what, done, total))

    seen: list[tuple[str, int, int]] = []
    network = hwbmpq.models.load_model("hwbmpq:resnet8", num_classes=10, seed=0).network
    run = hwbmpq.training.RunDirectory(tmp_path / "run").create()
    given = settings(budgets={"weight_memory": "3b/weight"}, bits=(2, 4, 8))
    assert given.quantizer == "learned"
    pipeline.compress(network, IMAGES, given, run=run, hooks=[Said()])
    done = [entry for entry in seen if entry[0] == "imitating the float network"]
    assert done[-1][1] == done[-1][2] == len(done) == 320
    packed = hwbmpq.load(tmp_path / "run", hwbmpq.models.load_model("hwbmpq:resnet8", num_classes=10).network)
    images, _ = next(iter(IMAGES.test.batches(16)))
    assert torch.equal(packed(images), network.eval()(images))


def test_training_can_start_from_it() -> None:
    network = hwbmpq.models.load_model("hwbmpq:resnet8", num_classes=10, seed=0).network
    result = pipeline.compress(network, IMAGES, settings(epochs=1, validation=32))
    assert result.progress.calibrated is not None
    assert all(layer.weight_quantizer.step.isfinite().all() for _, layer in quantized_layers(network))


def test_many_images_are_the_default_and_fast_needs_fewer() -> None:
    def images(**given: Any) -> int:
        return resolve_settings({"model": "any", "target": "mpic", **given}).calibration_images

    assert images(epochs=0) == images(epochs=3, weights="given") == 512
    assert images(epochs=0, calibrate="best") == images(epochs=3, weights="given", calibrate="best") == 4096
    assert images(epochs=0, calibrate="best", calibration_images=100) == 100
