"""Numbers with their units, as people read them. Bytes count in powers of two: KiB, MiB."""

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
    return f"{_digits(value / size)} {name}"


def _digits(value: float) -> str:
    return f"{value:.{decimals(value)}f}"


def decimals(largest: float) -> int:
    """Digits after the point that give a number of this size three or four in all."""
    return 3 if largest < 10 else 2 if largest < 100 else 1 if largest < 1000 else 0
