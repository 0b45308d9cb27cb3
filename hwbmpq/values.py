"""Plain values that pass between the parts of hwbmpq. No torch here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

Shape = tuple[int, ...]

FLOAT_BITS = 32
"""The width that means "left in floating point"."""

MIN_BITS, MAX_BITS = 2, 16
"""Narrowest and widest integer that the quantizers offer."""

EMBEDDING = "embedding"
"""The kind of a layer that looks values up in a table."""


def is_width(bits: object) -> bool:
    """Whether ``bits`` is an integer width that the quantizers offer, or 32 for float."""
    return isinstance(bits, int) and (MIN_BITS <= bits <= MAX_BITS or bits == FLOAT_BITS)


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Precision:
    """The widths of one layer: its weights, and the input that it reads."""

    weight_bits: int
    activation_bits: int

    def __post_init__(self) -> None:
        for name in ("weight_bits", "activation_bits"):
            if not is_width(getattr(self, name)):
                raise ValueError(
                    f"{name}={getattr(self, name)!r} is not a width: use {MIN_BITS} to {MAX_BITS}, "
                    f"or {FLOAT_BITS} for float"
                )

    def __str__(self) -> str:
        return f"W{self.weight_bits}A{self.activation_bits}"

    @classmethod
    def parse(cls, text: str) -> "Precision":
        """Read what ``str`` wrote; ``ValueError`` if it is something else.

        >>> Precision.parse("W4A8").activation_bits
        8
        """
        weight, _, activation = text.removeprefix("W").partition("A")
        return cls(weight_bits=int(weight), activation_bits=int(activation))


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One weighted operation of a network, named by its module's dotted path.

    A weight that is not that of a convolution, linear or embedding module has the path of its parameter:
    ``gru.weight_ih_l0``.

    Shapes carry the batch axis, which is 1. A layer that runs several times (``calls``) is one
    layer: ``macs`` adds up over the calls, shapes are those of the first; ``every_call`` has them all.
    """

    name: str
    kind: str
    """``conv1d`` … ``conv3d``, ``conv_transpose1d`` … ``conv_transpose3d``, ``linear`` or ``embedding``."""
    weight_shape: tuple[int, ...]
    parameters: int
    """Weights it owns, biases apart; 0 if an earlier layer owns the shared tensor."""
    bias_parameters: int
    macs: int
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] | str = ()
    """As the module has it: numbers, or ``same`` or ``valid``."""
    dilation: tuple[int, ...] = ()
    groups: int = 1
    calls: int = 1
    reads: tuple[str, ...] = ()
    """The tensors it reads, each named by the operation that made it."""
    fed_by: tuple[str, ...] = ()
    """Nearest layers, joins (``add``, ``cat`` …) or inputs upstream."""
    feeds: tuple[str, ...] = ()
    """Nearest layers, joins or outputs downstream."""
    input_signed: bool = True
    """Whether its input can be negative, that is, no ReLU-like function stands before it."""
    reads_network_input: bool = False
    """Whether it works on the network's input itself, not on an activation."""
    is_end: bool = False
    """First or last layer of the network, which stays at 16 bits by default.

    A network can have several of either: parallel stems, several heads.
    """
    shares_weight_with: str = ""
    weight_only: bool = False
    """Only its weight is quantized: what it reads stays in float."""
    call_shapes: tuple[tuple[Shape, Shape], ...] = ()
    """Input and output of every call, if they are not all alike."""
    scales: int = 1
    """Scales that its weight is stored with; 0 if an earlier layer owns the shared tensor."""
    float_bits: int = FLOAT_BITS
    """The width that its weight is stored at if it stays in float: 16 in a half-precision network."""
    scale_axis: int = 0
    """The axis of its weight that has a scale for each index, if there is more than one scale."""

    @property
    def every_call(self) -> tuple[tuple[Shape, Shape], ...]:
        """Input and output shape of every call."""
        return self.call_shapes or ((self.input_shape, self.output_shape),) * self.calls

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.groups == self.in_channels

    @property
    def is_transposed(self) -> bool:
        """Whether it is a transposed convolution, which scatters its input."""
        return self.kind.startswith("conv_transpose")

    @property
    def weight_elements(self) -> int:
        """Size of its weight tensor, shared or not."""
        return prod(self.weight_shape)


TIE_POLICIES = {
    "input": "a downsample layer gets the width of the layer that feeds it (BMPQ)",
    "sibling": "a downsample layer gets the width of the first layer beside it (HAWQ)",
    "none": "only shared weights are tied",
}
DEFAULT_TIE = "input"


@dataclass(frozen=True, kw_only=True, slots=True)
class TieGroup:
    """Layers that must share one ``Precision``, and why."""

    layers: tuple[str, ...]
    reason: str


UNCOVERED_REASONS = {
    "norm": "scales and shifts of normalisation layers",
    "bias": "added after the product",
    "embedding": "rows change in place (max_norm), or have sparse gradients",
    "activation product": "both factors are activations",
    "functional weight": "computed before the product, or a layer's, used elsewhere too",
    "never runs": "not reached by this forward pass",
    "other parameter": "not the weight of a convolution or linear layer",
}
"""Why something stays in float."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Uncovered:
    """Parameters or multiply-accumulates that stay in float, and why."""

    name: str
    kind: str
    reason: str
    parameters: int = 0
    macs: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Unquantized:
    """What stays in float, all places of one reason together."""

    reason: str
    why: str
    places: int
    parameters: int
    macs: int


OVERHEAD = ("file header", "graph")
"""What files hold for themselves, which no device stores."""
CLIPPING = "clipping points"
"""What input quantizers store; a network in float has none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredState:
    """Something that is stored beside the layers' weights, whatever their widths."""

    name: str
    label: str
    """``biases``, ``norms``, ``clipping points`` or ``other tensors in float``."""
    bits: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTensor:
    """An activation that occupies memory, from the step that makes it to the last one that reads it.

    Operations that can work in place (a norm, a ReLU, a reshape with no other reader before it) share
    the tensor of what they read.
    """

    name: str
    elements: int
    made_at: int
    last_read_at: int
    readers: tuple[str, ...] = ()
    """Layers that read it, directly or through operations without weights."""
    feeds_addition: bool = False
    leaves: bool = False
    """Whether it reaches the network's output without another layer or addition on the way."""
    read_in_float: bool = False
    """Whether something reads it that computes in float: a weight-only layer, or a product of two activations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """The execution order, and what is in memory meanwhile. Steps are positions in ``steps``."""

    steps: tuple[str, ...]
    """What is computed at each step: a layer's or an operation's name."""
    tensors: tuple[StoredTensor, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sensitivity:
    """How much each layer needs its bits, as measured by a ``method``."""

    method: str
    scores: Mapping[str, float]
    """By layer name; higher means it needs more bits."""
    errors: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """By layer name and weight width: what quantizing the weights so is expected to cost."""
    remarks: tuple[str, ...] = ()
    """What to know before believing them."""
    activation_errors: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """By layer name and activation width: what quantizing the layer's input so is expected to cost; of layers that have
    several such widths to choose from."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "scores": dict(self.scores),
            "errors": _with_text_keys(self.errors),
            "remarks": list(self.remarks),
            "activation_errors": _with_text_keys(self.activation_errors),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Sensitivity":
        """What ``to_dict`` wrote, in this version or before there were errors of activations."""
        errors, activation_errors = (
            {
                layer: {int(bits): error for bits, error in by_bits.items()}
                for layer, by_bits in content.get(kind, {}).items()
            }
            for kind in ("errors", "activation_errors")
        )
        return cls(
            method=content["method"],
            scores=content["scores"],
            errors=errors,
            remarks=tuple(content["remarks"]),
            activation_errors=activation_errors,
        )


def _with_text_keys(errors: Mapping[str, Mapping[int, float]]) -> dict[str, dict[str, float]]:
    return {layer: {str(bits): error for bits, error in by_bits.items()} for layer, by_bits in errors.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """What tells how good a network is at its task, as files and reports know it."""

    name: str = "accuracy"
    higher_is_better: bool = True
    is_share: bool = True
    """Whether it is a share between 0 and 1, shown in percent."""

    @property
    def key(self) -> str:
        """What files call it, after ``test_`` or ``validation_``."""
        return "accuracy" if self.name == "accuracy" else "metric"

    def text(self, value: float) -> str:
        return f"{value:.2%}" if self.is_share else f"{value:.4g}"

    def change(self, value: float) -> str:
        """A difference, with its sign."""
        return f"{value:+.2%}" if self.is_share else f"{value:+.4g}"
