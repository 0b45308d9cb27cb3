"""Code that settings name: who did not type the settings must agree before it runs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from hwbmpq.errors import HwbmpqError

_PREFIX = "file:"


class UntrustedCodeError(HwbmpqError):
    """Settings from a file name code, and nobody has said that it may run."""


@dataclass(frozen=True, kw_only=True)
class NamedCode:
    """Python code that a setting leads to."""

    setting: str
    path: Path
    """Where it would be found from here."""
    function: str
    is_relative: bool
    """Whether the setting says where only from the current folder."""

    def __str__(self) -> str:
        where = " (a relative path, looked up in the current folder)" if self.is_relative else ""
        return f"{self.setting}: {self.function or 'the whole file'} in {self.path}{where}"


def code_in(settings: Mapping[str, Any]) -> list[NamedCode]:
    """The code that settings lead to, whichever they are: ``file:PATH.py:NAME`` anywhere in a value."""
    found = ((name, text) for name, value in settings.items() for text in _texts({name: value}))
    return [_named(name, text) for name, text in found if _is_code(name, text)]


def is_same_code(one: object, other: object) -> bool:
    """Whether two values of a setting lead to the same function of the same file."""
    first, second = (code_in({"": value}) for value in (one, other))
    return bool(first) and [(c.path, c.function) for c in first] == [(c.path, c.function) for c in second]


def check_trust(settings: Mapping[str, Any], source: Path) -> None:
    """An error that says what would run, if anything would."""
    found = code_in(settings)
    if not found:
        return
    flags = " ".join(
        f"{quote('--' + code.setting.replace('_', '-'))} {quote(f'{_PREFIX}{code.path}:{code.function}')}"
        for code in found
    )
    raise UntrustedCodeError(
        "\n  ".join([f"{source} names Python code, which was not run:", *map(str, found)]),
        hint="read it; if you trust it, add --trust (in Python, trust=True), or name it yourself: " + flags,
    )


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _texts(name)
            yield from _texts(entry)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for entry in value:
            yield from _texts(entry)


def _is_code(setting: str, text: str) -> bool:
    # An exported program is read without running anything (``models/exported.py``).
    is_program = setting == "model" and text.endswith(".pt2")
    return text.strip().lower().startswith(_PREFIX) and not is_program


def _named(setting: str, text: str) -> NamedCode:
    path, _, function = text.strip()[len(_PREFIX) :].rpartition(":")
    path, function = (path, function) if path else (function, "")
    found = Path(path).expanduser()
    return NamedCode(
        setting=setting,
        path=found.absolute(),
        function=function,
        is_relative=not found.is_absolute(),
    )
