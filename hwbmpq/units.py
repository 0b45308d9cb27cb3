"""Quantities as people write them (``25.6 GB/s``, ``921.6 MHz``, ``320 KiB``) and read them (``5.57 MiB``)."""

import math
import re
from dataclasses import dataclass, field

_PREFIXES = {
    "": 1.0,
    "f": 1e-15,
    "p": 1e-12,
    "n": 1e-9,
    "u": 1e-6,
    "µ": 1e-6,
    "μ": 1e-6,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
}
_BINARY_PREFIXES = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_QUANTITY = re.compile(r"([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*)", re.DOTALL)
_LONGEST = 60  # characters; a longer text is not a quantity


@dataclass(frozen=True, kw_only=True, slots=True)
class Dimension:
    """What a figure measures, and the units it may be written in."""

    unit: str
    """The unit that figures are kept in."""
    suffix: str
    """The end of keys whose bare number is in this unit: ``bandwidth_bytes_per_s``."""
    short_suffix: str = ""
    """What is left of it in keys whose value carries its unit: ``bandwidth``."""
    symbols: dict[str, float] = field(default_factory=dict)
    """Accepted symbols without prefix, as multiples of the unit."""
    prefixes: bool = True
    examples: str = ""

    @property
    def what(self) -> str:
        """As messages call it."""
        return f"quantity in {self.unit}" if self.unit else "number"


HERTZ = Dimension(unit="Hz", suffix="_hz", symbols={"Hz": 1.0}, examples="921.6 MHz")
BYTES = Dimension(
    unit="B", suffix="_bytes", symbols={"B": 1.0, "bit": 0.125}, examples="320 KiB, 2 MB, 64 Mbit"
)
BYTES_PER_SECOND = Dimension(
    unit="B/s",
    suffix="_bytes_per_s",
    symbols={"B/s": 1.0, "bit/s": 0.125},
    examples="25.6 GB/s, 1.6 GiB/s",
)
BYTES_PER_CYCLE = Dimension(
    unit="B/cycle",
    suffix="_bytes_per_cycle",
    symbols={"B/cycle": 1.0, "bit/cycle": 0.125},
    prefixes=False,
    examples="8 B/cycle",
)
CYCLES = Dimension(
    unit="cycles",
    suffix="_cycles",
    symbols={"cycle": 1.0, "cycles": 1.0},
    prefixes=False,
    examples="10 cycles",
)
PICOJOULES_PER_BIT = Dimension(
    unit="pJ/bit",
    suffix="_pj_per_bit",
    short_suffix="_per_bit",
    symbols={"J/bit": 1e12},
    examples="20.3 pJ/bit",
)
PICOJOULES_PER_OPERATION = Dimension(
    unit="pJ/op",
    suffix="_pj_per_op",
    short_suffix="_per_op",
    symbols={"J/op": 1e12, "W/GOP": 1e3},
    examples="4.24 pJ/op, 4.24 mW/GOP",
)
MACS_PER_SECOND = Dimension(
    unit="MAC/s",
    suffix="_macs_per_s",
    symbols={"MAC/s": 1.0, "OPS": 0.5, "FLOPS": 0.5},
    examples="2 TMAC/s, 4 TOPS",
)
MACS_PER_CYCLE = Dimension(
    unit="MAC/cycle", suffix="", symbols={"MAC/cycle": 1.0}, prefixes=False, examples="15.5 MAC/cycle"
)
PICOJOULES_PER_MAC = Dimension(unit="pJ/MAC", suffix="", symbols={"J/MAC": 1e12}, examples="0.3 pJ/MAC")
WATTS = Dimension(unit="W", suffix="_w", symbols={"W": 1.0}, examples="10 W, 5.4 mW")
NANOMETRES = Dimension(unit="nm", suffix="_nm", symbols={"m": 1e9}, examples="45 nm")
VOLTS = Dimension(unit="V", suffix="_v", symbols={"V": 1.0}, examples="0.9 V")
PLAIN = Dimension(unit="", suffix="", prefixes=False, examples="0.5")


_SHARE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(%?)")


def parse_share(text: str) -> float:
    """A share between 0 and 1 that people write with or without a percent sign; ``ValueError`` otherwise.

    >>> parse_share("1%"), parse_share("0.5 %"), parse_share("0.01")
    (0.01, 0.005, 0.01)
    """
    match = _SHARE.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if match is None:
        raise ValueError("write it in percent, such as 1%, or as a share, such as 0.01")
    number = float(match[1])
    if not match[2] and number >= 1:
        raise ValueError(f"write {match[1]}% for {match[1]} percent, or a share below 1")
    if match[2] and number > 100:
        raise ValueError("is more than 100%")
    return number / 100 if match[2] else number


def parse_quantity(text: str, dimension: Dimension, *, needs_unit: bool = False) -> float:
    """The number in ``dimension.unit`` that ``text`` says; ``ValueError`` with the valid forms otherwise.

    >>> parse_quantity("25.6 GB/s", BYTES_PER_SECOND)
    25600000000.0
    >>> parse_quantity("320 KiB", BYTES)
    327680.0
    """
    match = _QUANTITY.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if match is None:
        raise ValueError(f"{shown(text)} is not a {dimension.what}; write it like {dimension.examples}")
    number, unit = float(match[1].replace("_", "")), match[2].strip()
    if not unit and needs_unit and dimension.symbols:
        raise ValueError(f"{shown(text)} has no unit; write it like {dimension.examples}")
    value = number * (_factor(unit, dimension) if unit else 1.0)
    if not math.isfinite(value):
        raise ValueError(f"{shown(text)} is too large")
    return value


def _factor(unit: str, dimension: Dimension) -> float:
    for symbol, multiple in dimension.symbols.items():
        prefix = unit.removesuffix(symbol)
        if prefix == unit:
            continue
        if prefix == "K":
            raise ValueError(f"{unit!r} is ambiguous: write k{symbol} (1000) or Ki{symbol} (1024)")
        if prefix == "" or (dimension.prefixes and prefix in _PREFIXES):
            # One multiplication by the power of ten that is meant, without rounding error: 4.24 pJ must stay 4.24.
            factor = _PREFIXES[prefix] * multiple
            nearest = 10.0 ** round(math.log10(factor))
            return nearest if math.isclose(factor, nearest, rel_tol=1e-9) else factor
        if dimension.prefixes and symbol.startswith(("B", "bit")) and prefix in _BINARY_PREFIXES:
            return _BINARY_PREFIXES[prefix] * multiple
    raise ValueError(f"{shown(unit)} is not a unit of a {dimension.what}; write it like {dimension.examples}")


def format_quantity(value: float, unit: str, *, digits: int = 6) -> str:
    """A number with its unit as people say it.

    >>> format_quantity(921.6e6, "Hz"), format_quantity(524288, "B"), format_quantity(0.0053825, "W")
    ('921.6 MHz', '512 KiB', '5.3825 mW')
    """
    if unit == "B":
        for prefix, size in sorted(_BINARY_PREFIXES.items(), key=lambda item: -item[1]):
            if value >= size and (value / size * 64).is_integer() and len(f"{value / size:g}") <= 5:
                return f"{value / size:.{digits}g} {prefix}B"
    if unit in ("Hz", "B", "B/s", "W", "MAC/s"):
        for prefix in ("T", "G", "M", "k", "", "m", "u"):
            if value >= _PREFIXES[prefix]:
                return f"{value / _PREFIXES[prefix]:.{digits}g} {prefix}{unit}"
    return f"{value:.{digits}g} {unit}".rstrip()


def shown(text: object) -> str:
    """A value quoted for a message, cut if it is long."""
    quoted = repr(text)
    return quoted if len(quoted) <= _LONGEST else f"{quoted[: _LONGEST - 1]}…"


SCALES = {
    "bit": (("GiB", 8 * 2**30), ("MiB", 8 * 2**20), ("KiB", 8 * 2**10), ("B", 8), ("bit", 1)),
    "ms": (("s", 1e3), ("ms", 1), ("us", 1e-3)),
    "uJ": (("J", 1e6), ("mJ", 1e3), ("uJ", 1), ("nJ", 1e-3)),
    "bit-op": (("Gbit-op", 1e9), ("Mbit-op", 1e6), ("bit-op", 1)),
}


def scale(value: float, unit: str) -> tuple[str, float]:
    """The largest unit of which ``value`` is at least 1, and its size."""
    units = SCALES.get(unit, ((unit, 1.0),))
    return next(((name, size) for name, size in units if abs(value) >= size), units[-1])


def amount(value: float, unit: str) -> str:
    """``5.57 MiB``, ``7.70 ms``."""
    if value == 0:
        return "0"
    name, size = scale(value, unit)
    return f"{value / size:.{decimals(value / size)}f} {name}"


def decimals(largest: float) -> int:
    """Digits after the point that give a number of this size three or four in all."""
    return 3 if largest < 10 else 2 if largest < 100 else 1 if largest < 1000 else 0


_BUDGET_UNITS = {"Gbit-op": "GBOP", "Mbit-op": "MBOP", "bit-op": "BOP"}


def budget_text(value: float, unit: str) -> str:
    """``352.14KiB``: as a budget is written, a little more than ``value``, never less."""
    name, size = scale(value, unit)
    digits = max(0, 4 - len(str(int(value / size))))
    rounded = math.ceil(value / size * 10**digits) / 10**digits
    return f"{rounded:.{digits}f}{_BUDGET_UNITS.get(name, name)}"


def counted(count: int, noun: str) -> str:
    """``1 layer``, ``2 layers``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
