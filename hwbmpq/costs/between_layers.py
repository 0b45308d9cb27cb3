"""What a network costs between its layers, from a table's overheads and the network's operations.

Runtimes fold norms into the layer before them and clip on the way out of it; reshapes move nothing. The rest is counted
by its elements. Layers that compute in integers hand integers to each other; where something else makes what they read or
reads what they make, a tensor is quantized or dequantized, which is counted with the layer.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from hwbmpq.costs.outside import PRODUCTS
from hwbmpq.costs.table import Candidates, candidates_of
from hwbmpq.hardware.lookup_table import LookupTable, Overhead, Overheads
from hwbmpq.hardware.schema import WidthPair
from hwbmpq.values import Layer

FREE = frozenset(
    "identity dropout dropout2d droppath flatten unflatten reshape view viewas squeeze unsqueeze contiguous detach "
    "expand expandas to float getitem getattr size split chunk unbind clone alias slice select aliasdefault".split()
)
"""Operations that move no numbers."""
NORMS = frozenset("batchnorm batchnorm1d batchnorm2d batchnorm3d batchnormact2d".split())
CLIPS = frozenset("relu relu6 clamp clip hardtanh clampmin threshold".split())
_COUNTED_AS = {
    "add": "add iadd radd sub isub rsub",
    "multiply": "mul imul rmul div truediv itruediv layerscale square pow",
    "clip": " ".join(CLIPS) + " leakyrelu prelu elu",
    "sigmoid": "sigmoid hardsigmoid tanh exp erf sqrt rsqrt",
    "silu": "silu swish mish",
    "hardswish": "hardswish",
    "gelu": "gelu quickgelu",
    "softmax": "softmax logsoftmax",
    "layernorm": "layernorm layernorm2d groupnorm rmsnorm instancenorm2d normalize",
    "batchnorm": " ".join(NORMS),
    "max_pool": "maxpool1d maxpool2d maxpool3d adaptivemaxpool2d",
    "average_pool": "avgpool1d avgpool2d avgpool3d interpolate upsample",
    "global_pool": "adaptiveavgpool1d adaptiveavgpool2d adaptiveavgpool3d mean sum amax",
    "copy": "cat concat concatenate stack pad permute transpose t swapaxes roll constantpadnd repeat pixelshuffle "
    "channelshuffle movedim",
}
COUNTED_AS = {kind: op for op, kinds in _COUNTED_AS.items() for kind in kinds.split()}
PASSES_INTEGERS = FREE | NORMS | CLIPS | frozenset({"maxpool2d"})
"""What stays in integers between two layers that do."""
_OTHERWISE = "add"


@dataclass(frozen=True, kw_only=True)
class BetweenLayers:
    """The operations of one network, priced by one table's overheads."""

    overheads: Overheads
    network: Any
    """The network's ``LayerGraph``, or its layers alone."""
    float_layers: frozenset[str] = frozenset()
    """Layers that compute in integers at no width that they may take: such as ends of 16 bits."""

    @classmethod
    def of(cls, table: LookupTable, network: Any, precisions: Candidates) -> "BetweenLayers | None":
        """None for a table that says nothing about it."""
        if table.overheads is None:
            return None
        most = table.overheads.integer_bits or 0
        float_layers = frozenset(
            layer.name
            for layer in network
            if all(max(p.weight_bits, p.activation_bits) > most for p in candidates_of(layer, precisions))
        )
        return cls(overheads=table.overheads, network=network, float_layers=float_layers)

    @property
    def is_known(self) -> bool:
        """Whether the operations are known, not only the layers."""
        return hasattr(self.network, "operations")

    @property
    def knows_products(self) -> bool:
        """Whether products of activations have a price of their own."""
        return "product" in self._prices

    @cached_property
    def _prices(self) -> dict[str, Overhead]:
        return {str(overhead.op): overhead for overhead in self.overheads.operations}

    def _price(self, op: str, elements: int) -> float:
        overhead = self._prices.get(op)
        return 0.0 if overhead is None else overhead.fixed + overhead.per_element * elements

    @cached_property
    def constant(self) -> float:
        """What does not depend on widths, for one run."""
        counted = sum(self._price(op, elements) for op, elements, _ in self._counted())
        return self.overheads.per_run + counted

    @property
    def estimated_constant(self) -> float:
        """How much of that is for operations without a time of their own."""
        return sum(self._price(op, elements) for op, elements, _ in self._guessed())

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.is_known:
            return ("operations between the layers are not counted: only the layers are known here",)
        unknown = Counter(kind for _, _, kind in self._guessed())
        found = [f"{kind} ({count})" for kind, count in unknown.items()]
        return (f"counted as additions, as no time is known: {', '.join(found)}",) if found else ()

    def _guessed(self) -> Iterator[tuple[str, int, str]]:
        """Those of the counted operations that no price is known of."""
        return (found for found in self._counted() if found[0] == _OTHERWISE != COUNTED_AS.get(found[2]))

    def _counted(self) -> Iterator[tuple[str, int, str]]:
        """Operations that take time: what they count as, their elements (or MACs), and their kind."""
        if not self.is_known:
            return
        nodes = self.network.operations.nodes
        for name, kind in ((name, nodes[name]["kind"]) for name in nodes):
            if self._is_work(name, kind):
                op = COUNTED_AS.get(kind, _OTHERWISE)
                yield op if op in self._prices else _OTHERWISE, self._elements(name), kind
        for entry in self.network.uncovered:
            if entry.macs:
                yield "product", entry.macs, entry.kind

    def _is_work(self, name: str, kind: str) -> bool:
        graph = self.network.operations
        node = graph.nodes[name]
        is_data = bool(list(graph.predecessors(name))) and node["shape"]
        if node["layer"] or not is_data or kind in FREE | PRODUCTS:
            return False
        # A layer's kernel takes in the norm and the clip that follow it.
        taken_in = {**dict.fromkeys(CLIPS, FREE | NORMS), **dict.fromkeys(NORMS, FREE)}
        return not (kind in taken_in and self._layer_before(self._source(name), taken_in[kind]))

    def _source(self, name: str) -> str:
        """The first operation that another one reads, or ""."""
        return next(iter(self.network.operations.predecessors(name)), "")

    def _layer_before(self, name: str, passed: frozenset[str]) -> str:
        """The layer's call at or before an operation, with only such kinds in between; "" if there is none."""
        nodes = self.network.operations.nodes
        while name and not nodes[name]["layer"]:
            name = self._source(name) if nodes[name]["kind"] in passed else ""
        return name

    def _elements(self, name: str) -> int:
        """Of its largest tensor: pools read more than they write."""
        graph = self.network.operations
        shapes = [graph.nodes[other]["shape"] for other in (name, *graph.predecessors(name))]
        return max(int(prod(shape)) for shape in shapes if shape)

    def boundary(self, layer: Layer, pair: WidthPair) -> float:
        """Quantizing what a layer reads and dequantizing what it makes, if it computes in integers."""
        most = self.overheads.integer_bits
        if most is None or max(pair.weight.bits, pair.activation.bits) > most or not self.is_known:
            return 0.0
        reads, makes = self._boundaries[layer.name]
        return (self._price("quantize", reads) if reads else 0.0) + (
            self._price("dequantize", makes) if makes else 0.0
        )

    @cached_property
    def _boundaries(self) -> dict[str, tuple[int, int]]:
        """By layer: elements that it has to have quantized for it, and dequantized after it."""
        graph = self.network.operations
        found = {layer.name: (0, 0) for layer in self.network}
        quantized: set[str] = set()  # readers of one tensor share one quantizer
        for name in graph:
            layer = graph.nodes[name]["layer"]
            if not layer:
                continue
            source = self._source(name)
            reads, makes = found[layer]
            maker = self._layer_before(source, PASSES_INTEGERS)
            if source and source not in quantized and not (maker and self._gives_integers(maker)):
                quantized.add(source)
                reads += prod(graph.nodes[source]["shape"])
            if self._gives_integers(name) and self._leaves_integers(name):
                makes += prod(graph.nodes[name]["shape"])
            found[layer] = (reads, makes)
        return found

    def _gives_integers(self, name: str) -> bool:
        """A linear layer on tokens gives float at once, and so does a layer that computes in it."""
        node = self.network.operations.nodes[name]
        is_on_tokens = node["kind"] == "linear" and len(node["shape"]) > 2
        return not is_on_tokens and node["layer"] not in self.float_layers

    def _leaves_integers(self, name: str) -> bool:
        """Whether something that is not a layer, or a layer in float, computes with what a layer made."""
        graph = self.network.operations
        waiting = [name]
        while waiting:
            readers = list(graph.successors(waiting.pop()))
            if not readers:
                return True  # it leaves the network
            for node in (graph.nodes[reader] for reader in readers):
                if node["layer"] in self.float_layers or not (
                    node["layer"] or node["kind"] in PASSES_INTEGERS
                ):
                    return True
            waiting += [reader for reader in readers if not graph.nodes[reader]["layer"]]
        return False
