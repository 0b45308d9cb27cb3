"""What is on the device, line by line: as planned, and as the packed file has it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hwbmpq.costs.stored import WIDER
from hwbmpq.report.values import RunFacts
from hwbmpq.values import OVERHEAD


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageLine:
    label: str
    planned_bytes: int | None
    actual_bytes: int | None = None
    """In the file, if there is one."""
    is_total: bool = False


def storage_lines(stored: Mapping[str, int], packed: Mapping[str, Any] | None) -> tuple[StorageLine, ...]:
    """From a plan's stored bits, or from the account of a file: the parts, their sum, the file's overhead, the file.

    What the device stores beyond the file is planned, and not in the file.
    """
    if packed is None:
        parts = [StorageLine(label=label, planned_bytes=-(-bits // 8)) for label, bits in stored.items()]
        return (*parts, _total("on the device", parts)) if parts else ()
    found = [
        StorageLine(
            label=line["label"], planned_bytes=line["predicted_bytes"], actual_bytes=line["actual_bytes"]
        )
        for line in packed["lines"]
    ]
    parts = [
        line for line in found if line.label not in OVERHEAD and (line.planned_bytes or line.actual_bytes)
    ]
    overhead = [line for line in found if line.label in OVERHEAD]
    wider = [StorageLine(label=WIDER, planned_bytes=stored[WIDER] // 8)] if WIDER in stored else []
    on_device = _total("on the device", [*parts, *wider])
    return (*parts, *wider, on_device, *overhead, _total("file", [*parts, *overhead]))


def bytes_on_device(facts: RunFacts, weight_bits: Mapping[str, int]) -> int | None:
    """What the run's device stores of the network at these widths; None if its memory is not counted so."""
    table = facts.tables.get("memory")
    if table is None or table.model != "stored_memory":
        return None
    chosen = {
        name: next((option for option in options if option.weight_bits == weight_bits.get(name)), None)
        for name, options in facts.choices.items()
    }
    known = {name: option for name, option in chosen.items() if option is not None}
    return int(table.total(known)) // 8 if len(known) == len(chosen) else None


def _total(label: str, lines: list[StorageLine]) -> StorageLine:
    actual = [line.actual_bytes for line in lines if line.actual_bytes is not None]
    planned = sum(line.planned_bytes or 0 for line in lines)
    return StorageLine(
        label=label, planned_bytes=planned, actual_bytes=sum(actual) if actual else None, is_total=True
    )
