"""Integers of 2 to 16 bits, packed without gaps.

A code is stored as the unsigned number ``code + 2^(bits-1) - 1``. The numbers follow each other from the lowest bit
of the first byte on, across byte borders; the last byte is filled up with zeros. The largest unsigned number does not
stand for any code.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwbmpq.errors import HwbmpqError
from hwbmpq.values import MAX_BITS, MIN_BITS

Bytes = NDArray[np.uint8]
_Unsigned = NDArray[np.unsignedinteger[Any]]

_CHUNK = 1 << 16
"""Codes handled at a time, a multiple of 8 so that each chunk fills whole bytes: intermediate arrays of single bits
stay in the processor's cache."""


class PackingError(HwbmpqError):
    """Codes that do not fit their width, or bytes that are not packed codes."""


def packed_length(count: int, bits: int) -> int:
    """Bytes that ``count`` packed codes take.

    >>> packed_length(3, 3)
    2
    """
    return (count * bits + 7) // 8


def pack(codes: NDArray[np.signedinteger[Any]], bits: int) -> Bytes:
    """Pack integers between ±(2^(bits-1) - 1), in the order of the array's elements.

    >>> pack(np.array([-3, 0, 3, 1], dtype=np.int8), 3).tolist()
    [152, 9]
    """
    _check_bits(bits)
    flat = codes.reshape(-1)
    if flat.dtype == np.int8 and bits > 8:
        flat = flat.astype(np.int16)
    packed = np.empty(packed_length(flat.size, bits), dtype=np.uint8)
    for start in range(0, flat.size, _CHUNK):
        numbers = _to_unsigned(flat[start : start + _CHUNK], bits)
        single_bits = np.unpackbits(
            numbers.view(np.uint8).reshape(len(numbers), -1), axis=1, count=bits, bitorder="little"
        )
        data = np.packbits(single_bits, bitorder="little")
        first = start * bits // 8
        packed[first : first + data.size] = data
    return packed


def unpack(data: Bytes, bits: int, count: int) -> NDArray[np.signedinteger[Any]]:
    """The ``count`` integers packed in ``data``, as int8 up to 8 bits, else int16.

    >>> unpack(np.array([152, 9], dtype=np.uint8), 3, 4).tolist()
    [-3, 0, 3, 1]
    """
    _check_bits(bits)
    if data.size != packed_length(count, bits):
        raise PackingError(
            f"{count} codes of {bits} bits take {packed_length(count, bits)} bytes, not {data.size}"
        )
    if count * bits % 8 and data[-1] >> count * bits % 8:
        raise PackingError("the bits after the last code are not zero")
    codes = np.empty(count, dtype=_unsigned_type(bits))
    for start in range(0, count, _CHUNK):
        numbers = codes[start : start + _CHUNK]
        found = np.unpackbits(data[start * bits // 8 :], count=numbers.size * bits, bitorder="little")
        padded = np.zeros((numbers.size, 8 * numbers.itemsize), dtype=np.uint8)
        padded[:, :bits] = found.reshape(-1, bits)
        unsigned = np.packbits(padded, bitorder="little").view(numbers.dtype)
        np.subtract(_in_range(unsigned, bits), numbers.dtype.type(_offset(bits)), out=numbers)
    return codes.view(np.int8 if bits <= 8 else np.int16)


def _check_bits(bits: int) -> None:
    if not MIN_BITS <= bits <= MAX_BITS:
        raise PackingError(f"codes have {MIN_BITS} to {MAX_BITS} bits, not {bits}")


def _offset(bits: int) -> int:
    return int((1 << (bits - 1)) - 1)


def _unsigned_type(bits: int) -> Any:
    return np.dtype(np.uint8 if bits <= 8 else "<u2")


def _to_unsigned(codes: NDArray[np.signedinteger[Any]], bits: int) -> _Unsigned:
    # Unsigned arithmetic wraps around: a code that is too small becomes one that is too large.
    unsigned = codes.view(f"u{codes.itemsize}")
    shifted = unsigned + unsigned.dtype.type(_offset(bits))
    return _in_range(shifted, bits).astype(_unsigned_type(bits), copy=False)


def _in_range(unsigned: _Unsigned, bits: int) -> _Unsigned:
    if unsigned.size and int(unsigned.max()) > 2 * _offset(bits):
        raise PackingError(f"a code is outside of ±{_offset(bits)}, the range of {bits} bits")
    return unsigned
