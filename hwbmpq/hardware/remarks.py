"""What is probably a mistake in a profile, though it can be read: units that are off by a prefix, rows that nothing uses."""

from collections.abc import Iterator

from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.schema import OPS, NumberFormat, RateRow, WidthPair
from hwbmpq.units import format_quantity

_SMALLEST = {"Hz": 1e3, "B": 1.0, "B/s": 1.0, "MAC/s": 1.0}
"""By unit: what no device is below."""
_MEGA_PER_MILLI = 1e9


def remarks_on(profile: HardwareProfile) -> tuple[str, ...]:
    """Sentences about what to look at again."""
    return (*_milli_for_mega(profile), *_unused_rows(profile))


def _milli_for_mega(profile: HardwareProfile) -> Iterator[str]:
    for path, figure, dimension in profile.figures():
        smallest = _SMALLEST.get(dimension.unit, 0.0)
        if 0 < figure.value < smallest:
            said = format_quantity(figure.value, dimension.unit)
            meant = format_quantity(figure.value * _MEGA_PER_MILLI, dimension.unit)
            yield f"{path} is {said}: m is milli; did you mean {meant}?"


def _unused_rows(profile: HardwareProfile) -> Iterator[str]:
    for block, rows in (("compute", profile.compute.table), ("energy", profile.energy.table)):
        for index, row in enumerate(rows):
            ops = OPS if "*" in row.op else row.op
            if profile.pairs and not any(_fits(row, pair) for op in ops for pair in profile.pairs_for(op)):
                formats = [str(fmt) for fmt in (row.w, row.a) if fmt] or [f"computed in {row.compute}"]
                yield (
                    f"{block}.table.{index} ({'×'.join(formats)}): precisions lists no such pair for these layers, so that "
                    "nothing uses the row"
                )


def _fits(row: RateRow, pair: WidthPair) -> bool:
    return (
        _same(row.w, pair.weight)
        and _same(row.a, pair.activation)
        and (row.compute is None or row.compute.name == pair.compute)
    )


def _same(asked: NumberFormat | None, has: NumberFormat) -> bool:
    """As cost models match rows: int8 and uint8 are alike, fp16 and bf16 too."""
    return asked is None or (asked.bits, asked.is_float) == (has.bits, has.is_float)
