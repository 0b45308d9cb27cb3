"""What others wrote is shown, and cannot act on the terminal."""

import ast
import io
import re
from pathlib import Path

import pytest
from rich.table import Table

from hwbmpq.cli.console import Console, Text, escape, escape_lines
from hwbmpq.cli.main import main
from hwbmpq.cli.progress import progress, status
from hwbmpq.errors import cut, printable

ROOT = Path(__file__).parents[2]
ACTING = [*map(chr, [*range(32), *range(0x7F, 0xA0)]), *"\u202a\u202e\u2066\u2069\u200f\u2028", "\udcff"]
OWN_STYLES = re.compile(r"\x1b\[[0-9;]*m")
DRAWING = "a\x1b[2J\x1b]0;title\x07\x9b31m\u202eb\x7f\udcff"
SHOWN = r"a\x1b[2J\x1b]0;title\x07\x9b31m\u202eb\x7f\udcff"


@pytest.mark.parametrize("character", ACTING, ids=lambda one: f"{ord(one):04x}")
def test_every_character_that_acts_is_spelled_out(character: str) -> None:
    shown = printable(f"a{character}b")
    assert shown.isprintable()
    assert shown.isascii()
    assert shown.encode().decode("unicode_escape") == f"a{character}b"


def test_other_text_stays_as_it_is() -> None:
    assert printable("größe → 2×W4A8, 层 […]") == "größe → 2×W4A8, 层 […]"
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"


def test_a_long_text_is_cut() -> None:
    assert cut("x" * 1000, 10) == "x" * 9 + "…"
    assert cut("x" * 10, 10) == "x" * 10


def shown_by(print_it: object, **options: object) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=200, highlight=False, **options)  # type: ignore[arg-type]
    print_it(console)  # type: ignore[operator]
    return OWN_STYLES.sub("", file.getvalue())


def table(cell: "str | Text") -> Table:
    made = Table(title=escape(DRAWING))
    made.add_column(escape(DRAWING))
    made.add_row(cell)
    return made


@pytest.mark.parametrize(
    "print_it",
    [
        lambda console: console.print(f"[bold]{escape(DRAWING)}[/]"),
        lambda console: console.print(DRAWING, markup=False),
        lambda console: console.print(Text(DRAWING)),
        lambda console: console.print(Text("").append(DRAWING)),
        lambda console: console.print(table(Text(DRAWING, style="red"))),
        lambda console: console.print(table(escape(DRAWING))),
        lambda console: console.print(table(Text("").append(DRAWING))),
        lambda console: console.rule(escape(DRAWING)),
    ],
    ids="markup no-markup text appended cell markup-cell appended-cell rule".split(),
)
def test_nothing_but_our_styles_reaches_the_terminal(print_it: object) -> None:
    shown = shown_by(print_it)
    assert printable(shown, keep="\n") == shown
    assert "\\x1b[2J" in shown


def test_columns_are_as_wide_as_what_is_shown() -> None:
    lines = shown_by(lambda console: console.print(table(Text(DRAWING)))).splitlines()
    assert len({len(line) for line in lines if line.strip()}) == 1


def test_markup_in_a_name_is_shown() -> None:
    assert shown_by(lambda console: console.print(f"{escape('[red]x[/red]')}")) == "[red]x[/red]\n"


def test_a_name_is_one_line_and_an_error_may_be_several() -> None:
    assert escape("a\nb") == r"a\nb"
    assert escape_lines("a\nb") == "a\nb"


def test_an_error_shows_what_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", f"none{DRAWING}[red]"]) == 2
    assert f"none{SHOWN}[red] does not exist" in capsys.readouterr().err


def test_a_flag_that_is_wrong_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", f"--{DRAWING}"]) == 2
    assert f"--{SHOWN}" in capsys.readouterr().err


def test_bars_and_spinners_show_markup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with status(f"[red]{DRAWING}"), progress(f"[/wrong]{DRAWING}", 3) as advance:
        advance(1)
    assert "\x1b[2J" not in capsys.readouterr().err.replace("\x1b[2K", "")


def test_the_terminal_is_reached_by_our_console_alone() -> None:
    """Elsewhere, rich's own classes would print what they are given."""
    for path in sorted((ROOT / "cli").rglob("*.py")):
        if path == ROOT / "cli" / "console.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print":
                assert not node.args, path
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rich"):
                assert not {name.name for name in node.names} & {"Console", "Text", "escape", "print"}, path
