"""Networks with several inputs, named ones, and several outputs: all three ways to trace take them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hwbmpq
from hwbmpq.data.inputs import Inputs, ModelInputs
from hwbmpq.errors import HwbmpqError, TraceError
from hwbmpq.graph import describe_trace
from hwbmpq.graph.hooks import trace_with_hooks
from hwbmpq.graph.operations import Trace
from hwbmpq.graph.trace import trace_with_export, trace_with_fx


class TwoInputs(nn.Module):
    """An image and some numbers; ``bias`` comes before what is usually given by name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.side = nn.Linear(5, 4)
        self.head = nn.Linear(4, 2)

    def forward(
        self, image: Tensor, bias: Tensor | None = None, *, numbers: Tensor, scale: Tensor | None = None
    ) -> dict[str, Tensor]:
        x = F.relu(self.conv(image)).mean((2, 3)) + F.relu(self.side(numbers))
        if scale is not None:
            x = x * scale
        if bias is not None:
            x = x + bias
        return {"answer": self.head(x), "features": x}


class DictInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 4), nn.Linear(3, 4)

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.a(batch["left"]), self.b(batch["right"])


IMAGE, NUMBERS, SCALE = torch.randn(2, 3, 6, 6), torch.randn(2, 5), torch.ones(2, 4)
TRACERS = {"fx": trace_with_fx, "export": trace_with_export, "hooks": trace_with_hooks}


@pytest.mark.parametrize("name", TRACERS)
@pytest.mark.parametrize(
    "inputs",
    [
        ModelInputs.of(IMAGE, {"numbers": NUMBERS}),
        ModelInputs.of({"numbers": NUMBERS, "image": IMAGE}),
        ModelInputs.of((IMAGE,), {"scale": SCALE, "numbers": NUMBERS}),
    ],
    ids=["positional and named", "all named, in another order", "optional before required"],
)
def test_each_tracer_takes_positional_and_named_inputs(name: str, inputs: ModelInputs) -> None:
    model = TwoInputs().eval()
    with torch.no_grad():
        operations = TRACERS[name](model, inputs.part(slice(1)))
    graph = describe_trace(model, Trace(operations=tuple(operations), traced_by=name))
    assert {layer.name: (layer.macs, layer.input_shape) for layer in graph} == {
        "conv": (16 * 4 * 27, (1, 3, 6, 6)),
        "side": (20, (1, 5)),
        "head": (8, (1, 4)),
    }
    assert [layer.name for layer in graph if layer.reads_network_input] == ["conv", "side"]


@pytest.mark.parametrize("name", TRACERS)
def test_each_tracer_takes_a_dict_as_one_argument(name: str) -> None:
    model = DictInput().eval()
    inputs = ModelInputs.of(({"left": torch.randn(1, 6), "right": torch.randn(1, 3)},))
    with torch.no_grad():
        operations = TRACERS[name](model, inputs)
    graph = describe_trace(model, Trace(operations=tuple(operations), traced_by=name))
    assert {layer.name: layer.macs for layer in graph} == {"a": 24, "b": 12}


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (IMAGE, {"numbers": NUMBERS}),
        ((IMAGE, SCALE), {"numbers": NUMBERS}),
        ({"image": IMAGE, "numbers": NUMBERS}, None),
    ],
    ids=["tensor", "tuple", "dict"],
)
def test_describe_takes_arguments_and_keywords(args: Inputs, kwargs: dict[str, Any] | None) -> None:
    graph = hwbmpq.describe(TwoInputs(), args, kwargs)
    assert [layer.name for layer in graph] == ["conv", "side", "head"]
    assert graph["conv"].output_shape == (1, 4, 4, 4)  # of one sample


def test_the_old_name_of_the_example_still_works() -> None:
    with pytest.warns(DeprecationWarning, match=r"example_input=…\) is now example_args="):
        assert len(hwbmpq.describe(nn.Linear(3, 2), example_input=torch.randn(1, 3))) == 1  # type: ignore[call-arg]


def test_inputs_that_do_not_fit_forward_are_named() -> None:
    with pytest.raises(TraceError, match=r"does not run on an input of 3x6x6.*numbers"):
        hwbmpq.describe(TwoInputs(), IMAGE)


def test_inputs_without_a_tensor_are_refused() -> None:
    with pytest.raises(HwbmpqError, match="inputs of type str hold no tensor"):
        hwbmpq.describe(TwoInputs(), "image")


def test_what_belongs_to_all_samples_is_not_cut() -> None:
    inputs = ModelInputs.of((torch.zeros(4, 3), torch.zeros(7)), {"flag": True, "scale": torch.tensor(2.0)})
    one = inputs.part(slice(1))
    assert [tuple(tensor.shape) for tensor in one.tensors] == [(1, 3), (7,), ()]
    assert one.kwargs["flag"] is True
    assert (len(inputs), len(one)) == (4, 1)
