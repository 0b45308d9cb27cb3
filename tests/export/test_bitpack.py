"""Dense packing of integers: the same bytes as plain big-integer arithmetic, and nothing else accepted."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwbmpq.export.packed.bitpack import PackingError, pack, packed_length, unpack

WIDTHS = range(2, 17)
CHUNK = 1 << 16  # the module's own


def top(bits: int) -> int:
    return 2 ** (bits - 1) - 1


def as_codes(values: object, bits: int) -> np.ndarray:
    return np.array(values, dtype=np.int8 if bits <= 8 else np.int16)


def random_codes(count: int, bits: int) -> np.ndarray:
    return as_codes(np.random.default_rng(bits).integers(-top(bits), top(bits) + 1, count), bits)


def slow_pack(codes: list[int], bits: int) -> bytes:
    number = sum((code + top(bits)) << (place * bits) for place, code in enumerate(codes))
    return number.to_bytes((len(codes) * bits + 7) // 8, "little")


@pytest.mark.parametrize("bits", WIDTHS)
@settings(max_examples=40)
@given(data=st.data())
def test_packing_is_that_of_one_big_integer_and_unpacking_its_opposite(
    bits: int, data: st.DataObject
) -> None:
    codes = data.draw(st.lists(st.integers(-top(bits), top(bits)), max_size=40))
    packed = pack(as_codes(codes, bits), bits)
    assert packed.tobytes() == slow_pack(codes, bits)
    found = unpack(packed, bits, len(codes))
    assert found.tolist() == codes
    assert found.dtype == (np.int8 if bits <= 8 else np.int16)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("count", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 8])
def test_nothing_happens_at_the_borders_of_chunks(bits: int, count: int) -> None:
    codes = random_codes(count, bits)
    packed = pack(codes, bits)
    assert packed.size == packed_length(count, bits) == -(-count * bits // 8)
    assert np.array_equal(unpack(packed, bits, count), codes)
    start = CHUNK - 8  # a group before the border, where a byte begins at any width
    assert packed[start * bits // 8 :][: 3 * bits].tobytes() == slow_pack(
        codes[start : start + 24].tolist(), bits
    )


@pytest.mark.parametrize("bits", WIDTHS)
def test_any_integer_type_and_layout_packs_the_same(bits: int) -> None:
    codes = random_codes(24, bits).reshape(4, 6)
    expected = pack(codes, bits).tobytes()
    for kind in (np.int16, np.int32, np.int64):
        assert pack(codes.astype(kind), bits).tobytes() == expected
    assert pack(np.asfortranarray(codes), bits).tobytes() == expected


def test_bytes_fit_wider_widths() -> None:
    assert unpack(pack(np.array([-128, 127], dtype=np.int8), 9), 9, 2).tolist() == [-128, 127]


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("sign", [-1, 1])
def test_codes_outside_of_the_range_are_refused(bits: int, sign: int) -> None:
    codes = np.zeros(20, dtype=np.int32)
    codes[13] = sign * (top(bits) + 1)
    with pytest.raises(PackingError, match=rf"outside of ±{top(bits)}, the range of {bits} bits"):
        pack(codes, bits)


@pytest.mark.parametrize("bits", WIDTHS)
def test_the_number_that_stands_for_no_code_is_refused(bits: int) -> None:
    packed = np.frombuffer((2**bits - 1 << bits).to_bytes(packed_length(9, bits), "little"), dtype=np.uint8)
    with pytest.raises(PackingError, match="outside of"):
        unpack(packed, bits, 9)


@pytest.mark.parametrize("bits", [bits for bits in WIDTHS if bits % 8])
def test_bits_after_the_last_code_must_be_zero(bits: int) -> None:
    packed = pack(as_codes([0] * 5, bits), bits)
    if 5 * bits % 8:
        packed[-1] |= 0x80
        with pytest.raises(PackingError, match="after the last code"):
            unpack(packed, bits, 5)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("extra", [-1, 1])
def test_wrong_lengths_are_refused(bits: int, extra: int) -> None:
    length = packed_length(100, bits)
    with pytest.raises(PackingError, match=f"take {length} bytes, not {length + extra}"):
        unpack(np.zeros(length + extra, dtype=np.uint8), bits, 100)


@pytest.mark.parametrize("bits", [0, 1, 17, 32])
def test_other_widths_are_refused(bits: int) -> None:
    with pytest.raises(PackingError, match=f"2 to 16 bits, not {bits}"):
        pack(np.zeros(1, dtype=np.int8), bits)
    with pytest.raises(PackingError, match=f"2 to 16 bits, not {bits}"):
        unpack(np.zeros(1, dtype=np.uint8), bits, 1)
