"""Writes the tables of the pages that show measurements, and its plots, from ``benchmarks/results/``.

    .venv/bin/python docs/generate_results.py

A table stands between ``<!-- table: RESULT/NAME -->`` and ``<!-- end of table -->``. RESULT.json is in
``benchmarks/results``; the function below turns its content into tables by NAME.
"""

import functools
import json
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
PAGES = ("results.md", "dependencies.md")
SOURCES = {
    # result: module below benchmarks/, function
    "calibrated": ("accuracy_tables", "calibrated"),
    "dependencies": ("dependencies", "tables"),
    "ingredients": ("accuracy_tables", "ingredients"),
    "mlperf_tiny": ("accuracy_tables", "mlperf_tiny"),
    "trained": ("accuracy_tables", "trained"),
    "fuzz": ("fault_tables", "fuzz"),
    "hostile": ("fault_tables", "hostile"),
    "peers_allocation": ("peers.tables", "allocation"),
    "peers_bytes": ("peers.tables", "delivered_bytes"),
    "peers_train_step": ("peers.tables", "train_step"),
    "scale": ("scale", "tables"),
    "scaled_paper": ("scaled_paper", "tables"),
    "soak": ("fault_tables", "soak"),
    "whole_networks": ("whole_networks", "tables"),
}
_TABLE = re.compile(r"<!-- table: (\w+)/(.+?) -->\n(.*?)<!-- end of table -->", re.DOTALL)


@functools.cache
def tables_of(result: str) -> dict[str, str]:
    module, function = SOURCES[result]
    if str(ROOT / "benchmarks") not in sys.path:
        sys.path.append(str(ROOT / "benchmarks"))
    made: dict[str, str] = getattr(import_module(module), function)(content_of(result))
    return made


def content_of(result: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ROOT / "benchmarks/results" / f"{result}.json").read_text())
    return content


def page_of(text: str) -> str:
    """A page with its tables written anew."""

    def fill(found: re.Match[str]) -> str:
        table = tables_of(found[1])[found[2]]
        return f"<!-- table: {found[1]}/{found[2]} -->\n{table}\n<!-- end of table -->"

    return _TABLE.sub(fill, text)


def draw_enbg(path: Path) -> None:
    """ENBG of every layer at every decision of one run: does the ranking change, as the paper's Figure 3 says?"""
    decisions = next(run for run in content_of("scaled_paper")["runs"] if run["name"] == "BMPQ")["decisions"]
    layers = list(decisions[0]["enbg"])
    figure, axes = _empty_plot()
    for place, decision in enumerate(decisions):
        shade = f"C{place}" if place in (0, len(decisions) - 1) else "0.75"
        label = f"after epoch {decision['epoch']}" if shade != "0.75" else None
        values = [decision["enbg"][layer] for layer in layers]
        axes.plot(range(1, len(layers) + 1), values, marker="o", markersize=3, color=shade, label=label)
    axes.set_yscale("log")
    axes.set_xticks(range(1, len(layers) + 1))
    axes.set_xlabel("layer, from the first to the last")
    axes.set_ylabel("ENBG")
    axes.set_title("Between them, in grey: the other decisions", fontsize="medium")
    _save(figure, axes, path)


def draw_peers(path: Path) -> None:
    """Accuracy against weight memory, of each tool's own result without training."""
    content = content_of("peers_allocation")
    figure, axes = _empty_plot()
    axes.axhline(100 * content["float_accuracy"], color="0.6", linestyle=":", label="float")
    for tool, marker in (("hwbmpq error", "o"), ("MCT", "s"), ("AIMET", "^"), ("ModelOpt", "D")):
        rows = [row for row in content["rows"] if (row["tool"], row["activation_bits"]) == (tool, None)]
        points = sorted((row["average_bits"], 100 * row["accuracy"]) for row in rows)
        axes.plot(*zip(*points, strict=True), marker=marker, label=tool)
    axes.set_xlabel("weight memory, bits per weight")
    axes.set_ylabel("accuracy, %")
    _save(figure, axes, path)


def _empty_plot() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    return figure, figure.add_subplot()


def _save(figure: Figure, axes: Axes, path: Path) -> None:
    axes.legend()
    # No date and fixed names, so that the same figures give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "hwbmpq"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


PLOTS = {"images/enbg.svg": draw_enbg, "images/peers.svg": draw_peers}


def main() -> None:
    for name in PAGES:
        page = ROOT / "docs" / name
        page.write_text(page_of(page.read_text()))
    for name, draw in PLOTS.items():
        draw(ROOT / "docs" / name)


if __name__ == "__main__":
    main()
