"""The tables of docs/results.md about accuracy, from what the benchmarks measured."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

Content = dict[str, Any]


def trained(content: Content) -> dict[str, str]:
    """``trained.py``: each row over its seeds."""
    rows = []
    for name in dict.fromkeys(run["row"] for run in content["runs"]):
        runs = [run for run in content["runs"] if run["row"] == name]
        rows.append(
            [
                name,
                str(runs[0]["epochs"]),
                _mean(run["accuracy"] for run in runs),
                _mean((run["difference"] for run in runs), signed=True),
                _mean(run["validation_calibrated"] for run in runs),
                _mean(run["validation_by_epoch"][-1] for run in runs),
                str(len(runs)),
            ]
        )
    heads = ["", "epochs", "accuracy", "points to float", "the 1,000: calibrated", "trained", "seeds"]
    return {"rows": _table(heads, rows)}


def calibrated(content: Content) -> dict[str, str]:
    """``calibrated.py``: fast and best by budget."""
    rows = []
    for bits in sorted({run["bits"] for run in content["runs"]}):
        runs = {
            kind: [run for run in content["runs"] if (run["bits"], run["calibrate"]) == (bits, kind)]
            for kind in ("fast", "best")
        }
        seconds = (f"{statistics.mean(run['cpu_seconds'] for run in found):.0f} s" for found in runs.values())
        accuracies = (_mean(run["accuracy"] for run in found) for found in runs.values())
        rows.append([f"{bits:g}", *accuracies, *seconds, str(len(runs["best"]))])
    heads = ["bits per weight", "`fast`", "`best`", "CPU time, `fast`", "`best`", "seeds"]
    return {"budgets": _table(heads, rows)}


def mlperf_tiny(content: Content) -> dict[str, str]:
    rows = [
        [
            run["row"],
            f"{run['stored_bytes']:,}",
            f"{run['average_bits']:.2f}",
            f"{100 * run['accuracy']:.2f} %",
            f"{100 * run['float']:.2f} %",
            f"{run['samples']:,}",
        ]
        for run in content["runs"]
    ]
    heads = ["", "bytes stored", "bits per weight", "accuracy", "in float", "samples"]
    return {"networks": _table(heads, rows)}


def ingredients(content: Content) -> dict[str, str]:
    rows = []
    for name in dict.fromkeys(run["changed"] for run in content["runs"]):
        runs = [run["trained"] for run in content["runs"] if run["changed"] == name]
        rows.append(
            [
                name,
                *(
                    f"{statistics.mean(run[key] for run in runs):.3f}"
                    for key in ("divergence", "cross_entropy")
                ),
                _mean(run["accuracy"] for run in runs),
            ]
        )
    begin = content["runs"][0]["calibrated"]
    rows.append(
        [
            "before training",
            f"{begin['divergence']:.3f}",
            f"{begin['cross_entropy']:.3f}",
            f"{100 * begin['accuracy']:.2f} %",
        ]
    )
    rows.append(
        ["float", "0", f"{begin['cross_entropy_float']:.3f}", f"{100 * begin['accuracy_float']:.2f} %"]
    )
    heads = ["changed", "divergence from float", "cross entropy", "accuracy on the 1,000"]
    return {"changes": _table(heads, rows)}


def _mean(values: Iterable[float], *, signed: bool = False) -> str:
    """In percent, with the standard deviation of several."""
    found = [100 * value for value in values]
    mean = f"{statistics.mean(found):{'+' if signed else ''}.2f}"
    spread = f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else ""
    return f"{mean}{spread}" + ("" if signed else " %")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
