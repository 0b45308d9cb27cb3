"""Records of a run in which somebody changed a value: it is refused, or shown as it is."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hwbmpq.cli.console import Console
from hwbmpq.cli.render.report import print_comparison, print_report
from hwbmpq.errors import HwbmpqError
from hwbmpq.report import report_on_run
from hwbmpq.report.html import render_page

RUN = Path(__file__).parents[1] / "compat/v0_1_0/trained"
NAMES = ("facts.json", "allocation.json", "history.jsonl")
ENDS_NOTHING = "[/red]"
"""An error, where it is taken for markup."""
MADE_UP = {"name": "F1", "higher_is_better": True, "is_share": True}


def contents() -> dict[str, Any]:
    """What the files hold, with a metric of the user's own, as the last epoch and the result have it."""
    facts, result = (json.loads((RUN / name).read_text()) for name in NAMES[:2])
    history = [json.loads(line) for line in (RUN / NAMES[2]).read_text().splitlines()]
    for figures in (result, history[-1]):
        figures |= {"metric": dict(MADE_UP), "test_metric": figures["test_accuracy"]}
    return dict(zip(NAMES, (facts, result, history), strict=True))


def texts(content: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is a text."""
    if isinstance(content, dict | list):
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from texts(value, (*place, key))
    elif isinstance(content, str):
        yield place


def kind_of(place: tuple[Any, ...]) -> str:
    """The same for all layers, epochs and lines."""
    return ".".join("*" if str(key).isdigit() else str(key) for key in place)


PLACES = {kind_of(place): place for place in texts(contents())}


def write_run(folder: Path, place: tuple[Any, ...], value: Any) -> None:
    """A run with another value in one place."""
    content = contents()
    *way, last = place
    holder: Any = content
    for key in way:
        holder = holder[key]
    holder[last] = value
    for name in NAMES[:2]:
        (folder / name).write_text(json.dumps(content[name]))
    (folder / NAMES[2]).write_text("\n".join(map(json.dumps, content[NAMES[2]])))


@pytest.mark.parametrize("kind", PLACES)
def test_a_text_is_not_markup(kind: str, tmp_path: Path) -> None:
    write_run(tmp_path, PLACES[kind], ENDS_NOTHING)
    try:
        report = report_on_run(tmp_path)
    except HwbmpqError:
        return
    for width in (80, 200):
        console = Console(file=io.StringIO(), width=width)
        print_report(console, report, all_rows=True)
        print_comparison(console, [report, report])


def test_a_metric_with_half_a_character_is_drawn(tmp_path: Path) -> None:
    write_run(tmp_path, (NAMES[2], -1, "metric", "name"), "\ud800<script>")
    page = render_page([report_on_run(tmp_path)])
    assert "\\ud800&lt;script&gt;" in page


@pytest.mark.parametrize("number", [10**30, -(10**30), 2**63])
def test_a_score_of_more_than_64_bits_is_drawn(number: int, tmp_path: Path) -> None:
    """matplotlib cannot add such an integer to one of numpy's."""
    write_run(tmp_path, (NAMES[1], "layers", 0, "sensitivity"), number)
    assert "<svg" in render_page([report_on_run(tmp_path)])
