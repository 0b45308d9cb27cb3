"""The integers behind a quantized network's weights."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune

import hwbmpq
from hwbmpq.errors import HwbmpqError
from hwbmpq.export import stored_weights
from hwbmpq.quant import assign, prepare, quantized_layers

IMAGE = torch.zeros(1, 3, 8, 8)


def prepared(model: nn.Module, images: Tensor, **options: object) -> nn.Module:
    return prepare(model, hwbmpq.describe(model, images), **options)  # type: ignore[arg-type]


class Standardised(nn.Conv2d):
    """Computes its weight on the way, as timm's StdConv2d does."""

    def forward(self, x: Tensor) -> Tensor:
        weight = (self.weight - self.weight.mean()) / self.weight.std()
        return self._conv_forward(x, weight, self.bias)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("bits", range(2, 17))
def test_codes_times_scale_are_the_quantized_weight(
    tiny_cnn: nn.Module, images: Tensor, bits: int, per_channel: bool
) -> None:
    prepared(tiny_cnn, images, precision=bits, first_last_precision=None, per_channel=per_channel)
    found = stored_weights(tiny_cnn, images)
    assert list(found) == ["0", "3", "6", "8"]
    for name, layer in quantized_layers(tiny_cnn):
        stored = found[name]
        assert torch.equal(stored.codes * stored.scale, layer.quantize_weight(layer.weight))
        assert stored.codes.dtype == (torch.int8 if bits <= 8 else torch.int16)
        assert (stored.bits, stored.channel_axis) == (bits, 0 if per_channel else None)
        assert stored.scale.numel() == (layer.weight.shape[0] if per_channel else 1)
        assert not stored.is_computed


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("bits", range(2, 17))
def test_quantizing_the_stored_values_again_gives_the_same_codes_and_scales(
    bits: int, per_channel: bool
) -> None:
    for seed in range(4):
        layer = nn.Linear(16, 64, bias=False)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(64, 16, generator=torch.Generator().manual_seed(seed)))
            layer.weight[3] = 0
        model = nn.Sequential(layer)
        prepared(
            model, torch.zeros(1, 16), precision=bits, first_last_precision=None, per_channel=per_channel
        )
        first = stored_weights(model, torch.zeros(1, 16))["0"]
        layer.weight.data = first.values()
        second = stored_weights(model, torch.zeros(1, 16))["0"]
        assert torch.equal(first.codes, second.codes)
        assert torch.equal(first.scale, second.scale)
        assert torch.equal(layer.quantize_weight(layer.weight), first.values())


def test_a_network_of_plain_layers_is_not_run(tiny_cnn: nn.Module, images: Tensor) -> None:
    prepared(tiny_cnn, images)
    assert stored_weights(tiny_cnn, torch.zeros(1))  # no network could run on this


def test_layers_in_float_are_left_out(tiny_cnn: nn.Module, images: Tensor) -> None:
    prepared(tiny_cnn, images, precision=4)
    assign(tiny_cnn, {"3": (32, 4), "6": (4, 32)})
    assert list(stored_weights(tiny_cnn, images)) == ["0", "6", "8"]


@pytest.mark.parametrize("bits", [2, 3, 8, 16])
def test_a_weight_computed_on_the_way_is_found(bits: int) -> None:
    model = nn.Sequential(Standardised(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
    prepared(model, IMAGE, precision=bits, first_last_precision=None)
    found = stored_weights(model, IMAGE)
    weight = (model[0].weight - model[0].weight.mean()) / model[0].weight.std()
    assert found["0"].is_computed
    assert not found["2"].is_computed
    assert torch.equal(found["0"].values(), model[0].quantize_weight(weight))


def test_a_pruned_weight_is_computed(tiny_cnn: nn.Module, images: Tensor) -> None:
    prepared(tiny_cnn, images)
    prune.l1_unstructured(tiny_cnn[6], "weight", amount=0.5)
    stored = stored_weights(tiny_cnn, images)["6"]
    assert stored.is_computed
    assert torch.equal(stored.values(), tiny_cnn[6].quantize_weight(tiny_cnn[6].weight))
    assert (stored.codes == 0).float().mean() >= 0.5


def test_the_network_is_left_as_it_was() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x + 0 * torch.rand(())

    model = nn.Sequential(Standardised(3, 4, 3), nn.BatchNorm2d(4), Counting(), nn.ReLU(), nn.Conv2d(4, 2, 1))
    prepared(model, IMAGE)
    model.train()
    model[1].eval()
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    watch = model[0].weight_quantizer.register_forward_pre_hook(lambda *_: None)
    random = torch.get_rng_state()
    stored_weights(model, torch.rand(1, 3, 8, 8, generator=torch.Generator()))
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert list(model[0].weight_quantizer._forward_pre_hooks) == [watch.id]
    assert not model[0].weight_quantizer._forward_hooks
    assert model[0].activation_bits == 16
    assert not model[0].input_quantizer.calibration.has_range


def test_a_layer_that_runs_twice_has_one_weight() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Standardised(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(F.relu(self.layer(x)))

    found = stored_weights(prepared(Twice(), IMAGE), IMAGE)
    assert list(found) == ["layer"]


def test_a_layer_with_several_weights_is_refused() -> None:
    class Adapted(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight) + F.linear(x, 0.5 * self.weight)

    model = prepared(nn.Sequential(Adapted(3, 3)), torch.ones(1, 3))
    with pytest.raises(HwbmpqError, match=r"layer '0' .Adapted. multiplied with 2 weights"):
        stored_weights(model, torch.ones(1, 3))


def test_a_layer_that_does_not_run_is_refused() -> None:
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Standardised(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) if len(x) == 1 else x

    model = prepared(Sometimes(), IMAGE)
    with pytest.raises(HwbmpqError, match="multiplied with no weights"):
        stored_weights(model, IMAGE.repeat(2, 1, 1, 1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("bits", range(2, 17))
def test_other_precisions_store_what_the_layer_multiplies_with(dtype: torch.dtype, bits: int) -> None:
    model = nn.Sequential(nn.Linear(32, 32))
    prepared(model, torch.ones(1, 32), precision=bits, first_last_precision=None, per_channel=True)
    model.to(dtype)
    stored = stored_weights(model, torch.ones(1, 32))["0"]
    expected = model[0].quantize_weight(model[0].weight)
    assert torch.equal(stored.values().to(dtype), expected)
    model[0].weight.data = expected
    again = stored_weights(model, torch.ones(1, 32))["0"]
    assert torch.equal(again.codes, stored.codes)
    assert torch.equal(again.scale, stored.scale)


def test_infinite_weights_are_refused() -> None:
    model = prepared(nn.Sequential(nn.Linear(3, 3)), torch.ones(1, 3))
    model[0].weight.data[0, 0] = torch.inf
    with pytest.raises(HwbmpqError, match="layer '0' holds infinite or NaN weights"):
        stored_weights(model, torch.ones(1, 3))
