"""A network at given widths as the ONNX graph that would be deployed."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hwbmpq.export import onnx_graph
from hwbmpq.graph import LayerGraph
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.measure.validation import Candidate, candidate, measured_on_int32_accumulation
from hwbmpq.quant import assign, prepare
from hwbmpq.values import Precision


def deployed_graph(
    network: nn.Module,
    graph: LayerGraph,
    widths: Mapping[str, Precision],
    example_input: Tensor,
    *,
    accumulates_int32: bool = False,
) -> bytes:
    """The graph for ONNX Runtime's integer kernels; the network is left as it was.

    Weights may be random: times do not depend on them.
    """
    quantized = copy.deepcopy(network).eval()
    prepare(quantized, graph, per_channel=True)
    assign(quantized, widths)
    with torch.no_grad():
        quantized(example_input)  # ranges of activations
    return onnx_graph(quantized, example_input, form="int8", accumulates_int32=accumulates_int32).content


def exported_candidate(
    model: Any, graph: LayerGraph, profile: HardwareProfile, precision: Precision
) -> Candidate:
    """A network that ``hwbmpq.models`` loaded, predicted and exported at one precision."""
    example = model.example_input()
    accumulates_int32 = measured_on_int32_accumulation(profile)
    return candidate(
        graph,
        profile,
        precision,
        model=model.title,
        exported=lambda widths: deployed_graph(
            model.network, graph, widths, example, accumulates_int32=accumulates_int32
        ),
    )
