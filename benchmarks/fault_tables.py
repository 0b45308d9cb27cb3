"""Tables of what tests/reliability and benchmarks/fuzz.py have counted."""

from collections.abc import Sequence
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


def hostile(content: dict[str, Any]) -> dict[str, str]:
    """A row for folders, one for files, and one for all."""
    cases = list(content["cases"].values())
    lines = [
        "| sent | cases | refused | code that ran | files changed elsewhere | most CPU | most memory | failed checks |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for sent in ("folders", "files"):
        lines.append(_hostile_row(sent, [case for case in cases if case["sent"] == sent]))
    return {"hostile": "\n".join([*lines, _hostile_row("all", cases)])}


def _hostile_row(sent: str, cases: Sequence[dict[str, Any]]) -> str:
    counts = [len(cases), sum(case["exit_code"] == 2 for case in cases)]
    counts += [sum(case[key] for case in cases) for key in ("executed", "written_outside")]
    seconds, mib = (max(case[key] for case in cases) for key in ("seconds", "mib"))
    failed = sum(case["failed_checks"] for case in cases)
    return f"| {sent} | {' | '.join(map(str, counts))} | {seconds:.1f} s | {mib} MiB | {failed} |"
