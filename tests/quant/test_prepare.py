"""Quantizing a network in place, switching widths, and everything users do to modules."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import hwbmpq
from hwbmpq.errors import HwbmpqError
from hwbmpq.quant import (
    InputQuantizer,
    assign,
    fake_quantize_weight,
    parameter_groups,
    prepare,
    quantized_layers,
)
from hwbmpq.values import Precision


def prepared(model: nn.Module, images: Tensor, **options: object) -> nn.Module:
    return prepare(model, hwbmpq.describe(model, images), **options)  # type: ignore[arg-type]


def precisions(model: nn.Module) -> dict[str, str]:
    return {name: str(layer.precision) for name, layer in quantized_layers(model)}


def test_ends_get_sixteen_bits_and_the_rest_the_given_precision(tiny_cnn: nn.Module, images: Tensor) -> None:
    prepared(tiny_cnn, images, precision=(2, 4))
    assert precisions(tiny_cnn) == {"0": "W16A16", "3": "W2A4", "6": "W2A4", "8": "W16A16"}


def test_ends_can_be_overridden(tiny_cnn: nn.Module, images: Tensor) -> None:
    assert set(precisions(prepared(copy.deepcopy(tiny_cnn), images, first_last_precision=None)).values()) == {
        "W4A4"
    }
    eights = prepared(tiny_cnn, images, first_last_precision=8)
    assert precisions(eights)["0"] == precisions(eights)["8"] == "W8A8"


def test_modules_parameters_attributes_hooks_and_keys_stay(tiny_cnn: nn.Module, images: Tensor) -> None:
    convolution = tiny_cnn[3]
    convolution.note = "mine"
    calls: list[int] = []
    convolution.register_forward_hook(lambda *_: calls.append(1))
    parameters, keys = dict(tiny_cnn.named_parameters()), list(tiny_cnn.state_dict())
    prepared(tiny_cnn, images)
    calls.clear()  # tracing may have run it
    tiny_cnn(images)
    assert tiny_cnn[3] is convolution
    assert isinstance(convolution, nn.Conv2d)
    assert convolution.note == "mine"
    assert calls == [1]
    assert all(dict(tiny_cnn.named_parameters())[name] is value for name, value in parameters.items())
    assert set(keys) <= set(tiny_cnn.state_dict())
    assert convolution.weight is parameters["3.weight"]


def test_a_layer_multiplies_with_the_quantized_weight_and_input(tiny_cnn: nn.Module, images: Tensor) -> None:
    prepared(tiny_cnn, images, precision=(3, 4))
    linear = tiny_cnn[6]
    values = torch.rand(5, 96)
    result = linear(values)
    weight = fake_quantize_weight(linear.weight, 3)
    quantized = linear.input_quantizer(values, 4)
    torch.testing.assert_close(result, F.linear(quantized, weight, linear.bias), rtol=0, atol=0)


def test_float_width_is_the_float_network(tiny_cnn: nn.Module, images: Tensor) -> None:
    expected = tiny_cnn.eval()(images)
    prepared(tiny_cnn, images, precision=32, first_last_precision=32)
    assert torch.equal(tiny_cnn(images), expected)


def test_sixteen_bits_are_close_to_the_float_network(tiny_cnn: nn.Module, images: Tensor) -> None:
    expected = tiny_cnn.eval()(images)
    prepared(tiny_cnn, images, precision=16)
    torch.testing.assert_close(tiny_cnn(images), expected, rtol=1e-3, atol=1e-3)


def test_the_first_layer_costs_no_backward_pass_into_the_images(tiny_cnn: nn.Module, images: Tensor) -> None:
    prepared(tiny_cnn, images, precision=4, first_last_precision=None)
    tiny_cnn(images).sum().backward()
    trained = {
        name: layer.input_quantizer.alpha.grad is not None for name, layer in quantized_layers(tiny_cnn)
    }
    assert trained == {"0": False, "3": True, "6": True, "8": True}


def test_every_trainable_parameter_gets_a_gradient(tiny_cnn: nn.Module, images: Tensor) -> None:
    """As DistributedDataParallel demands, at 16-bit ends and with float activations too."""
    for precision in (4, (4, 32), 16):
        model = prepared(copy.deepcopy(tiny_cnn), images, precision=precision)
        model(images).sum().backward()
        assert [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None] == []


class SharedInput(nn.Module):
    """Two convolutions read one tensor; a third reads what the first makes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.left = nn.Conv2d(4, 4, 1)
        self.right = nn.Conv2d(4, 4, 1)
        self.after = nn.Conv2d(4, 4, 1)
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        return self.head(F.relu(self.after(F.relu(self.left(x))) + self.right(x)))


def test_readers_of_one_tensor_share_one_quantizer_and_the_computed_tensor(images: Tensor) -> None:
    model = prepared(SharedInput(), images)
    assert model.left.input_quantizer is model.right.input_quantizer
    assert model.left.input_quantizer is not model.after.input_quantizer
    seen: list[Tensor] = []
    for layer in (model.left, model.right):
        layer.register_forward_pre_hook(lambda module, args: seen.append(module.input_quantizer(args[0], 4)))
    model(images)
    assert seen[0] is seen[1]


def test_shared_alpha_gets_the_sum_of_both_readers_gradients(images: Tensor) -> None:
    gradients = {}
    for widths in ({"left": 4, "right": 4}, {"left": 4, "right": 32}, {"left": 32, "right": 4}):
        torch.manual_seed(0)
        model = SharedInput()
        prepared(model, images, precision=32)
        quantizer = model.left.input_quantizer
        quantizer.calibration.is_complete = quantizer.calibration.has_alpha = True
        assign(model, {name: (32, width) for name, width in widths.items()})
        # A loss linear in both readers, so that gradients add up.
        hidden = F.relu(model.stem(images)).detach().requires_grad_()
        (model.left(hidden).sum() + 2 * model.right(hidden).sum()).backward()
        gradients[tuple(widths.values())] = quantizer.alpha.grad
    torch.testing.assert_close(gradients[(4, 4)], gradients[(4, 32)] + gradients[(32, 4)])


def test_assign_keeps_parameters_and_momentum(tiny_cnn: nn.Module, images: Tensor) -> None:
    prepared(tiny_cnn, images)
    optimizer = torch.optim.SGD(tiny_cnn.parameters(), lr=0.01, momentum=0.9)
    tiny_cnn(images).sum().backward()
    optimizer.step()
    momentum = {p: s["momentum_buffer"].clone() for p, s in optimizer.state.items()}
    parameters = list(tiny_cnn.parameters())
    assign(tiny_cnn, {"3": 2, "6": Precision(weight_bits=2, activation_bits=8)})
    assert precisions(tiny_cnn)["3"] == "W2A2"
    assert precisions(tiny_cnn)["6"] == "W2A8"
    assert all(a is b for a, b in zip(parameters, tiny_cnn.parameters(), strict=True))
    assert all(torch.equal(optimizer.state[p]["momentum_buffer"], m) for p, m in momentum.items())
    assert tiny_cnn[3].quantize_weight(tiny_cnn[3].weight).unique().numel() <= 3


def test_assign_takes_an_object_with_bits(tiny_cnn: nn.Module, images: Tensor) -> None:
    class Allocation:
        bits = {"3": 8}  # noqa: RUF012

    assert precisions(assign(prepared(tiny_cnn, images), Allocation()))["3"] == "W8A8"


def test_assign_checks_everything_before_it_changes_anything(tiny_cnn: nn.Module, images: Tensor) -> None:
    prepared(tiny_cnn, images)
    with pytest.raises(HwbmpqError, match=r"no quantized layer named 7; it has: 0, 3, 6, 8"):
        assign(tiny_cnn, {"3": 2, "7": 2})
    with pytest.raises(ValueError, match="weight_bits=1 is not a width: use 2 to 16, or 32 for float"):
        assign(tiny_cnn, {"3": 2, "6": 1})
    assert precisions(tiny_cnn)["3"] == "W4A4"


def test_preparing_twice_is_refused(tiny_cnn: nn.Module, images: Tensor) -> None:
    graph = hwbmpq.describe(tiny_cnn, images)
    prepare(tiny_cnn, graph)
    with pytest.raises(HwbmpqError, match="layer '0' is quantized already"):
        prepare(tiny_cnn, graph)


def test_parameter_groups_hold_each_parameter_once_and_alphas_apart(images: Tensor) -> None:
    model = prepared(SharedInput(), images)
    own, alphas = parameter_groups(model, weight_decay=0.1, alpha_weight_decay=0.2)
    assert (own["weight_decay"], alphas["weight_decay"]) == (0.1, 0.2)
    quantizers = {m for m in model.modules() if isinstance(m, InputQuantizer)}
    assert set(alphas["params"]) == {quantizer.alpha for quantizer in quantizers}
    assert sorted(map(id, own["params"] + alphas["params"])) == sorted(map(id, model.parameters()))


class StandardizedConv(nn.Conv2d):
    """Computes its weight on the way, as timm's StdConv2d does."""

    def forward(self, x: Tensor) -> Tensor:
        weight = (self.weight - self.weight.mean()) / self.weight.std()
        return F.conv2d(F.pad(x, (1, 1, 1, 1)), weight, self.bias)


class AdaptedLinear(nn.Linear):
    """A product with its own weight and one with an adapter's."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.adapter = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + F.linear(x, self.adapter)


def test_a_computed_weight_is_quantized_where_it_enters_the_product() -> None:
    model = nn.Sequential(StandardizedConv(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
    images = torch.randn(1, 3, 4, 4)
    prepare(model, hwbmpq.describe(model, images), precision=(2, 32), first_last_precision=None)
    impulse = torch.zeros(1, 3, 1, 1)
    impulse[0, 1] = 1.0  # padded to 3x3, the output is the centre column of the kernel
    response = model[0](impulse) - model[0].bias[:, None, None]
    assert response.abs().unique().numel() <= 2  # 0 and one ternary scale, up to the addition of the bias
    twin = copy.deepcopy(model)
    assert torch.equal(twin(images), model(images))


def test_an_adapter_inside_a_layer_has_a_width_of_its_own() -> None:
    model = nn.Sequential(AdaptedLinear(), nn.ReLU(), nn.Linear(4, 2))
    values = torch.randn(3, 4)
    graph = hwbmpq.describe(model, values)
    prepare(model, graph, precision=(2, 32), first_last_precision=None)
    assign(model, {"0.adapter": 4})
    adapter = dict(model.named_parameters())["0.adapter"]
    expected = F.linear(values, fake_quantize_weight(model[0].weight, 2), model[0].bias)
    torch.testing.assert_close(
        model[0](values), expected + F.linear(values, fake_quantize_weight(adapter, 4))
    )
    assert [layer.name for layer in graph] == ["0", "0.adapter", "2"]
    twin = copy.deepcopy(model)
    assert torch.equal(twin(values), model(values))


class KeywordLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, weight=self.weight, bias=self.bias)


def test_a_weight_passed_by_name_is_quantized() -> None:
    model = nn.Sequential(KeywordLinear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    values = torch.randn(3, 4)
    prepared(model, values, precision=(2, 32), first_last_precision=None)
    expected = F.linear(values, fake_quantize_weight(model[0].weight, 2), model[0].bias)
    torch.testing.assert_close(model[0](values), expected)


def test_per_channel_scales_belong_to_output_channels(tiny_cnn: nn.Module, images: Tensor) -> None:
    prepared(tiny_cnn, images, precision=(4, 32), first_last_precision=None, per_channel=True)
    for layer in (tiny_cnn[3], tiny_cnn[6]):
        expected = fake_quantize_weight(layer.weight, 4, channel_axis=0)
        assert torch.equal(layer.quantize_weight(layer.weight), expected)


def test_preparing_a_model_in_evaluation_leaves_it_there(tiny_cnn: nn.Module, images: Tensor) -> None:
    model = prepared(tiny_cnn.eval(), images)
    model(images)
    alpha = model[3].input_quantizer.alpha.clone()
    model(images * 100)
    assert torch.equal(model[3].input_quantizer.alpha, alpha)


class TwiceBeside(nn.Module):
    """``twice`` reads the network's input (or a ReLU's result) and its own result, as ``side`` does."""

    def __init__(self, *, behind_relu: bool) -> None:
        super().__init__()
        self.behind_relu = behind_relu
        self.stem, self.twice, self.side, self.head = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.behind_relu:
            x = F.relu(self.stem(x))
            return self.head(self.twice(self.twice(x)) + self.side(x))
        y = self.twice(x)
        return self.head(self.twice(y) + self.side(y))


def test_one_signed_reading_makes_a_shared_quantizer_signed() -> None:
    model = prepared(TwiceBeside(behind_relu=True), torch.randn(1, 4))
    assert model.twice.input_quantizer is model.side.input_quantizer
    assert model.side.input_quantizer.signed


def test_one_reading_of_the_networks_input_keeps_a_shared_alpha_fixed() -> None:
    model = TwiceBeside(behind_relu=False)
    graph = hwbmpq.describe(model, torch.randn(1, 4))
    twice = graph["twice"]
    assert (twice.reads_network_input, twice.is_end, len(twice.fed_by)) == (True, True, 2)
    assert not graph["side"].reads_network_input
    prepare(model, graph)
    assert not model.side.input_quantizer.alpha.requires_grad


def test_transposed_convolutions_quantize_per_channel_on_their_output_axis() -> None:
    model = nn.Sequential(nn.ConvTranspose2d(3, 5, 2, stride=2), nn.ReLU(), nn.ConvTranspose2d(5, 4, 2))
    images = torch.rand(2, 3, 4, 4)
    prepare(
        model, hwbmpq.describe(model, images), precision=(4, 32), first_last_precision=None, per_channel=True
    )
    weight = fake_quantize_weight(model[2].weight, 4, channel_axis=1)
    hidden = torch.rand(2, 5, 3, 3)
    expected = F.conv_transpose2d(hidden, weight, model[2].bias)
    torch.testing.assert_close(model[2](hidden), expected)
    assert model[2](hidden, output_size=(4, 4)).shape == (2, 4, 4, 4)


def test_parametrized_weights_are_reported_and_left_in_float() -> None:
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 2))
    graph = hwbmpq.describe(model, torch.randn(1, 4))
    assert [layer.name for layer in graph] == ["2"]
    assert graph.parameters == sum(p.numel() for p in model.parameters())
