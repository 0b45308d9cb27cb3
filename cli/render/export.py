"""Files that were written, drawn for a terminal."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import hwbmpq
from hwbmpq.cli.console import Console
from hwbmpq.cli.render.tables import in_bytes, plain_table
from hwbmpq.units import amount, counted
from hwbmpq.values import OVERHEAD

if TYPE_CHECKING:
    from hwbmpq.export import Agreement, SizeAccount, Timing

_NO_FASTER = 1.05
"""Within what such measurements can tell."""
_WIDE = 96
"""Columns of a terminal that has room for every figure."""


def print_size(console: Console, account: "SizeAccount", *, wider: int = 0) -> None:
    """The bytes of a file line by line, next to what was predicted; what the device stores apart from the file's own.

    ``wider``: bytes that only the device takes, since it stores some widths as wider ones.
    """
    device = account.on_device
    table = plain_table("What is on the device", "", ">predicted", ">in the file", ">difference")
    overhead = [line for line in account.lines if line.label in OVERHEAD]
    for line in account.lines:
        if line not in overhead and (line.predicted_bytes or line.actual_bytes):
            table.add_row(line.label, *_cells(line.predicted_bytes, line.actual_bytes or 0))
    if wider:
        table.add_row(hwbmpq.costs.stored.WIDER, in_bytes(wider), "", f"-{in_bytes(wider)}")
    table.add_section()
    table.add_row(
        device.label, *_cells(device.predicted_bytes + wider, device.actual_bytes or 0), style="bold"
    )
    for line in overhead:
        table.add_row(line.label, *_cells(line.predicted_bytes, line.actual_bytes or 0))
    table.add_section()
    table.add_row("file", *_cells(account.predicted_bytes, account.actual_bytes or 0), style="bold")
    console.print(table)


def _cells(predicted: int, actual: int) -> tuple[str, str, str]:
    difference = actual - predicted
    sign = "-" if difference < 0 else "+"
    return (
        in_bytes(predicted) if predicted else "",
        in_bytes(actual),
        f"{sign}{in_bytes(abs(difference))}" if difference else "",
    )


def print_agreement(console: Console, agreement: "Agreement") -> None:
    same = (
        ""
        if agreement.top1_agreement is None
        else f"; the same answer for {agreement.top1_agreement:.2%} of them"
    )
    console.print(
        f"compared with the network on {counted(agreement.inputs, 'image')}: median difference "
        f"{agreement.median_difference:.2g} of the outputs' range, largest {agreement.largest_difference:.2g}{same}"
    )


def print_timings(console: Console, timings: Mapping[str, "Timing"], *, threads: int) -> None:
    """Variants of one network side by side; the first is what the others are compared with."""
    first = next(iter(timings.values()))
    # What fits: size and speed matter most.
    headings = ["median ms", "speed", "memory", "file"]
    if console.width >= _WIDE:
        headings[2:2] = ["p90", "p99", "per s"]
    title = f"ONNX Runtime, {counted(threads, 'thread')}, {counted(first.batch, 'image')} at a time"
    table = plain_table(title, "", *(f">{heading}" for heading in headings))
    for name, timing in timings.items():
        memory = timing.peak_memory_bytes
        cells = {
            "median ms": f"{timing.median_ms:.2f}",
            "speed": f"{first.median_ms / timing.median_ms:.2f}x",
            "p90": f"{timing.p90_ms:.2f}",
            "p99": f"{timing.p99_ms:.2f}",
            "per s": f"{timing.images_per_second:,.1f}",
            "memory": "?" if memory is None else in_bytes(memory),
            "file": in_bytes(timing.file_bytes),
        }
        table.add_row(name, *(cells[heading] for heading in headings))
    console.print(table)
    for line in _findings(timings):
        console.print(line)


def _findings(timings: Mapping[str, "Timing"]) -> list[str]:
    """What the numbers mean on this machine."""
    reference, *others = timings.items()
    name, best = min(others, key=lambda item: item[1].median_ms)
    speed = reference[1].median_ms / best.median_ms
    if speed > _NO_FASTER:
        found = [f"fastest: {name}, {speed:.2f} times as fast as float here"]
    else:
        found = [
            "[yellow]no variant is faster than float here: on this machine fewer bits buy size, not time[/]"
        ]
    if name != others[0][0]:
        found.append(
            "as the file stands, ONNX Runtime unpacks its weights at each run; with the session option "
            "session.disable_quant_qdq=1 it does so once, when it loads the file"
        )
    return found


def print_budget(console: Console, predicted: Mapping[str, Any] | None, timing: "Timing") -> None:
    """Prediction and budget of a run beside what its network took."""
    if predicted is None:
        return
    budget = predicted["budget"]
    least = "at least " if predicted.get("is_lower_bound") else ""
    line = f"predicted {least}{amount(predicted['total'], 'ms')}, measured {amount(timing.median_ms, 'ms')}"
    if budget is None:
        console.print(f"{line} on integer kernels")
    elif timing.median_ms <= budget:
        console.print(f"{line} on integer kernels: [green]within the budget of {amount(budget, 'ms')}[/]")
    else:
        # What would have been predicted within it, had the prediction been wrong by as much.
        lower = budget * predicted["total"] / timing.median_ms
        console.print(
            f"{line} on integer kernels: [yellow]over the budget of {amount(budget, 'ms')}[/]; to be sure, plan for less: "
            f"--budget latency={lower:.3g}ms"
        )
