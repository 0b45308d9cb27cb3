"""QONNX files as the ``qonnx`` package reads them: the same answers, and the same costs as ours."""

import copy
import io
import random
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hwbmpq
from hwbmpq.costs import get_cost_model
from hwbmpq.errors import HwbmpqError
from hwbmpq.export import QonnxNetwork, compare
from hwbmpq.hardware import load_profile
from hwbmpq.models import load_model

pytest.importorskip("qonnx")

Exported = Any  # of conftest.py
WIDTHS = (2, 3, 4, 5, 6, 7, 8, 16)
NETWORKS = ("hwbmpq:resnet8", "hwbmpq:resnet20")


def some_images(*, batch: int = 3, channels: int = 3, size: int = 32) -> Tensor:
    return torch.randn(batch, channels, size, size, generator=torch.Generator().manual_seed(1))


def build(name: str) -> nn.Module:
    return load_model(name, num_classes=10, input_size=(3, 32, 32), seed=0).network


@pytest.fixture(scope="module", params=NETWORKS)
def resnet(request: pytest.FixtureRequest, exported: Callable[..., Exported]) -> Exported:
    """With random widths."""
    draw = random.Random(0)
    layers = hwbmpq.describe(build(request.param), some_images(batch=1))
    widths = {layer.name: (draw.choice(WIDTHS), draw.choice(WIDTHS)) for layer in layers}
    return exported(
        lambda: build(request.param), some_images(), widths=widths, per_channel=True, form="qonnx"
    )


def test_costs_are_those_that_qonnx_counts(resnet: Exported) -> None:
    found = inference_cost(resnet.graph.content)
    layers = hwbmpq.describe(resnet.network, some_images(batch=1))
    precisions = {name: layer.precision for name, layer in resnet.layers.items()}
    candidates = {name: (precision,) for name, precision in precisions.items()}
    generic = load_profile("generic")
    ours = {
        cost: get_cost_model(cost).tabulate(layers, generic, candidates).total(precisions)
        for cost in ("weight_memory", "bops")
    }
    assert found["total_mem_w_bits"] == ours["weight_memory"]
    assert found["total_bops"] == ours["bops"]
    assert found["total_macs"] == sum(layer.macs for layer in layers)
    assert found["total_mem_w_elems"] == sum(layer.parameters for layer in layers)


def inference_cost(content: bytes) -> dict[str, float]:
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.util.inference_cost import inference_cost

    with redirect_stdout(io.StringIO()):
        wrapped = ModelWrapper(onnx.load_from_string(content))
        found = inference_cost(wrapped, discount_sparsity=False)
    return found["total_cost"]  # type: ignore[no-any-return]


def test_resnets_give_the_same_answers(resnet: Exported) -> None:
    """But for activations that lie so close to a rounding boundary that the order of a sum decides.

    One of them changes an answer by some per cent where later layers have 2 bits. They change those of the network itself in
    double precision just as much.
    """
    images = some_images(batch=15)
    found = compare(resnet.network, QonnxNetwork(resnet.graph.content), [images])
    assert found.inputs == 15
    assert found.top1_agreement == 1
    with torch.no_grad():
        single = resnet.network(images)
        double = copy.deepcopy(resnet.network).double()(images.double())
    by_image = (single - double).abs().amax(1) / single.abs().max()
    assert found.median_difference <= max(1e-4, 3 * float(by_image.median()))


def test_norms_are_folded_and_every_quantizer_is_one_node(resnet: Exported) -> None:
    operators = resnet.operators()
    assert "BatchNormalization" not in operators
    assert not {"QuantizeLinear", "DequantizeLinear"} & set(operators)
    makers = {node.output[0]: node for node in resnet.proto.graph.node}
    for name, layer in resnet.layers.items():
        (product,) = resnet.products(name)
        of_input, of_weight = (makers[value] for value in product.input[:2])
        signed = layer.input_quantizer.signed
        assert settings_of(of_weight, resnet) == (layer.weight_bits, True, True)
        assert settings_of(of_input, resnet) == (layer.activation_bits, signed, signed)
        assert resnet.constants[of_weight.input[1]].size == layer.weight.shape[0]


def settings_of(node: onnx.NodeProto, exported: Exported) -> tuple[float, bool, bool]:
    """Width, sign, and whether the range is symmetric."""
    assert (node.domain, node.op_type) == ("qonnx.custom_op.general", "Quant")
    attributes = {entry.name: onnx.helper.get_attribute_value(entry) for entry in node.attribute}
    assert attributes["rounding_mode"] == b"ROUND"
    assert exported.constants[node.input[2]] == 0
    width = float(exported.constants[node.input[3]])
    return width, bool(attributes["signed"]), bool(attributes["narrow"])


class Kinds(nn.Module):
    """Kinds of layers at all widths, reading the network's input, signed and not; their outputs in a row."""

    kinds: dict[str, Callable[[], nn.Module]] = {  # noqa: RUF012
        "conv": lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1),
        "depthwise": lambda: nn.Conv2d(4, 4, 3, groups=4, bias=False),
        "tokens": lambda: nn.Linear(4, 5),
    }

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(
            {f"{kind}_{bits}": made() for bits in WIDTHS for kind, made in self.kinds.items()}
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.output_of(name, x).flatten(1) for name in self.layers], 1)

    def output_of(self, name: str, x: Tensor) -> Tensor:
        kind, bits = name.split("_")
        x = x if int(bits) % 2 else F.relu(x)
        layer = self.layers[name]
        return layer(x.flatten(2).transpose(1, 2) if kind == "tokens" else x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("per_channel", [False, True], ids=["per_tensor", "per_channel"])
def test_every_width(per_channel: bool, exported: Callable[..., Exported]) -> None:
    images = some_images(channels=4, size=6)
    widths = {f"layers.{kind}_{bits}": bits for bits in WIDTHS for kind in Kinds.kinds}
    kinds = exported(Kinds, images, widths=widths, per_channel=per_channel, form="qonnx")
    found = torch.from_numpy(QonnxNetwork(kinds.graph.content)(images.numpy()))
    with torch.no_grad():
        for name in kinds.network.layers:
            expected = kinds.network.output_of(name, images).flatten(1)
            part, found = found[:, : expected.shape[1]], found[:, expected.shape[1] :]
            assert float((part - expected).abs().max() / expected.abs().max()) <= 2e-5, name
    assert found.shape[1] == 0


def test_without_the_package_the_hint_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "qonnx.core.modelwrapper", None)
    with pytest.raises(HwbmpqError, match="qonnx package, which is not installed") as error:
        QonnxNetwork(b"")
    assert "hwbmpq[qonnx]" in (error.value.hint or "")
