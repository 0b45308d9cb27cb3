"""Weight quantizers by name: the protocol, hooks, and one that learns."""

import copy
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hwbmpq
from hwbmpq.errors import UnknownNameError
from hwbmpq.export import OnnxNetwork, compare, onnx_graph, stored_weights, write_onnx
from hwbmpq.quant import (
    WeightQuantizer,
    assign,
    parameter_groups,
    prepare,
    quantize_weight,
    quantized_layers,
)
from hwbmpq.quant.functional import largest_code
from hwbmpq.registry import QUANTIZERS


class LearnedScale(WeightQuantizer):
    """A plug-in's scale that trains."""

    added_entries = ("scale", "_extra_state")

    def __init__(self, *, channel_axis: int | None, name: str, like: Tensor) -> None:
        super().__init__(channel_axis=channel_axis, name=name, like=like)
        shape = [like.shape[axis] if axis == channel_axis else 1 for axis in range(like.dim())]
        self.scale = nn.Parameter(torch.ones(shape, dtype=like.dtype, device=like.device))
        self.is_started = False

    def set_bits(self, bits: int) -> None:
        self.is_started = self.is_started and bits == self.bits
        super().set_bits(bits)

    def codes_and_scale(self, weight: Tensor, bits: int | None = None) -> tuple[Tensor, Tensor]:
        bits, started = bits or self.bits, self.is_started and bits in (None, self.bits)
        scale = (
            self.scale if started else 0.8 * quantize_weight(weight, bits, channel_axis=self.channel_axis)[1]
        )
        top = largest_code(bits, signed=True)
        return (weight / scale).round().clamp(-top, top), scale

    def forward(self, weight: Tensor) -> Tensor:
        if self.bits == 32:
            return weight
        if not self.is_started:
            with torch.no_grad():
                self.scale.copy_(self.codes_and_scale(weight)[1])
            self.is_started = True
        top = largest_code(self.bits, signed=True)
        steps = (weight / self.scale).clamp(-top, top)
        return (steps + (steps.round() - steps).detach()) * self.scale

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.is_started)

    def set_extra_state(self, state: Tensor) -> None:
        self.is_started = bool(state)


@pytest.fixture(autouse=True)
def plugged() -> Iterator[None]:
    QUANTIZERS.add("plugged", LearnedScale)
    yield
    QUANTIZERS.remove("plugged")


every_quantizer = pytest.mark.parametrize("quantizer", ["paper", "symmetric", "learned", "plugged"])


def prepared(model: nn.Module, images: Tensor, **options: Any) -> nn.Module:
    return prepare(model, hwbmpq.describe(model.eval(), images), **options)


def layers_of(model: nn.Module) -> dict[str, Any]:
    return dict(quantized_layers(model))


def test_an_unknown_quantizer_is_refused_before_anything_changes(tiny_cnn: nn.Module, images: Tensor) -> None:
    with pytest.raises(UnknownNameError, match="'symetric'") as error:
        prepared(tiny_cnn, images, quantizer="symetric")
    assert "symmetric" in str(error.value) + error.value.hint
    assert not layers_of(tiny_cnn)


@every_quantizer
@pytest.mark.parametrize("bits", [2, 3, 8, 16])
@pytest.mark.parametrize("per_channel", [True, False], ids=["channel", "tensor"])
def test_the_layer_multiplies_with_codes_times_scale(
    quantizer: str, bits: int, per_channel: bool, tiny_cnn: nn.Module, images: Tensor
) -> None:
    prepared(tiny_cnn, images, precision=bits, per_channel=per_channel, quantizer=quantizer)
    for layer in layers_of(tiny_cnn).values():
        multiplied = layer.weight_quantizer(layer.weight)
        codes, scale = layer.weight_quantizer.codes_and_scale(layer.weight)
        assert torch.equal(codes * scale, multiplied)
        assert float(codes.detach().abs().max()) <= largest_code(layer.weight_bits, signed=True)
        assert torch.equal(codes, codes.round())
        lengths = [
            len(layer.weight) if axis == 0 and per_channel else 1 for axis in range(layer.weight.dim())
        ]
        assert list(scale.shape) == lengths
        error = layer.weight_quantizer.rounding_error(layer.weight, layer.weight_bits)
        assert torch.equal(error, layer.weight - multiplied)


def test_the_paper_s_is_ternary_at_2_bits_and_symmetric_is_not() -> None:
    weight = torch.tensor([[0.1, -0.4, 0.5, 1.0]])
    scales = {}
    for name in ("paper", "symmetric"):
        quantizer = QUANTIZERS.get(name)(channel_axis=None, name="w", like=weight)
        quantizer.set_bits(2)
        scales[name] = float(quantizer.codes_and_scale(weight)[1])
    assert scales == pytest.approx({"paper": 1.9 / 3, "symmetric": 1.0})


@pytest.mark.parametrize("quantizer", ["paper", "symmetric"])
def test_quantizers_that_learn_nothing_leave_no_trace_in_the_state(
    quantizer: str, tiny_cnn: nn.Module, images: Tensor
) -> None:
    prepared(tiny_cnn, images, quantizer=quantizer)
    assert not [key for key in tiny_cnn.state_dict() if "weight_quantizer" in key]
    assert len(parameter_groups(tiny_cnn, weight_decay=0.1, alpha_weight_decay=0.2)) == 2


def test_what_quantizers_learn_has_a_group_of_its_own(tiny_cnn: nn.Module, images: Tensor) -> None:
    prepared(tiny_cnn, images, quantizer="plugged")
    own, alphas, scales = parameter_groups(tiny_cnn, weight_decay=0.1, alpha_weight_decay=0.2)
    layers = layers_of(tiny_cnn).values()
    assert {id(p) for p in scales["params"]} == {id(layer.weight_quantizer.scale) for layer in layers}
    assert scales["weight_decay"] == 0
    assert len(own["params"]) + len(alphas["params"]) + len(layers) == len(list(tiny_cnn.parameters()))


def test_learned_scales_train_start_anew_and_load(tiny_cnn: nn.Module, images: Tensor) -> None:
    floats = tiny_cnn.state_dict()
    prepared(tiny_cnn, images, quantizer="plugged", per_channel=True)
    twin = copy.deepcopy(tiny_cnn)
    tiny_cnn.train()(images).square().mean().backward()
    scale = tiny_cnn[3].weight_quantizer.scale
    assert bool(scale.grad.any())
    with torch.no_grad():
        scale.mul_(1.1)
    twin.load_state_dict(tiny_cnn.state_dict())
    assert torch.equal(twin.eval()(images), tiny_cnn.eval()(images))
    assign(tiny_cnn, {"3": 2})
    tiny_cnn(images)
    assert float(scale.detach().min()) > 2 * float(twin[3].weight_quantizer.scale.detach().min())
    tiny_cnn.load_state_dict(floats)  # which have no scales


@every_quantizer
@pytest.mark.parametrize("per_channel", [True, False], ids=["channel", "tensor"])
def test_stored_weights_and_onnx_hold_what_is_multiplied_with(
    quantizer: str, per_channel: bool, tiny_cnn: nn.Module, images: Tensor, tmp_path: Path
) -> None:
    prepared(tiny_cnn, images, precision=(3, 8), per_channel=per_channel, quantizer=quantizer)
    tiny_cnn.train()(images)
    tiny_cnn.eval()
    for name, stored in stored_weights(tiny_cnn, images).items():
        layer = layers_of(tiny_cnn)[name]
        assert torch.equal(stored.values(), layer.weight_quantizer(layer.weight))
    path = write_onnx(onnx_graph(tiny_cnn, images[:1]), tmp_path / "model.onnx")
    agreement = compare(tiny_cnn, OnnxNetwork(path), [images])
    assert agreement.largest_difference < 1e-4


@every_quantizer
def test_hooks_see_the_weight_and_what_is_multiplied_with(
    quantizer: str, tiny_cnn: nn.Module, images: Tensor
) -> None:
    prepared(tiny_cnn, images, quantizer=quantizer)
    layer, seen = tiny_cnn[3], []
    layer.weight_quantizer.register_forward_hook(lambda _, args, output: seen.append((args[0], output)))
    tiny_cnn(images)
    ((entered, multiplied),) = seen
    assert entered is layer.weight
    assert torch.equal(multiplied, layer.quantize_weight(layer.weight))


def test_hooks_are_neither_copied_nor_pickled(tiny_cnn: nn.Module, images: Tensor) -> None:
    prepared(tiny_cnn, images)
    tiny_cnn[3].weight_quantizer.register_forward_pre_hook(lambda *_: None)  # which pickle would refuse
    file = io.BytesIO()
    torch.save(tiny_cnn, file)
    file.seek(0)
    for twin in (copy.deepcopy(tiny_cnn), torch.load(file, weights_only=False)):
        assert not twin[3].weight_quantizer._forward_pre_hooks
        assert torch.equal(twin(images), tiny_cnn(images))
    assert len(tiny_cnn[3].weight_quantizer._forward_pre_hooks) == 1


def test_a_network_with_hooks_compiles_in_one_piece(tiny_cnn: nn.Module, images: Tensor) -> None:
    prepared(tiny_cnn, images)
    expected = tiny_cnn(images)
    torch.testing.assert_close(torch.compile(tiny_cnn, backend="eager", fullgraph=True)(images), expected)
