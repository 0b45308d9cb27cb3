"""Quantities as people write them."""

import pytest

from hwbmpq import units
from hwbmpq.units import Dimension, format_quantity, parse_quantity


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("921.6 MHz", units.HERTZ, 921.6e6),
        ("2.4GHz", units.HERTZ, 2.4e9),
        ("921.6e6", units.HERTZ, 921.6e6),
        ("25.6 GB/s", units.BYTES_PER_SECOND, 25.6e9),
        ("204.8 Gbit/s", units.BYTES_PER_SECOND, 25.6e9),
        ("1 GiB/s", units.BYTES_PER_SECOND, 2**30),
        ("320 KiB", units.BYTES, 327680),
        ("2 MB", units.BYTES, 2e6),
        ("64 Mbit", units.BYTES, 8e6),
        ("1_000 B", units.BYTES, 1000),
        ("8 B/cycle", units.BYTES_PER_CYCLE, 8),
        ("10 cycles", units.CYCLES, 10),
        ("4.24 pJ/op", units.PICOJOULES_PER_OPERATION, 4.24),
        ("4.24 mW/GOP", units.PICOJOULES_PER_OPERATION, 4.24),
        ("0.33 mW/GOP", units.PICOJOULES_PER_OPERATION, 0.33),
        ("20.3125 pJ/bit", units.PICOJOULES_PER_BIT, 20.3125),
        ("5.3825 mW", units.WATTS, 0.0053825),
        ("4 TOPS", units.MACS_PER_SECOND, 2e12),
        ("2 TMAC/s", units.MACS_PER_SECOND, 2e12),
        ("45 nm", units.NANOMETRES, 45),
        ("900 mV", units.VOLTS, 0.9),
        ("1 TiB", units.BYTES, 2**40),
        ("500 fJ/MAC", units.PICOJOULES_PER_MAC, 0.5),
        ("472 GFLOPS", units.MACS_PER_SECOND, 236e9),
        ("256 bit/cycle", units.BYTES_PER_CYCLE, 32),
        ("15.5", units.PLAIN, 15.5),
    ],
)
def test_text_becomes_a_number_in_the_unit(text: str, dimension: Dimension, value: float) -> None:
    assert parse_quantity(text, dimension) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "dimension", "message"),
    [
        ("12 KB", units.BYTES, "'KB' is ambiguous: write kB \\(1000\\) or KiB \\(1024\\)"),
        ("12 GHz", units.BYTES, "'GHz' is not a unit of a quantity in B; write it like 320 KiB"),
        ("fast", units.HERTZ, "'fast' is not a quantity in Hz; write it like 921.6 MHz"),
        ("3 KiHz", units.HERTZ, "'KiHz' is not a unit"),
        ("12 kcycles", units.CYCLES, "not a unit"),
        ("1e999 Hz", units.HERTZ, "too large"),
        ("9" * 5000, units.HERTZ, "is not a quantity"),
        ("1,5 GHz", units.HERTZ, "not a unit"),
        ("", units.HERTZ, "is not a quantity"),
        ("3 MHz", units.PLAIN, "not a unit of a number"),
    ],
)
def test_wrong_text_says_what_to_write(text: str, dimension: Dimension, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_quantity(text, dimension)


def test_a_unit_can_be_demanded() -> None:
    with pytest.raises(ValueError, match=r"'480' has no unit; write it like 921.6 MHz"):
        parse_quantity("480", units.HERTZ, needs_unit=True)
    assert parse_quantity("0.5", units.PLAIN, needs_unit=True) == 0.5


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (921.6e6, "Hz", "921.6 MHz"),
        (524288, "B", "512 KiB"),
        (8e6, "B", "8 MB"),
        (4 * 2**30, "B", "4 GiB"),
        (25.6e9, "B/s", "25.6 GB/s"),
        (0.0053825, "W", "5.3825 mW"),
        (0, "W", "0 W"),
        (256, "", "256"),
        (20.3125, "pJ/bit", "20.3125 pJ/bit"),
    ],
)
def test_numbers_are_shown_as_people_say_them(value: float, unit: str, text: str) -> None:
    assert format_quantity(value, unit) == text
