"""What rounding a layer's input costs, against gradients taken by hand."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hwbmpq
from hwbmpq.errors import HwbmpqError
from hwbmpq.quant import as_precision, assign, prepare, quantized_layers
from hwbmpq.quant.functional import fake_quantize_activation
from hwbmpq.quant.scales import best_clip
from hwbmpq.sensitivity.activations import ActivationErrorMeter, ImageCounter, is_sampled

Measured = Any
WIDTHS = (2, 4, 8)


class Two(nn.Module):
    """Two layers that read one tensor, which is also added up."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(5, 6)
        self.left = nn.Linear(6, 6)
        self.right = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        return self.head(F.relu(self.left(x)) - F.relu(self.right(x)) + x)


@pytest.fixture
def network() -> Two:
    torch.manual_seed(0)
    return Two()


X = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 0, 1, 2, 0])


def by_hand(network: Two, name: str, bits: int) -> float:
    """Image by image, in float: ½·Σ (∂loss/∂input·error)², the input being this layer's alone."""
    values = F.relu(network.stem(X)).detach()
    error = values - fake_quantize_activation(
        values, best_clip(values, bits, signed=False), bits, signed=False
    )
    total = 0.0
    for x, y, wrong in zip(values, Y, error, strict=True):
        inputs = {layer: x.clone().requires_grad_() for layer in ("left", "right")}
        joined = F.relu(network.left(inputs["left"])) - F.relu(network.right(inputs["right"])) + x
        F.cross_entropy(network.head(joined)[None], y[None]).backward()
        gradient = inputs[name].grad
        assert gradient is not None
        total += 0.5 * float((gradient * wrong).square().sum())
    return total / len(Y)


def test_layers_that_share_a_tensor_have_their_own_errors(network: Two, measured: Measured) -> None:
    """The same as image by image, although gradients are those of the mean over the batch."""
    widths = dict.fromkeys(("left", "right"), WIDTHS)
    options = {"activation_bits": 32, "widths": (32,), "activation_widths": widths}
    found = measured(network, X[:1], [(X, Y)], **options).activation_errors
    for name in widths:
        assert found[name] == pytest.approx({bits: by_hand(network, name, bits) for bits in WIDTHS}, rel=1e-4)
        assert found[name][2] > found[name][4] > found[name][8] > 0


def test_two_batches_have_the_mean_of_their_errors(network: Two, measured: Measured) -> None:
    options = {"activation_widths": {"left": WIDTHS}}
    once = measured(network, X[:1], [(X, Y)], **options).activation_errors["left"]
    twice = measured(network, X[:1], [(X, Y), (X, Y)], **options).activation_errors["left"]
    assert twice == pytest.approx(once, rel=1e-4)


def test_without_widths_to_choose_from_nothing_is_measured(network: Two, measured: Measured) -> None:
    assert measured(network, X[:1], [(X, Y)]).activation_errors == {}


def test_float_activations_cost_nothing(network: Two, measured: Measured) -> None:
    found = measured(network, X[:1], [(X, Y)], activation_widths={"left": (4, 32)})
    assert found.activation_errors["left"][32] == 0.0


def prepared(network: nn.Module) -> nn.Module:
    prepare(network, hwbmpq.describe(network, X[:1]))
    return assign(network, dict.fromkeys((name for name, _ in quantized_layers(network)), as_precision(8)))


def meter_of(network: nn.Module) -> ActivationErrorMeter:
    meter = ActivationErrorMeter(prepared(network), {"left": WIDTHS})
    meter.watch()
    return meter


@pytest.mark.parametrize("parts", [[slice(0, 7)], [slice(0, 3), slice(3, 7)]], ids=["whole", "accumulated"])
def test_accumulated_and_scaled_gradients_are_those_of_one_step(
    network: Two, parts: list[slice], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clipping point is that of a micro-batch; here it is the same for all."""
    monkeypatch.setattr("hwbmpq.sensitivity.activations.best_clip", lambda *_, **__: torch.tensor(1.5))
    plain = copy.deepcopy(network)
    meter = meter_of(plain)
    for _ in range(8):
        plain(X).detach()  # α comes to rest
    meter.watch()
    F.cross_entropy(plain(X), Y).backward()
    meter.add_step(len(Y))
    expected = meter.close()["left"]
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    meter.watch()
    for part in parts:
        scaler.scale(F.cross_entropy(plain(X[part]), Y[part], reduction="sum") / len(Y)).backward()
    meter.add_step(len(Y), scaler)
    assert meter.close()["left"] == pytest.approx(expected, rel=1e-4)


def test_float16_gradients_need_their_scaler(network: Two) -> None:
    meter = meter_of(network)
    meter.see("left", X, X.half().requires_grad_()).sum().backward()
    with pytest.raises(HwbmpqError, match="what the loss was scaled by"):
        meter.add_step(7)


def test_copies_and_pickles_of_a_watched_network_are_not_watched(network: Two) -> None:
    meter, counter = meter_of(network), ImageCounter(network)
    for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        F.cross_entropy(other(X), Y).backward()
    meter.add_step(7)
    assert meter.close() == {}
    assert counter.take() == 1
    F.cross_entropy(network(X), Y).backward()
    meter.add_step(7)
    assert meter.close()["left"][2] > 0
    assert counter.take() == 7


def test_evaluation_is_not_seen(network: Two) -> None:
    meter, counter = meter_of(network), ImageCounter(network)
    with torch.no_grad():
        network(X)
    meter.add_step(7)
    assert (meter.close(), counter.take()) == ({}, 1)


def test_a_forgotten_meter_leaves_the_network_alone(network: Two) -> None:
    meter_of(network)
    assert network(X).shape == (7, 3)


def test_few_steps_are_looked_at() -> None:
    assert [step for step in range(1, 400) if is_sampled(step)] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
