"""Tables of what tests/reliability and benchmarks/fuzz.py have counted."""

from typing import Any

_COUNTS = {
    # heading: key of the counts
    "runs": "runs",
    "kills": "kills that hit",
    "resumed": "resumes",
    "equal to the undisturbed run": "equal to the uninterrupted run",
    "helped by another solver": "another solver helped",
    "half files refused": "half files refused",
    "failed checks": "failures",
}


def soak(content: dict[str, Any]) -> dict[str, str]:
    """A row for each kind of fault, and one for all."""
    lines = [f"| fault | {' | '.join(_COUNTS)} |", "| --- |" + " --- |" * len(_COUNTS)]
    for fault, counts in {**content["by fault"], "all": content["total"]}.items():
        cells = (f"{counts.get(key, 0):,}" for key in _COUNTS.values())
        lines.append(f"| {fault} | {' | '.join(cells)} |")
    return {"soak": "\n".join(lines)}


def fuzz(content: dict[str, Any]) -> dict[str, str]:
    """A row for each reader."""
    lines = [
        "| reader | inputs | accepted | refused | slowest (CPU) | branches, first → last | failures |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, found in content["targets"].items():
        edges = f"{found['edges_of_seeds']} → {found['edges_covered']}"
        counts = " | ".join(f"{found[key]:,}" for key in ("inputs", "accepted", "refused"))
        lines.append(
            f"| {name} | {counts} | {1e3 * found['slowest_s']:.0f} ms | {edges} | {found['failures']} |"
        )
    return {"fuzz": "\n".join(lines)}
