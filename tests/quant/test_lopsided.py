"""Signed inputs that are mostly positive: fewer codes below zero than above, in training and in files."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hwbmpq
from hwbmpq.export import OnnxNetwork, QonnxNetwork, compare, onnx_graph, save_packed
from hwbmpq.quant import InputQuantizer, fake_quantize_activation, prepare, quantized_layers
from hwbmpq.quant.functional import input_codes
from hwbmpq.quant.scales import best_clip, best_steps_below


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rounded(values: Tensor, bits: int, below: int) -> Tensor:
    alpha = best_clip(values, bits, signed=True, below=below)
    codes = input_codes(bits, signed=True, below=below)
    return fake_quantize_activation(values, alpha, bits, signed=True, codes=codes)


@pytest.mark.parametrize("function", [F.silu, F.gelu, F.hardswish])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_lopsided_values_lose_less_with_most_codes_above_zero(
    function: Callable[[Tensor], Tensor], bits: int
) -> None:
    values = function(3 * random(4000))
    below = best_steps_below(values, bits)
    assert 0 < below < 128
    errors = [float((rounded(values, bits, steps) - values).square().sum()) for steps in (0, below)]
    assert errors[1] < 0.8 * errors[0]


@pytest.mark.parametrize("values", [random(1000), -F.silu(3 * random(1000)), random(1000).relu()])
def test_other_values_have_as_many_codes_on_both_sides(values: Tensor) -> None:
    assert best_steps_below(values, 4) == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_left_to_the_check_of_inputs(bad: float) -> None:
    assert best_steps_below(torch.tensor([bad, 1.0, -0.1]), 4) == 0


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("below", [1, 20, 85, 127])
def test_codes_fill_the_width_and_the_top_one_is_at_the_clipping_point(bits: int, below: int) -> None:
    low, top = input_codes(bits, signed=True, below=below)
    assert low < 0 < top
    assert top - low == 2**bits - 1
    given = torch.linspace(-9, 9, 20001)
    out = fake_quantize_activation(given, torch.tensor(2.0), bits, signed=True, codes=(low, top))
    found = (out * top / 2.0).unique()
    torch.testing.assert_close(found, torch.arange(low, top + 1.0), atol=1e-4, rtol=0)


@pytest.mark.parametrize("learns_step", [False, True])
def test_gradients_are_those_of_the_clip_and_agree_with_second_derivatives(learns_step: bool) -> None:
    values, upstream, codes = random(2, 40) * 2, random(2, 40, seed=1), (-3, 12)
    results = []
    for create_graph in (False, True):
        x, alpha = values.clone().requires_grad_(), torch.tensor(1.5, requires_grad=True)
        out = fake_quantize_activation(x, alpha, 4, signed=True, learns_step=learns_step, codes=codes)
        results.append(torch.autograd.grad(out, [x, alpha], upstream, create_graph=create_graph))
    for first, second in zip(*results, strict=True):
        torch.testing.assert_close(first, second)
    lowest = 1.5 * codes[0] / codes[1]
    inside = (values > lowest) & (values < 1.5)
    torch.testing.assert_close(results[0][0], upstream * inside)
    if learns_step:
        step = 1.5 / codes[1]
        slopes = torch.where(inside, (out.detach() - values) / step, out.detach() / step)
        expected = codes[1] * (upstream * slopes).sum() / (40 * codes[1]) ** 0.5
    else:
        expected = (upstream * (values >= 1.5)).sum() + codes[0] / codes[1] * (
            upstream * (values <= lowest)
        ).sum()
    torch.testing.assert_close(results[0][1], expected, rtol=1e-4, atol=1e-5)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.SiLU(),
        nn.Conv2d(8, 8, 3),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(288, 4),
    )


def trained(bits: int, quantizer: str = "learned") -> nn.Module:
    model, images = network(), 4 * random(16, 3, 8, 8)
    layers = hwbmpq.describe(model, images[:1])
    prepare(
        model, layers, precision=(4, bits), first_last_precision=(8, 8), quantizer=quantizer, per_channel=True
    )
    model.train()(images)
    return model.eval()


def inner_input(model: nn.Module) -> InputQuantizer:
    return next(layer.input_quantizer for name, layer in quantized_layers(model) if name == "2")


def test_only_learned_steps_have_them() -> None:
    assert inner_input(trained(4)).steps_below > 0
    assert inner_input(trained(4, "paper")).steps_below == 0


def test_a_checkpoint_and_a_packed_file_keep_them(tmp_path: Path) -> None:
    model, images = trained(4), 4 * random(16, 3, 8, 8)
    twin = copy.deepcopy(model)
    inner_input(twin).calibration.steps_below = 0
    assert not torch.equal(twin(images), model(images))
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin(images), model(images))
    path = tmp_path / "model.safetensors"
    save_packed(model, path, example_input=images[:1])
    loaded = hwbmpq.load(path, network())
    assert torch.equal(loaded(images), model(images))
    assert inner_input(loaded).steps_below == inner_input(model).steps_below


# The int8 form also rounds what SiLU reads to bytes: where there are four codes, that alone moves the answers by percents.
@pytest.mark.parametrize(
    ("form", "bits"),
    [
        (form, bits)
        for form in ("qdq", "int8", "qonnx")
        for bits in (2, 3, 4, 8)
        if (form, bits) != ("int8", 2)
    ],
)
def test_onnx_files_have_a_zero_point_and_give_the_same_answers(form: str, bits: int) -> None:
    model, images = trained(bits), 4 * random(16, 3, 8, 8)
    assert inner_input(model).steps_below > 0
    graph = onnx_graph(model, images[:1], form=form, calibration=[images.numpy()])
    reader = QonnxNetwork(graph.content) if form == "qonnx" else OnnxNetwork(graph.content, threads=1)
    assert compare(model, reader, [images]).median_difference <= (0.02 if form == "int8" else 1e-5)


@pytest.mark.parametrize("codes", [(0, 15), (-7, 7), (-3, 12)])
@pytest.mark.parametrize("learns_step", [False, True])
@pytest.mark.parametrize(
    "lay_out",
    [
        lambda x: x,
        lambda x: x.contiguous(memory_format=torch.channels_last),
        lambda x: x[:, :, ::2],
        lambda x: x.transpose(0, 1),
        lambda x: x[:, :1].contiguous(memory_format=torch.channels_last),
    ],
)
def test_memory_layout_and_where_bounds_are_read_change_nothing(
    lay_out: Callable[[Tensor], Tensor],
    learns_step: bool,
    codes: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[tuple[Tensor, ...]] = []
    strides: list[tuple[int, ...]] = []
    for can_read in (True, False):  # elsewhere than on CPU bounds are tensors
        monkeypatch.setattr("hwbmpq.quant.functional._can_read", lambda _, read=can_read: read)
        for layout in (lay_out, lambda x: lay_out(x).contiguous()):
            x, alpha = random(4, 4, 6, 5).requires_grad_(), torch.tensor(1.1, requires_grad=True)
            given = layout(x)
            out = fake_quantize_activation(
                given, alpha, 4, signed=codes[0] < 0, learns_step=learns_step, codes=codes
            )
            strides.append(out.stride())
            gradients = torch.autograd.grad((out * out.detach().cos()).sum(), [x, alpha])
            found.append((out, *gradients))
    assert strides[:2] == strides[2:]  # convolutions choose their kernels by these
    for other in found[1:]:
        assert torch.equal(other[0], found[0][0])
        for gradient, expected in zip(other[1:], found[0][1:], strict=True):
            torch.testing.assert_close(gradient, expected)
