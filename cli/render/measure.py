"""Measurements drawn for a terminal."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from hwbmpq.cli.render.tables import plain_table, print_remarks
from hwbmpq.units import amount

if TYPE_CHECKING:
    from hwbmpq.hardware import HardwareProfile
    from hwbmpq.measure import Validation


def kernel_counts(layers: int, others: int) -> str:
    """What is timed, in the same words before and after."""
    return f"{layers} kernels and {others} operations between layers"


def print_kit(console: Console, path: Path, name: str) -> None:
    console.print(
        f"wrote [bold]{escape(str(path))}[/] ({path.stat().st_size / 2**20:.1f} MiB). On the device:"
    )
    console.print("  python -m pip install onnxruntime numpy")
    console.print(f"  unzip {escape(path.name)} && cd {escape(path.stem)} && python run.py")
    console.print(f"then bring results.json back:\n  hwbmpq targets import {escape(name)} results.json")


def print_measured(console: Console, profile: "HardwareProfile", *, target: str, model: str) -> None:
    record = profile.tables["layers"].measurement
    layers = record["layer_kernels"]
    timed = kernel_counts(layers, record["kernels"] - layers)
    table = escape(profile.lookup_tables[0].file)
    console.print(
        f"wrote [bold]{escape(profile.files[-1])}[/] with its table [bold]{table}[/]: {timed} timed"
    )
    print_remarks(console, profile.caveats)
    errors = ", ".join(f"{program} {error:.0%}" for program, error in record["leave_one_out_error"].items())
    if errors:
        console.print(f"a layer that was not measured is missed by, in the median: {escape(errors)}")
    if record["disturbed_rounds"] > 0:
        console.print(
            f"{record['disturbed_rounds']:.0%} of the rounds were disturbed by other work on the machine"
        )
    console.print("next:")
    console.print(f"  hwbmpq targets validate {escape(target)} --model {escape(model)}")
    integers = sorted({pair.weight.bits for pair in profile.pairs if not pair.weight.is_float})
    bits = ",".join(map(str, integers[-3:]))
    console.print(
        f"  hwbmpq plan --model {escape(model)} --target {escape(target)} --bits {bits} --budget latency=90%"
    )


def print_validation(console: Console, validation: "Validation", *, target: str) -> None:
    columns = ("~network", "widths", ">predicted", ">measured", ">ratio", ">spread", ">in table")
    table = plain_table(f"Whole networks: predicted by {target}, and measured", *columns)
    for item in validation.comparisons:
        table.add_row(
            Text(item.model),
            item.widths,
            amount(item.predicted_ms, "ms"),
            amount(item.measured_ms, "ms"),
            f"{item.ratio:.2f}",
            f"{item.spread:.0%}",
            f"{item.measured_layers}/{item.layers}",
        )
    console.print(table)
    console.print(f"mean absolute error [bold]{validation.mean_absolute_error:.1%}[/]")
    console.print(
        "[dim]measured: at the clock of the profile's measurement, as a reference kernel tells it; in table: layers "
        "that were measured themselves, the others are interpolated[/]"
    )
    print_remarks(console, validation.remarks)
