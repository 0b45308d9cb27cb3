"""What a tool's search leads to, and what it costs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Found:
    average_bits: float
    """The budget: memory of all weights over their number."""
    widths: dict[str, int]
    """Weight bits by layer."""
    accuracy: float
    """On the test images, of the network as the tool itself quantizes it."""


@dataclass(frozen=True, kw_only=True)
class SearchCost:
    seconds: float
    """From the float network to the widths, quantizing it included where a tool does not do one without the other."""
    peak_mib: float
    """Most memory during the search, above what the process held before."""


@dataclass(frozen=True, kw_only=True)
class Searched:
    results: list[Found]
    cost: SearchCost
    """Of the first search; later ones find memory that it has left behind."""


Search = Callable[[Sequence[float], int | None], Searched]
"""From budgets, and the width of activations (None: float), to what was found for each."""


@dataclass
class Meter:
    """Time and memory since it was made; Linux keeps the high-water mark."""

    start: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        self._before = _status("VmRSS")

    def read(self) -> SearchCost:
        return SearchCost(
            seconds=time.perf_counter() - self.start, peak_mib=(_status("VmHWM") - self._before) / 1024
        )


def _status(name: str) -> int:
    """Of this process, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
