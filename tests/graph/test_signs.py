"""Unsigned quantizers only where no negative value can arrive, checked on real forward passes."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hwbmpq
from hwbmpq.data.torchvision_import import import_timm
from hwbmpq.graph import describe_trace
from hwbmpq.graph.hooks import trace_with_hooks
from hwbmpq.graph.operations import Trace
from hwbmpq.graph.trace import trace_with_export, trace_with_fx


def _in_place(x: Tensor) -> Tensor:
    x.sub_(0.5)
    return x


def _overwritten(x: Tensor) -> Tensor:
    x[:, ::2] = -1.0
    return x


def _changed_view(x: Tensor) -> Tensor:
    x[:, ::2].mul_(-1.0)
    return x


CASES = {
    "relu": (F.relu, False),
    "relu6": (F.relu6, False),
    "sigmoid": (torch.sigmoid, False),
    "softmax": (lambda x: x.softmax(-1), False),
    "clamped at zero": (lambda x: x.clamp(min=0), False),
    "clamped between": (lambda x: torch.clamp(x, 0, 6), False),
    "pooled relu": (lambda x: F.max_pool1d(F.relu(x), 1), False),
    "sum of relus": (lambda x: F.relu(x) + F.relu(-x), False),
    "padded relu": (lambda x: F.pad(F.relu(x), (0, 0)), False),
    "relu times two": (lambda x: F.relu(x) * 2, False),
    "hardtanh from zero": (nn.Hardtanh(0, 6), False),
    "halves of a relu swapped": (lambda x: torch.cat(F.relu(x).chunk(2, -1)[::-1], -1), False),
    "hardtanh": (nn.Hardtanh(-1, 1), True),
    "leaky relu": (nn.LeakyReLU(), True),
    "elu": (nn.ELU(), True),
    "hardswish": (nn.Hardswish(), True),
    "minus one times relu": (lambda x: -1 * F.relu(x), True),
    "clamped above only": (lambda x: torch.clamp(x, None, 6), True),
    "clamped above by name": (lambda x: x.clamp(max=6), True),
    "relu changed in place": (lambda x: _in_place(F.relu(x)), True),
    "relu with a changed view": (lambda x: _changed_view(F.relu(x)), True),
    "clamped below zero": (lambda x: x.clamp(min=-1), True),
    "silu": (F.silu, True),
    "gelu": (F.gelu, True),
    "tanh": (torch.tanh, True),
    "relu minus relu": (lambda x: F.relu(x) - F.relu(-x), True),
    "relu minus one": (lambda x: F.relu(x) + -1, True),
    "relu times minus one": (lambda x: F.relu(x) * -1, True),
    "relu plus raw": (lambda x: F.relu(x) + x, True),
    "padded with minus one": (lambda x: F.pad(F.relu(x), (0, 0), value=-1.0), True),
    "negated relu": (lambda x: -F.relu(x), True),
}


class Between(nn.Module):
    def __init__(self, function: object) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.function(self.first(x)))  # type: ignore[operator]


@pytest.mark.parametrize("tracer", [trace_with_fx, trace_with_export, trace_with_hooks])
@pytest.mark.parametrize(("function", "signed"), CASES.values(), ids=CASES.keys())
def test_sign_after(function: object, signed: bool, tracer: object) -> None:
    model = Between(function).eval()
    with torch.no_grad():
        operations = tracer(model, torch.randn(1, 4))  # type: ignore[operator]
    graph = describe_trace(model, Trace(operations=tuple(operations), traced_by=""))
    assert graph["second"].input_signed is signed


def test_a_tensor_overwritten_in_part_counts_as_signed() -> None:
    graph = hwbmpq.describe(Between(lambda x: _overwritten(F.relu(x))), torch.randn(1, 4))
    assert graph.traced_by != "fx"  # which has no item assignment
    assert graph["second"].input_signed


@pytest.mark.parametrize(
    "name",
    ["resnet18", "mobilenetv3_small_050", "repvgg_a0", "vit_tiny_patch16_224", "regnety_002", "ghostnet_050"],
)
def test_no_unsigned_layer_ever_sees_a_negative_value(name: str) -> None:
    model = import_timm().create_model(name, num_classes=10).eval()
    graph = hwbmpq.describe(model, torch.randn(1, 3, 224, 224))
    lowest: dict[str, float] = {}
    for layer in graph:
        model.get_submodule(layer.name).register_forward_pre_hook(
            lambda _, inputs, name=layer.name: lowest.update({name: float(inputs[0].min())})
        )
    with torch.no_grad():
        model(torch.randn(2, 3, 224, 224))
    assert {
        layer.name: lowest[layer.name] for layer in graph if not layer.input_signed and lowest[layer.name] < 0
    } == {}
