"""The report in a terminal, to the letter at two widths, and whatever the terminal is."""

import io
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hwbmpq.cli.render.report import print_comparison, print_report
from hwbmpq.cli.render.tables import OutputConsole
from hwbmpq.report import RunReport

MakeReport = Callable[..., RunReport]
SNAPSHOTS = Path(__file__).parent / "snapshots"


def drawn(draw: Callable[[OutputConsole], None], width: int, **options: object) -> str:
    console = OutputConsole(width=width, file=io.StringIO(), **options)
    draw(console)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"  # type: ignore[attr-defined]


def check(found: str, name: str) -> None:
    """HWBMPQ_SNAPSHOTS=1 writes what is found; then look at the difference."""
    path = SNAPSHOTS / name
    if os.environ.get("HWBMPQ_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8"), (
        f"{name}: HWBMPQ_SNAPSHOTS=1 writes it anew, if that is meant"
    )


@pytest.mark.parametrize("width", [80, 160])
def test_a_report_looks_as_it_did(width: int, made_up_report: MakeReport) -> None:
    check(drawn(lambda console: print_report(console, made_up_report()), width), f"report_{width}.txt")


@pytest.mark.parametrize("width", [80, 160])
def test_a_comparison_looks_as_it_did(width: int, made_up_report: MakeReport) -> None:
    reports = [made_up_report(run="runs/a"), made_up_report(run="runs/b", layers=9)]
    check(drawn(lambda console: print_comparison(console, reports), width), f"comparison_{width}.txt")


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int, made_up_report: MakeReport) -> None:
    report = made_up_report(name="blocks.{}.with.a.very.long.name.that.does.not.fit.anywhere.conv")
    text = drawn(lambda console: print_report(console, report), width)
    assert max(map(len, text.splitlines())) <= width


def test_a_thousand_layers_do_not_flood_the_screen(made_up_report: MakeReport) -> None:
    report = replace(made_up_report(layers=1000, epochs=3), trade_off=None)
    lines = drawn(lambda console: print_report(console, report), 100).splitlines()
    assert len(lines) < 160
    assert any("smaller layers are not shown; --all lists them" in line for line in lines)
    everything = drawn(lambda console: print_report(console, report, all_rows=True), 100).splitlines()
    assert len(everything) > 1000


def test_colours_are_for_terminals_only(made_up_report: MakeReport, monkeypatch: pytest.MonkeyPatch) -> None:
    report = made_up_report()
    assert "\x1b[" not in drawn(lambda console: print_report(console, report), 80)
    assert "\x1b[3" in drawn(lambda console: print_report(console, report), 80, force_terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    plain = drawn(lambda console: print_report(console, report), 80, force_terminal=True)
    assert "\x1b[3" not in plain


def test_markup_in_names_stays_text(made_up_report: MakeReport) -> None:
    report = made_up_report(name="[bold red]{}[/]", run="[link=x]run[/link]", title="[blink]title[/]")
    text = drawn(lambda console: print_report(console, report), 160)
    assert "[bold red]1[/]" in text
    assert "[link=x]run[/link]" in text
    assert "[blink]title[/]" in text
