"""What all methods share: the network stays as it was, batches are gone through once, errors say where."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hwbmpq
from hwbmpq.errors import HwbmpqError, NonFiniteError, UnknownNameError
from hwbmpq.quant import InputQuantizer, QuantizedLayer, prepare
from hwbmpq.sensitivity import OUR_METHODS, measure_sensitivity, methods, register
from hwbmpq.sensitivity.measure import SensitivityInputs, run_steps
from hwbmpq.values import Precision, Sensitivity

Measured = Callable[..., Sensitivity]
every_method = pytest.mark.parametrize("method", OUR_METHODS)


@pytest.fixture
def batch(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return images, labels


def hooks_of(network: nn.Module) -> int:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    return sum(len(getattr(module, kind)) for module in network.modules() for kind in kinds)


@every_method
def test_state_and_modes_stay(measured: Measured, tiny_cnn: nn.Module, batch: Any, method: str) -> None:
    tiny_cnn.train()
    tiny_cnn[1].eval()
    tiny_cnn[3].weight.requires_grad_(False)
    state = copy.deepcopy(tiny_cnn.state_dict())
    measured(tiny_cnn, batch[0], [batch], method=method)
    assert {name: value.tolist() for name, value in tiny_cnn.state_dict().items()} == {
        name: value.tolist() for name, value in state.items()
    }
    assert tiny_cnn.training
    assert not tiny_cnn[1].training
    assert [p.requires_grad for p in tiny_cnn.parameters()].count(False) == 1


@every_method
def test_no_hook_gradient_or_quantizer_is_left(
    measured: Measured, tiny_cnn: nn.Module, batch: Any, method: str
) -> None:
    measured(tiny_cnn, batch[0], [batch], method=method)
    assert hooks_of(tiny_cnn) == 0
    assert all(parameter.grad is None for parameter in tiny_cnn.parameters())
    assert not any(isinstance(m, (QuantizedLayer, InputQuantizer)) for m in tiny_cnn.modules())
    assert "weight_quantizer" not in tiny_cnn[0]._modules


@every_method
def test_the_random_numbers_of_the_program_stay(
    measured: Measured, tiny_cnn: nn.Module, batch: Any, method: str
) -> None:
    before = torch.get_rng_state()
    measured(tiny_cnn, batch[0], [batch], method=method)
    assert torch.equal(torch.get_rng_state(), before)


@every_method
def test_layers_come_in_order_with_finite_floats(
    measured: Measured, tiny_cnn: nn.Module, batch: Any, method: str
) -> None:
    found = measured(tiny_cnn, batch[0], [batch], method=method)
    assert list(found.scores) == ["0", "3", "6", "8"]
    numbers = [*found.scores.values(), *(e for errors in found.errors.values() for e in errors.values())]
    assert all(type(number) is float and math.isfinite(number) for number in numbers)


@pytest.mark.parametrize("activation_bits", [4, 16, 32])
def test_the_same_batch_twice_changes_nothing(
    measured: Measured, tiny_cnn: nn.Module, batch: Any, activation_bits: int
) -> None:
    once = measured(tiny_cnn, batch[0], [batch], activation_bits=activation_bits)
    twice = measured(tiny_cnn, batch[0], [batch, batch], activation_bits=activation_bits)
    assert twice.scores == pytest.approx(once.scores, rel=1e-4)
    for name, errors in once.errors.items():
        assert twice.errors[name] == pytest.approx(errors, rel=1e-4)


def test_a_generator_of_more_batches_than_calibrate_will_do(
    measured: Measured, tiny_cnn: nn.Module, batch: Any
) -> None:
    done: list[int] = []
    measured(tiny_cnn, batch[0], (batch for _ in range(11)), on_batch=done.append)
    assert done == list(range(1, 12))


def test_only_quantizers_learn_from_the_batches(tiny_cnn: nn.Module, batch: Any) -> None:
    layers = tuple(hwbmpq.describe(tiny_cnn, batch[0]))
    precisions = {layer.name: Precision(weight_bits=8, activation_bits=4) for layer in layers}
    measurement = SensitivityInputs(
        network=tiny_cnn,
        layers=layers,
        batches=[batch, (batch[0].clone(), batch[1])],
        precisions=precisions,
        widths={layer.name: (8,) for layer in layers},
    )
    network = measurement.quantized_copy(precisions)
    list(run_steps(measurement, network))
    quantizers = [module for module in network.modules() if isinstance(module, InputQuantizer)]
    assert [quantizer.calibration.batches for quantizer in quantizers] == [2] * 4
    assert torch.equal(network[1].running_mean, tiny_cnn[1].running_mean)


def test_frozen_layers_have_scores_too(measured: Measured, tiny_cnn: nn.Module, batch: Any) -> None:
    free = measured(tiny_cnn, batch[0], [batch])
    assert measured(tiny_cnn.requires_grad_(False), batch[0], [batch]).scores == free.scores


def test_a_caller_without_gradients_gets_the_same(
    measured: Measured, tiny_cnn: nn.Module, batch: Any
) -> None:
    expected = measured(tiny_cnn, batch[0], [batch])
    with torch.no_grad():
        assert measured(tiny_cnn, batch[0], [batch]) == expected


def test_a_network_that_is_quantized_already_is_measured_as_it_is(
    measured: Measured, tiny_cnn: nn.Module, batch: Any
) -> None:
    expected = measured(tiny_cnn, batch[0], [batch], per_channel=True)
    prepare(tiny_cnn, hwbmpq.describe(tiny_cnn, batch[0]), precision=2, per_channel=True)
    assert measured(tiny_cnn, batch[0], [batch]).scores == pytest.approx(expected.scores)


def test_channels_of_their_own_have_smaller_errors(
    measured: Measured, tiny_cnn: nn.Module, batch: Any
) -> None:
    with torch.no_grad():
        tiny_cnn[3].weight.mul_(torch.logspace(0, 2, 6).view(6, 1, 1, 1))
    whole = measured(tiny_cnn, batch[0], [batch], method="weight_error").errors["3"]
    apart = measured(tiny_cnn, batch[0], [batch], method="weight_error", per_channel=True).errors["3"]
    assert apart[4] < whole[4]


def test_float64_networks_take_float32_images(measured: Measured, tiny_cnn: nn.Module, batch: Any) -> None:
    found = measured(tiny_cnn.double(), batch[0].double(), [batch], activation_bits=32)
    assert found.scores["3"] > 0


@pytest.mark.parametrize("method", ["activation_density", "enbg", "hessian_trace"])
def test_missing_data_names_the_methods_that_need_none(
    measured: Measured, tiny_cnn: nn.Module, images: Tensor, method: str
) -> None:
    with pytest.raises(HwbmpqError, match=f"'{method}' needs labelled images") as raised:
        measured(tiny_cnn, images, None, method=method)
    assert raised.value.hint.endswith("uniform, weight_error")


@pytest.mark.parametrize("method", ["activation_density", "enbg", "hessian_trace"])
def test_no_batch_at_all_is_an_error(
    measured: Measured, tiny_cnn: nn.Module, images: Tensor, method: str
) -> None:
    with pytest.raises(HwbmpqError, match="there are no images"):
        measured(tiny_cnn, images, [], method=method)


def test_a_loss_that_is_no_number_names_the_batch(
    measured: Measured, tiny_cnn: nn.Module, batch: Any
) -> None:
    bad = (torch.full_like(batch[0], math.nan), batch[1])
    with pytest.raises(NonFiniteError, match="batch 1: the loss is nan"):
        measured(tiny_cnn, batch[0], [batch, bad], activation_bits=32)


class InfiniteSlope(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).abs().sqrt()


def test_a_gradient_that_is_no_number_names_layer_and_batch(measured: Measured) -> None:
    images, labels = torch.zeros(2, 3), torch.tensor([0, 1])
    with pytest.raises(NonFiniteError, match="batch 0: the gradient of layer 'layer' holds"):
        measured(InfiniteSlope(), images, [(images, labels)], activation_bits=32)


def test_infinite_weights_name_the_layer(measured: Measured, tiny_cnn: nn.Module, batch: Any) -> None:
    with torch.no_grad():
        tiny_cnn[3].weight[0] = math.inf
    with pytest.raises(NonFiniteError, match="layer '3'"):
        measured(tiny_cnn, batch[0], None, method="weight_error")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x, y + 3), "batch 0 has the label 7, but the network has 5 outputs"),
        (lambda x, y: (x, y - 1), "batch 0 has the label -1"),
        (
            lambda x, y: (x, y.float()),
            "batch 0: 4 images need as many whole numbers as labels, not torch.float32",
        ),
        (lambda x, y: (x, y[:2]), r"batch 0: 4 images .* of shape \(2,\)"),
        (lambda x, y: (x[:0], y[:0]), "batch 0: 0 images"),
        (lambda x, y: (x[:, :, :4], y), r"batch 0: the network cannot take images of shape \(4, 3, 4, 8\)"),
        (lambda x, y: x, "batch 0 is not a pair of tensors"),
        (lambda x, y: (x, y.tolist()), "batch 0 is not a pair of tensors"),
    ],
    ids="high negative float short empty size images-only list".split(),
)
def test_a_bad_batch_is_one_sentence(
    measured: Measured, tiny_cnn: nn.Module, batch: Any, change: Any, message: str
) -> None:
    with pytest.raises(HwbmpqError, match=message):
        measured(tiny_cnn, batch[0], [change(*batch)])


def test_a_network_that_does_not_classify_is_refused(measured: Measured, batch: Any) -> None:
    with pytest.raises(HwbmpqError, match=r"returns shape \(4, 2, 8, 8\) for 4 labels"):
        measured(nn.Sequential(nn.Conv2d(3, 2, 1)), batch[0], [batch])


@pytest.mark.parametrize(
    ("precisions", "widths", "message"),
    [
        ({}, {"0": (4, 8)}, "no precision is given for layer '0'"),
        ({"0": 8}, {}, "no weight widths are given for layer '0'"),
        ({"0": 8}, {"0": (4, 17)}, "layer '0': 17 is not a weight width"),
    ],
    ids=["precision", "widths", "no-width"],
)
def test_incomplete_requests_name_the_layer(
    tiny_cnn: nn.Module, batch: Any, precisions: Any, widths: Any, message: str
) -> None:
    layers = hwbmpq.describe(tiny_cnn, batch[0])
    with pytest.raises(HwbmpqError, match=message):
        measure_sensitivity(tiny_cnn, layers, [batch], precisions=precisions, widths=widths)


def test_layers_of_another_network_are_refused(tiny_cnn: nn.Module, batch: Any) -> None:
    layers = hwbmpq.describe(tiny_cnn, batch[0])
    given = {layer.name: Precision(weight_bits=8, activation_bits=8) for layer in layers}
    widths = {layer.name: (4, 8) for layer in layers}
    with pytest.raises(HwbmpqError, match="not those of this network"):
        measure_sensitivity(nn.Flatten(), layers, [batch], precisions=given, widths=widths)


def test_an_unknown_method_lists_the_known(measured: Measured, tiny_cnn: nn.Module, images: Tensor) -> None:
    with pytest.raises(
        UnknownNameError,
        match="known: activation_density, divergence, enbg, hessian_trace, uniform, weight_error",
    ):
        measured(tiny_cnn, images, None, method="magic")


def test_our_methods_are_the_registered_ones() -> None:
    assert tuple(methods()) == OUR_METHODS


def test_a_name_cannot_be_taken_twice() -> None:
    methods()
    with pytest.raises(HwbmpqError, match=r"'enbg' is already registered by hwbmpq"):
        register("enbg", needs_data=False)(lambda measurement: Sensitivity(method="enbg", scores={}))


def test_uniform_scores_are_one(measured: Measured, tiny_cnn: nn.Module, images: Tensor) -> None:
    found = measured(tiny_cnn, images, None, method="uniform")
    assert set(found.scores.values()) == {1.0}
    assert found.errors == {}
