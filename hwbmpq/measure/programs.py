"""The few programs by which ONNX Runtime runs the many pairs of widths."""

from dataclasses import dataclass

from hwbmpq.values import FLOAT_BITS, Precision

_BYTE, _LARGEST = 8, 16
NBITS = (2, 4, 8)
"""Weight widths that ``MatMulNBits`` has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """One way to run a layer; every pair of widths that it runs takes the same time."""

    name: str
    leaves_out: frozenset[str] = frozenset()
    """Nodes around a single layer that a chain of layers does not have, or that are counted by themselves."""


LAYOUTS = frozenset({"ReorderInput", "ReorderOutput", "Transpose"})
FLOAT = Program(name="float32", leaves_out=LAYOUTS)
_CONVERSIONS = LAYOUTS | {"QuantizeLinear", "DequantizeLinear"}
INT8 = Program(name="int8", leaves_out=_CONVERSIONS)
UINT8 = Program(name="uint8", leaves_out=_CONVERSIONS)
"""8-bit weights: where both sides use all 8 bits, signed ones would overflow on x86 without VNNI."""
INTEGER_PROGRAMS = (INT8, UINT8)
QDQ16 = Program(name="qdq16")
"""float32 between 16-bit quantizers."""
WEIGHT_ONLY = {bits: Program(name=f"nbits{bits}") for bits in NBITS}
"""Narrow weights beside float32 (``MatMulNBits``), by their width."""
PROGRAMS = {program.name: program for program in (FLOAT, INT8, UINT8, QDQ16, *WEIGHT_ONLY.values())}


def program_of(op: str, precision: Precision, *, accumulates_int32: bool = False) -> Program | None:
    """The program that runs an operation (as profiles call it) at these widths; None if there is none.

    ``accumulates_int32``: the processor adds products of bytes in 32 bits.
    """
    weight, activation = precision.weight_bits, precision.activation_bits
    if weight == activation == FLOAT_BITS:
        return FLOAT
    if weight == activation == _BYTE and not accumulates_int32:
        return UINT8
    if weight <= _BYTE and activation <= _BYTE:
        return INT8
    if weight <= _LARGEST and activation <= _LARGEST:
        return QDQ16
    if op == "linear" and activation == FLOAT_BITS and weight <= _BYTE:
        return WEIGHT_ONLY[next(bits for bits in NBITS if bits >= weight)]
    return None


def widened(precision: Precision) -> str:
    """How weights without a kernel of their own width are run, or ``""``."""
    weight, activation = precision.weight_bits, precision.activation_bits
    if weight == FLOAT_BITS or weight == activation == _BYTE:
        return ""
    if activation == FLOAT_BITS:
        kept = next((bits for bits in NBITS if bits >= weight), weight)
        return "" if kept == weight else f"weights are widened to {kept} bits"
    if max(weight, activation) <= _BYTE:
        return "weights are widened to int8"
    return "computed in float32"
