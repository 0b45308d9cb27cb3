"""From a run directory to its report, without torch: the run may be going on, or be on a machine that only looks at it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hwbmpq.errors import HwbmpqError
from hwbmpq.report import run_files
from hwbmpq.report.facts import RunFacts
from hwbmpq.report.plan import Plan
from hwbmpq.report.run_report import RunReport, build_report
from hwbmpq.report.trade_off import find_trade_off
from hwbmpq.values import Sensitivity


def report_on_run(folder: str | Path, *, on_step: Callable[[int, int], None] | None = None) -> RunReport:
    """The report of a run; ``on_step`` is called as the trade-off is solved again."""
    folder = Path(folder)
    facts = read_facts(folder)
    try:
        history = _read(folder / run_files.HISTORY, _parse_lines) or []
        result = _read(folder / run_files.ALLOCATION, json.loads)
        plan = Plan.from_dict(result) if result is not None and "allocation" in result else None
        last = _last_sensitivity(history)
        trade_off = None if plan is None else find_trade_off(facts, plan, last, on_step=on_step)
        return build_report(str(folder), facts, plan, history=history, result=result, trade_off=trade_off)
    except HwbmpqError as error:
        raise HwbmpqError(f"{folder}: {error}") from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise HwbmpqError(
            f"{folder}: its files do not belong together or were changed: {type(error).__name__}: {error}"
        ) from error


def read_facts(folder: Path) -> RunFacts:
    """What was known before a run began."""
    if not (folder / run_files.FACTS).is_file():
        raise _no_run(folder)
    try:
        return RunFacts.from_dict(_read(folder / run_files.FACTS, json.loads))
    except HwbmpqError as error:
        raise HwbmpqError(f"{folder}: {error}") from error


def _no_run(folder: Path) -> HwbmpqError:
    if (folder / run_files.CONFIG).is_file():
        return HwbmpqError(
            f"{folder} has no {run_files.FACTS}: it never began, or an earlier version of hwbmpq wrote it",
            hint=f"hwbmpq compress --resume {folder} writes it",
        )
    what = "is not a run of hwbmpq" if folder.exists() else "does not exist"
    return HwbmpqError(f"{folder} {what}", hint="give the folder that hwbmpq compress wrote")


def _read(path: Path, parse: Callable[[str], Any]) -> Any:
    """The content of a file; None if there is no such file."""
    try:
        return parse(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (OSError, ValueError) as error:
        raise HwbmpqError(f"{path.name} cannot be read: {error}") from error


def _parse_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _last_sensitivity(history: list[dict[str, Any]]) -> Sensitivity | None:
    """What the last decision looked at, with the errors that some objectives weigh."""
    decisions = [record["decision"] for record in history if record.get("decision")]
    return Sensitivity.from_dict(decisions[-1]["decided_by"]) if decisions else None
