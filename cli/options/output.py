"""Files that a command is to write, looked at before anything slow; and remarks about what it did."""

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from hwbmpq.errors import HwbmpqError

PAGES = (".html", ".htm")


def check_output(flag: str, path: Path | str | None, suffixes: Iterable[str] = ()) -> None:
    """Whether a flag names a file that can be written, and not another kind of file by mistake."""
    if path is None:
        return
    path = Path(path).expanduser()
    if suffixes and path.suffix.lower() not in suffixes:
        raise HwbmpqError(f"{flag} {path}: the name has to end with {', '.join(suffixes)}")
    if not path.absolute().parent.is_dir():
        raise HwbmpqError(
            f"{flag} {path} cannot be written: there is no folder {path.parent}",
            hint=f"mkdir -p {path.parent}",
        )


def print_remarks(console: Console, remarks: Iterable[str]) -> None:
    """What a user should know, each on a line of its own."""
    for remark in remarks:
        console.print(f"[yellow]![/] {escape(remark)}", soft_wrap=True)
