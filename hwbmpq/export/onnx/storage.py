"""Which ONNX type holds integers of a width."""

import onnx_ir as ir

_SIGNED = {2: ir.DataType.INT2, 4: ir.DataType.INT4, 8: ir.DataType.INT8, 16: ir.DataType.INT16}
_UNSIGNED = {2: ir.DataType.UINT2, 4: ir.DataType.UINT4, 8: ir.DataType.UINT8, 16: ir.DataType.UINT16}
TWO_BIT_OPSET = 25
"""The first with 2-bit integers."""


def stored_width(bits: int) -> int:
    """The width of the ONNX integers that hold ``bits``: ONNX has 2, 4, 8 and 16.

    >>> [stored_width(bits) for bits in (2, 3, 5, 16)]
    [2, 4, 8, 16]
    """
    return next(width for width in _SIGNED if width >= bits)


def storage_type(bits: int, *, signed: bool) -> ir.DataType:
    return (_SIGNED if signed else _UNSIGNED)[stored_width(bits)]
