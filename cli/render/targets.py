"""Hardware profiles and measurements drawn for a terminal, and as plain data."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import hwbmpq
from hwbmpq.cli.console import Console, Text, escape
from hwbmpq.cli.render.tables import plain_table, print_remarks, print_table
from hwbmpq.units import amount, counted

if TYPE_CHECKING:
    from hwbmpq.hardware import HardwareProfile
    from hwbmpq.hardware.load import Listing
    from hwbmpq.hardware.schema import Figure, LookupTableRef
    from hwbmpq.measure import Validation

_WIDE, _ROOM_FOR_ALL, _ROOM_FOR_MOST = 110, 78, 68


def print_listings(console: Console, listings: Sequence["Listing"]) -> None:
    """All profiles, two lines each."""
    # Rather no column than one whose numbers are cut.
    left_out = 0 if console.width >= _ROOM_FOR_ALL else 1 if console.width >= _ROOM_FOR_MOST else 2
    pairs = ["flash\nram", "latency\nenergy"][left_out:]
    table = plain_table("Hardware profiles", "name", "class", "weights\nactivations", *pairs, ">figures")
    table.columns[0].min_width = max((len(listing.name) + 2 for listing in listings), default=0)
    table.columns[-1].min_width = len("25/25/50")
    for listing in listings:
        name = listing.name + ("" if _is_shipped(listing.path) else " *")
        if listing.profile is None:
            table.add_row(Text(name), Text("broken", style="red"))
        else:
            cells = _listing_cells(name, listing.profile, with_names=console.width >= _WIDE)
            table.add_row(*map(Text, [*cells[:3], *cells[3 + left_out :]]), _shares(listing.profile))
    console.print(table)
    console.print(
        "[dim]flash, ram: the memories that hold weights and activations. figures: % measured / % said (data sheets, "
        "papers, derived) / % doubtful (uncertain, assumed). * yours[/]"
    )
    for listing in listings:
        if listing.error is not None:
            console.print(
                f"[red]{escape(listing.name)}[/] cannot be used: hwbmpq targets check {escape(quote(str(listing.path)))}"
            )


def _class(profile: "HardwareProfile") -> str:
    return "none" if profile.device_class == "abstract" else profile.device_class


def _listing_cells(name: str, profile: "HardwareProfile", *, with_names: bool) -> list[str]:
    modes = f"\n{counted(len(profile.modes), 'mode')}" if profile.modes else ""
    widths = [[pair.weight.name for pair in profile.pairs], [pair.activation.name for pair in profile.pairs]]
    memories = [_memory(profile, role, with_name=with_names) for role in ("weights", "activations")]
    models = [profile.cost_models.get(quantity) for quantity in ("latency", "energy")]
    pairs = [map(_widths, widths), memories, ["-" if choice is None else choice.model for choice in models]]
    return [name + modes, _class(profile), *map("\n".join, pairs)]


def _shares(profile: "HardwareProfile") -> Text:
    shares = figure_shares(profile)
    text = "/".join(f"{100 * share:.0f}" for share in shares.values())
    return Text(text, style="yellow" if shares["doubtful"] else "")


def _is_shipped(path: Path) -> bool:
    return path.parent.resolve() == hwbmpq.hardware.shipped_folder().resolve()


def _widths(names: Iterable[str]) -> str:
    """``2 4 8 fp16``: integers by their width, floats by name; ``2-8`` for a run."""
    formats = sorted(set(names))
    integers = sorted({int(name.lstrip("uint")) for name in formats if "int" in name})
    runs: list[list[int]] = []
    for width in integers:
        if runs and width == runs[-1][-1] + 1:
            runs[-1].append(width)
        else:
            runs.append([width])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else " ".join(map(str, run)) for run in runs]
    return " ".join([*parts, *(name for name in formats if "int" not in name)])


def _memory(profile: "HardwareProfile", role: str, *, with_name: bool) -> str:
    levels = [level for level in profile.memory if role in level.holds]
    if not levels:
        return "-"
    size = levels[-1].size_bytes
    text = hwbmpq.hardware.format_quantity(size.value, "B", digits=3) if size else "?"
    return f"{levels[-1].name} {text}" if with_name else text


def figure_shares(profile: "HardwareProfile") -> dict[str, float]:
    """Shares of a profile's figures (lookup tables count as one each) that are measured, said or doubtful."""
    origins: list[Figure | LookupTableRef] = [figure for _, figure, _ in profile.figures()]
    origins += profile.lookup_tables
    if not origins:
        return {"measured": 0.0, "said": 0.0, "doubtful": 0.0}
    measured = sum(item.kind == "measured" for item in origins) / len(origins)
    doubtful = sum(item.is_doubtful for item in origins) / len(origins)
    return {"measured": measured, "said": 1 - measured - doubtful, "doubtful": doubtful}


def listing_dict(listing: "Listing") -> dict[str, Any]:
    if listing.profile is None:
        problems = [str(problem) for problem in listing.error.problems] if listing.error else []
        return {"name": listing.name, "path": str(listing.path), "problems": problems}
    profile = listing.profile
    return {
        "name": listing.name,
        "path": str(listing.path),
        "class": profile.device_class,
        "title": profile.title,
        "pairs": [[pair.weight.name, pair.activation.name] for pair in profile.pairs],
        "modes": list(profile.modes),
        "cost_models": {name: choice.model for name, choice in profile.cost_models.items()},
        "figures": figure_shares(profile),
    }


def print_head(console: Console, profile: "HardwareProfile") -> None:
    """What the device is, and what to beware of."""
    console.print(f"[bold]{escape(profile.target)}[/] ({_class(profile)}): {escape(profile.title)}")
    print_remarks(console, [*profile.caveats, *hwbmpq.hardware.remarks_on(profile)])
    console.print()


def print_profile(console: Console, profile: "HardwareProfile") -> None:
    """One profile: what it runs, every figure with its origin, and what to beware of."""
    print_head(console, profile)
    _print_widths(console, profile)
    _print_figures(console, profile)
    sources = plain_table("Sources", "id", "kind", "~what")
    for name, source in profile.sources.items():
        where = " ".join(filter(None, [source.url, source.commit and f"at {source.commit[:12]}"]))
        text = Text(source.title)
        for line in filter(None, [where, source.note]):
            text.append(f"\n{line}", style="dim")
        sources.add_row(name, source.kind, text)
    if profile.sources:
        console.print(sources)
    choices = ", ".join(f"{name} by {choice.model}" for name, choice in profile.cost_models.items())
    console.print(f"costs: {escape(choices) or 'none chosen'}")
    if profile.budgets:
        console.print(f"default budgets: {escape(', '.join(f'{k} {v}' for k, v in profile.budgets.items()))}")
    if profile.modes:
        modes = ", ".join(f"{profile.name}@{mode}" for mode in profile.modes)
        console.print(f"modes: {escape(modes)}")
    console.print()


def _print_widths(console: Console, profile: "HardwareProfile") -> None:
    if profile.precisions.pairs is None:
        weights = ", ".join(fmt.name for fmt in profile.precisions.weights)
        activations = ", ".join(fmt.name for fmt in profile.precisions.activations)
        console.print(f"weights {weights} with activations {activations}, in any combination")
    else:
        columns = ("~weights", "~activations", "~computed in", "~kernel", "~layers")
        table = plain_table("Widths that run together", *columns)
        for pair in profile.pairs:
            style = "" if pair.kernel == "vendor" else "yellow"
            kernel = {"vendor": "exists", "user": "you write it", "none": "none: storage only"}[pair.kernel]
            ops = ", ".join(pair.ops) or "all"
            table.add_row(
                pair.weight.name, pair.activation.name, pair.compute, Text(kernel, style=style), ops
            )
        console.print(table)
    own = {bits for pair in profile.pairs for bits in (pair.weight.bits, pair.activation.bits)}
    promoted = [f"{w} as {target}" for w, target in profile.precisions.promote.items() if w not in own]
    if promoted:
        console.print(f"widths without a kernel are stored and run wider: {', '.join(promoted)}")
    console.print(f"first and last layer: {hwbmpq.hardware.first_last_precision(profile)}")
    for level in profile.memory:
        holds = ", ".join(level.holds) or "nothing that is named"
        console.print(f"memory {escape(level.name)}{' (on chip)' if level.on_chip else ''} holds {holds}")
    if profile.compute.units > 1:
        console.print(f"{profile.compute.units} compute units side by side")
    console.print()


def _print_figures(console: Console, profile: "HardwareProfile") -> None:
    table = plain_table("Figures", "figure", ">value", "kind", "~source", "~note")
    for path, figure, dimension in profile.figures():
        value = hwbmpq.hardware.format_quantity(figure.value, dimension.unit)
        style = "yellow" if figure.is_doubtful else ""
        kind = Text(figure.kind or "", style=style)
        table.add_row(
            Text(figure_name(profile, path, dimension.suffix)),
            value,
            kind,
            ", ".join(figure.src),
            Text(figure.note or "", style="dim"),
        )
    for ref in profile.lookup_tables:
        lut = profile.tables[ref.id]
        table.add_row(
            f"lookup table {ref.id}",
            f"{len(lut.entries)} layers",
            ref.kind or "",
            ", ".join(ref.src),
            Text(f"{lut.device}; {lut.runtime}; {lut.unit}, batch {lut.batch}; else {ref.miss}", style="dim"),
        )
    console.print(table)


def figure_name(profile: "HardwareProfile", path: str, suffix: str = "") -> str:
    """``memory.dram.bandwidth``, and ``conv2d 3x3 int8`` for a row of a table."""
    block, _, rest = path.partition(".table.")
    if not rest:
        return path.removesuffix(suffix)
    row = getattr(profile, block).table[int(rest.partition(".")[0])]
    kernel = "x".join(map(str, row.kernel_size)) if row.kernel_size else ""
    widths = "×".join(str(fmt) for fmt in (row.w, row.a) if fmt) or (str(row.compute) if row.compute else "")
    ops = "any layer" if "*" in row.op else ", ".join(row.op)
    return " ".join(filter(None, [ops, kernel, widths]))


def profile_dict(profile: "HardwareProfile") -> dict[str, Any]:
    return {
        "target": profile.target,
        "files": list(profile.files),
        "profile": profile.model_dump(mode="json", by_alias=True, exclude_none=True),
    }


def print_check(console: Console, file: str, profile: "HardwareProfile", remarks: Sequence[str]) -> None:
    """A file without problems, and what it cannot answer."""
    counts = [
        counted(len(profile.pairs), "width pair"),
        counted(len(list(profile.figures())), "figure"),
        *([counted(len(profile.modes), "mode")] if profile.modes else []),
    ]
    console.print(f"[green]ok[/] {escape(file)}: {', '.join(counts)}")
    print_remarks(console, remarks)


def kernel_counts(layers: int, others: int) -> str:
    """What is timed, in the same words before and after."""
    return f"{layers} kernels and {others} operations between layers"


def print_kit(console: Console, path: Path, name: str) -> None:
    console.print(
        f"wrote [bold]{escape(str(path))}[/] ({path.stat().st_size / 2**20:.1f} MiB). On the device:"
    )
    console.print("  python -m pip install onnxruntime numpy")
    console.print(f"  unzip {escape(path.name)} && cd {escape(path.stem)} && python run.py")
    console.print(
        f"then bring results.json back:\n  hwbmpq targets import {escape(quote(name))} results.json"
    )


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
    console.print(f"  hwbmpq targets validate {escape(quote(target))} --model {escape(quote(model))}")
    integers = sorted({pair.weight.bits for pair in profile.pairs if not pair.weight.is_float})
    bits = ",".join(map(str, integers[-3:]))
    console.print(
        f"  hwbmpq plan --model {escape(quote(model))} --target {escape(quote(target))} --bits {bits} --budget latency=90%"
    )


def print_validation(console: Console, validation: "Validation", *, target: str) -> None:
    columns = ("~network", "widths", ">predicted", ">measured", ">ratio", ">spread", ">in table")
    rows = (
        (
            Text(item.model),
            item.widths,
            amount(item.predicted_ms, "ms"),
            amount(item.measured_ms, "ms"),
            f"{item.ratio:.2f}",
            f"{item.spread:.0%}",
            f"{item.measured_layers}/{item.layers}",
        )
        for item in validation.comparisons
    )
    print_table(console, f"Whole networks: predicted by {target}, and measured", columns, rows)
    console.print(f"mean absolute error [bold]{validation.mean_absolute_error:.1%}[/]")
    console.print(
        "[dim]measured: at the clock of the profile's measurement, as a reference kernel tells it; in table: layers "
        "that were measured themselves, the others are interpolated[/]"
    )
    print_remarks(console, validation.remarks)
