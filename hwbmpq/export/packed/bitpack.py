"""Integers of 2 to 16 bits, packed without gaps.

A code is stored as the unsigned number ``code + 2^(bits-1) - 1``. The numbers follow each other from the lowest bit
of the first byte on, across byte borders; the last byte is filled up with zeros. The largest unsigned number stands
for no code.

Written by hand, since numpy's ``packbits`` and ``unpackbits`` take 10 to 30 times as long. The work is done in 64-bit
words: eight numbers (four, above 8 bits) lie in a word, each in its own field of 8 (16)
bits, and are moved together by pairs, by pairs of pairs, and so on.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwbmpq.errors import HwbmpqError
from hwbmpq.values import MAX_BITS, MIN_BITS

Bytes = NDArray[np.uint8]
_Unsigned = NDArray[np.unsignedinteger[Any]]
_Words = NDArray[np.uint64]

_GROUP = 8
"""Numbers that fill whole bytes at any width."""
_CHUNK = 1 << 16
"""Numbers worked on at a time, a multiple of the group: what comes up on the way stays in the processor's cache."""
_WORD = 64


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
    for numbers, data in zip(_parts(flat, _CHUNK), _parts(packed, _CHUNK * bits // 8), strict=True):
        data[:] = _squeeze(_filled(_to_unsigned(numbers, bits), _GROUP), bits)[: data.size]
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
    codes = np.empty(count, dtype=_unsigned_type(bits))
    for numbers, part in zip(_parts(codes, _CHUNK), _parts(data, _CHUNK * bits // 8), strict=True):
        unsigned = _spread(_filled(part, bits), bits)
        if unsigned[numbers.size :].any():
            raise PackingError("the bits after the last code are not zero")
        np.subtract(_in_range(unsigned[: numbers.size], bits), numbers.dtype.type(_offset(bits)), out=numbers)
    return codes.view(np.int8 if bits <= 8 else np.int16)


def _check_bits(bits: int) -> None:
    if not MIN_BITS <= bits <= MAX_BITS:
        raise PackingError(f"codes have {MIN_BITS} to {MAX_BITS} bits, not {bits}")


def _offset(bits: int) -> int:
    return int((1 << (bits - 1)) - 1)


def _unsigned_type(bits: int) -> Any:
    return np.dtype(np.uint8 if bits <= 8 else "<u2")


def _parts(values: NDArray[Any], size: int) -> Iterator[NDArray[Any]]:
    return (values[start : start + size] for start in range(0, values.size, size))


def _filled(values: NDArray[Any], multiple: int) -> NDArray[Any]:
    """With zeros at the end, so that the size is a multiple."""
    lacking = -values.size % multiple
    return np.pad(values, (0, lacking)) if lacking else values


def _to_unsigned(codes: NDArray[np.signedinteger[Any]], bits: int) -> _Unsigned:
    # Unsigned arithmetic wraps around: what is too small becomes too large, and is found with the rest.
    unsigned = codes.view(f"u{codes.itemsize}")
    shifted = unsigned + unsigned.dtype.type(_offset(bits))
    return _in_range(shifted, bits).astype(_unsigned_type(bits), copy=False)


def _in_range(unsigned: _Unsigned, bits: int) -> _Unsigned:
    if unsigned.size and int(unsigned.max()) > 2 * _offset(bits):
        raise PackingError(f"a code is outside of ±{_offset(bits)}, the range of {bits} bits")
    return unsigned


def _squeeze(unsigned: _Unsigned, bits: int) -> Bytes:
    """Whole groups of numbers, each in one or two bytes, as packed bytes."""
    if bits in (8, 16):
        return unsigned.view(np.uint8)
    if bits == 2:
        return _squeeze_quarters(unsigned)
    words = unsigned.view("<u8")
    if bits < 8:
        return _columns(_moved_together(words, bits, 8), bits).reshape(-1)
    halves = _moved_together(words, bits, 16).reshape(-1, 2)  # 4·bits each
    low, high = halves[:, 0], halves[:, 1]
    packed = np.empty((len(halves), bits), dtype=np.uint8)
    _first_words(packed)[:] = low | high << np.uint64(4 * bits)
    packed[:, 8:] = _columns(high >> np.uint64(_WORD - 4 * bits), bits - 8)
    return packed.reshape(-1)


def _spread(packed: Bytes, bits: int) -> _Unsigned:
    """The opposite of ``_squeeze``."""
    if bits in (8, 16):
        return packed.view(_unsigned_type(bits))
    if bits == 2:
        return _spread_quarters(packed)
    groups = packed.reshape(-1, bits)
    if bits < 8:
        return _moved_apart(_joined(groups), bits, 8).astype("<u8", copy=False).view(np.uint8)
    first, second = _first_words(groups), _joined(groups[:, 8:])
    halves = np.empty((len(groups), 2), dtype=np.uint64)
    np.bitwise_and(first, np.uint64((1 << 4 * bits) - 1), out=halves[:, 0])
    halves[:, 1] = first >> np.uint64(4 * bits) | second << np.uint64(_WORD - 4 * bits)
    return _moved_apart(halves.reshape(-1), bits, 16).astype("<u8", copy=False).view("<u2")


def _squeeze_quarters(unsigned: _Unsigned) -> Bytes:
    """Four numbers of 2 bits to a byte; one product brings all four into the highest byte, without a carry."""
    product = unsigned.view("<u4") * np.uint32(1 << 24 | 1 << 18 | 1 << 12 | 1 << 6)
    return product.astype("<u4", copy=False).view(np.uint8)[3::4]


def _spread_quarters(packed: Bytes) -> _Unsigned:
    words = packed.astype("<u4")
    words *= np.uint32(1 << 12 | 1)
    words &= np.uint32(0x000F000F)
    words *= np.uint32(1 << 6 | 1)
    words &= np.uint32(0x03030303)
    return words.view(np.uint8)


def _moved_together(words: _Words, bits: int, field: int) -> _Words:
    """From numbers of ``bits`` bits at the start of fields of ``field`` bits to one number without gaps."""
    while field < _WORD:
        first = _first_of_pairs(bits, field)
        odd = words >> np.uint64(field - bits)
        odd &= first << np.uint64(bits)
        words = words & first
        words |= odd
        bits, field = 2 * bits, 2 * field
    return words


def _moved_apart(words: _Words, bits: int, field: int) -> _Words:
    """The opposite of ``_moved_together``."""
    if 2 * field < _WORD:
        words = _moved_apart(words, 2 * bits, 2 * field)
    first = _first_of_pairs(bits, field)
    odd = words << np.uint64(field - bits)
    odd &= first << np.uint64(field)
    words = words & first
    words |= odd
    return words


def _first_of_pairs(bits: int, field: int) -> np.uint64:
    """Ones where the first number of each pair of fields is."""
    return np.uint64(sum(((1 << bits) - 1) << start for start in range(0, _WORD, 2 * field)))


def _columns(words: _Words, count: int) -> Bytes:
    """The lowest ``count`` bytes of each word, copied byte by byte of all words: short rows copy slowly."""
    source = words.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)
    bytes_ = np.empty((len(words), count), dtype=np.uint8)
    for column in range(count):
        bytes_[:, column] = source[:, column]
    return bytes_


def _joined(rows: Bytes) -> _Words:
    """The opposite of ``_columns``."""
    words = np.zeros((len(rows), 8), dtype=np.uint8)
    for column in range(rows.shape[1]):
        words[:, column] = rows[:, column]
    return words.reshape(-1).view("<u8")


def _first_words(rows: Bytes) -> _Words:
    """The first eight bytes of each row, without a copy."""
    return np.ndarray(len(rows), dtype="<u8", buffer=rows, strides=(rows.strides[0],))
