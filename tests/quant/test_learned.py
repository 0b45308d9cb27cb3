"""The quantizer ``learned``: LSQ's arithmetic and gradients, changes of width, state and files."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hwbmpq
from hwbmpq.export import OnnxNetwork, QonnxNetwork, compare, onnx_graph, save_packed
from hwbmpq.quant import assign, fake_quantize_activation, parameter_groups, prepare, quantized_layers
from hwbmpq.quant.functional import largest_code
from hwbmpq.quant.learned import LearnedStepQuantizer


def quantizer_of(weight: Tensor, bits: int, axis: int | None = None) -> LearnedStepQuantizer:
    made = LearnedStepQuantizer(channel_axis=axis, name="w", like=weight)
    made.set_bits(bits)
    return made


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def prepared(model: nn.Module, images: Tensor, bits: tuple[int, int] = (3, 4)) -> nn.Module:
    layers = hwbmpq.describe(model.eval(), images)
    return prepare(model, layers, precision=bits, quantizer="learned", per_channel=True)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("axis", [None, 0])
def test_the_start_has_less_error_than_the_largest_magnitude_s_scale(bits: int, axis: int | None) -> None:
    weight = random(8, 40)
    quantizer = quantizer_of(weight, bits, axis)
    error = (quantizer(weight) - weight).square().sum()
    top = largest_code(bits, signed=True)
    peak = (weight.abs().amax(1, keepdim=True) if axis == 0 else weight.abs().amax()) / top
    plain = ((weight / peak).round() * peak - weight).square().sum()
    assert error.item() <= plain.item()
    codes, scale = quantizer.codes_and_scale(weight)
    assert torch.equal(codes * scale, quantizer(weight))
    assert float(codes.abs().max()) <= top
    assert scale.shape == ((8, 1) if axis == 0 else (1, 1))


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("axis", [None, 0])
def test_gradients_are_lsq_s(bits: int, axis: int | None) -> None:
    """Against the formula element by element (Esser et al. 2020, eq. 3 and section 2.2)."""
    weight, upstream = random(4, 10).requires_grad_(), random(4, 10, seed=1)
    quantizer = quantizer_of(weight, bits, axis)
    quantizer(weight).backward(upstream)  # type: ignore[no-untyped-call]
    top = largest_code(bits, signed=True)
    expected = torch.zeros_like(quantizer.step)
    for row in range(4):
        for column in range(10):
            step = quantizer.step[row if axis == 0 else 0, 0].item()
            v = weight[row, column].item() / step
            inside = abs(v) <= top
            slope = round(v) - v if inside else (top if v > 0 else -top)
            expected[row if axis == 0 else 0, 0] += float(upstream[row, column]) * slope
            assert float(weight.grad[row, column]) == pytest.approx(  # type: ignore[index]
                float(upstream[row, column]) if inside else 0.0
            )
    count = 10 if axis == 0 else 40
    torch.testing.assert_close(quantizer.step.grad, expected / (count * top) ** 0.5, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_clipping_point_s_gradient_is_that_of_the_step(bits: int, signed: bool) -> None:
    """α = step·Q: an SGD step of α is Q times LSQ's step of the step size."""
    values, upstream = random(2, 3, 5), random(2, 3, 5, seed=1)
    top = largest_code(bits, signed=signed)
    alpha = torch.tensor(1.3, requires_grad=True)
    out = fake_quantize_activation(values, alpha, bits, signed=signed, learns_step=True)
    out.backward(upstream)  # type: ignore[no-untyped-call]
    step = 1.3 / top
    total = 0.0
    for value, gradient in zip(values.flatten().tolist(), upstream.flatten().tolist(), strict=True):
        v = value / step
        low = -top if signed else 0
        slope = round(v) - v if low < v < top else min(max(v, low), top)
        total += gradient * slope
    lsq = total / (15 * top) ** 0.5
    assert float(alpha.grad) == pytest.approx(top * lsq, rel=1e-3, abs=1e-4)  # type: ignore[arg-type]


def test_the_values_are_pact_s_and_second_derivatives_agree_with_the_first() -> None:
    values = random(2, 3, 5)
    alpha = torch.tensor(1.0)
    assert torch.equal(
        fake_quantize_activation(values, alpha, 3, signed=True, learns_step=True),
        fake_quantize_activation(values, alpha, 3, signed=True),
    )
    found = []
    for create_graph in (False, True):
        x, a = values.clone().requires_grad_(), alpha.clone().requires_grad_()
        out = fake_quantize_activation(x, a, 3, signed=True, learns_step=True).square().sum()
        found.append(torch.autograd.grad(out, [x, a], create_graph=create_graph))
    for first, second in zip(*found, strict=True):
        torch.testing.assert_close(first, second)


def test_a_new_width_starts_from_the_least_error_and_an_old_one_stays() -> None:
    weight = random(6, 20)
    quantizer = quantizer_of(weight, 4)
    quantizer(weight)
    with torch.no_grad():
        quantizer.step.mul_(1.5)
    kept = quantizer.step.detach().clone()
    quantizer.set_bits(4)
    quantizer(weight)
    assert torch.equal(quantizer.step.detach(), kept)
    quantizer.set_bits(2)
    quantizer(weight)
    fresh = quantizer_of(weight, 2)
    fresh(weight)
    assert torch.equal(quantizer.step, fresh.step)


def test_the_clipping_point_starts_again_when_the_width_changes(tiny_cnn: nn.Module, images: Tensor) -> None:
    prepared(tiny_cnn, images, (4, 4)).train()
    for _ in range(9):
        tiny_cnn(images)
    quantizer = dict(quantized_layers(tiny_cnn))["3"].input_quantizer
    wide = quantizer.alpha.item()
    assign(tiny_cnn, {"3": (4, 2)})
    tiny_cnn(images)
    assert quantizer.alpha.item() < wide


def test_no_step_trains_at_16_bits_or_in_float(tiny_cnn: nn.Module, images: Tensor) -> None:
    prepared(tiny_cnn, images)
    steps = {name: layer.weight_quantizer.step for name, layer in quantized_layers(tiny_cnn)}
    trains = {name for name, step in steps.items() if step.requires_grad}
    assert trains == {name for name, layer in quantized_layers(tiny_cnn) if layer.weight_bits < 16}
    assert trains
    groups = parameter_groups(tiny_cnn, weight_decay=1.0, alpha_weight_decay=1.0)
    learned = groups[-1]
    assert learned["weight_decay"] == 0.0
    assert {id(p) for p in learned["params"]} == {id(step) for step in steps.values()}


def test_state_and_packed_file_keep_steps_that_the_weights_do_not_tell(
    tiny_cnn: nn.Module, images: Tensor, tmp_path: Path
) -> None:
    floats = copy.deepcopy(tiny_cnn)
    twin = prepared(copy.deepcopy(tiny_cnn), images)
    prepared(tiny_cnn, images).train()(images)
    with torch.no_grad():
        for _, layer in quantized_layers(tiny_cnn):
            layer.weight_quantizer.step.mul_(1.7)  # the top code is not used any more
    tiny_cnn.eval()
    twin.load_state_dict(tiny_cnn.state_dict())
    assert torch.equal(twin.eval()(images), tiny_cnn(images))
    path = tmp_path / "model.safetensors"
    save_packed(tiny_cnn, path, example_input=images[:1])
    loaded = hwbmpq.load(path, floats)
    assert torch.equal(loaded(images), tiny_cnn(images))
    sizes = path.stat().st_size
    save_packed(loaded, tmp_path / "again.safetensors", example_input=images[:1])
    assert (tmp_path / "again.safetensors").stat().st_size == sizes
    twin.load_state_dict(copy.deepcopy(floats.state_dict()), strict=False)


def test_a_float_checkpoint_starts_the_steps_again() -> None:
    weight = random(4, 6)
    quantizer = quantizer_of(weight, 4)
    quantizer(weight)
    quantizer.load_state_dict({})
    quantizer(10 * weight)
    fresh = quantizer_of(weight, 4)
    fresh(10 * weight)
    assert torch.equal(quantizer.step, fresh.step)


def test_training_reduces_the_error_of_a_regression() -> None:
    """Steps and weights that train beat those that are set once."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(256, 12, generator=generator)
    wanted = inputs @ torch.randn(12, 5, generator=generator)
    layer = nn.Linear(12, 5)
    quantizer = quantizer_of(layer.weight, 2, 0)
    start = (inputs @ quantizer(layer.weight).T + layer.bias - wanted).square().mean().item()
    optimizer = torch.optim.SGD([*layer.parameters(), quantizer.step], lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        loss = (inputs @ quantizer(layer.weight).T + layer.bias - wanted).square().mean()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5 * start


def test_a_checkpoint_that_is_written_after_a_change_of_width_starts_as_the_network_itself() -> None:
    weight = random(6, 20)
    quantizer = quantizer_of(weight, 4)
    quantizer(weight)
    quantizer.set_bits(2)
    resumed = quantizer_of(weight, 2)
    resumed.load_state_dict(quantizer.state_dict())
    assert torch.equal(quantizer(weight), resumed(weight))


def test_evaluation_after_a_change_of_width_places_no_clipping_point() -> None:
    images = random(4, 3, 8, 8)
    model = prepared(nn.Sequential(*(nn.Conv2d(3, 3, 3) for _ in range(3))), images, bits=(4, 4))
    model.train()
    model(images)
    (inner,) = (layer.input_quantizer for name, layer in quantized_layers(model) if name == "1")
    before = inner.alpha.detach().clone()
    assign(model, {"1": 2})
    state = model.state_dict()
    model.eval()(100 * images)
    assert torch.equal(inner.alpha.detach(), before)
    again = prepared(nn.Sequential(*(nn.Conv2d(3, 3, 3) for _ in range(3))), images, bits=(4, 4))
    assign(again, {"1": 2})
    again.load_state_dict(state)
    assert torch.equal(again.eval()(images), model(images))
    model.train()(100 * images)
    assert float(inner.alpha.detach()) > 2 * float(before)


@pytest.mark.parametrize("form", ["qdq", "int8", "qonnx"])
def test_onnx_files_give_the_same_answers_with_steps_that_training_moved(form: str) -> None:
    images = random(16, 3, 8, 8)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(288, 4),
    )
    model = prepared(network, images[:1], bits=(3, 8)).train()
    optimizer = torch.optim.SGD(parameter_groups(model, weight_decay=0, alpha_weight_decay=0), lr=0.05)
    start = model(images)
    for _ in range(3):
        model(images).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    assert not torch.allclose(model(images), start, rtol=0.05)
    graph = onnx_graph(model, images[:1], form=form, calibration=[images.numpy()])
    reader = QonnxNetwork(graph.content) if form == "qonnx" else OnnxNetwork(graph.content, threads=1)
    assert compare(model, reader, [images]).median_difference <= (0.02 if form == "int8" else 1e-5)
