"""How the command line is read: mistyped flags and names are answered with the nearest, help is wrapped at words."""

import argparse
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import takewhile
from typing import Any, NoReturn

from hwbmpq.errors import HwbmpqError, UnknownNameError

_COMMAND = re.compile(r"\s+(hwbmpq|torchrun|python)\b")


class Parser(argparse.ArgumentParser):
    """Raises ``HwbmpqError`` for what is mistyped, rather than printing the whole usage."""

    def error(self, message: str) -> NoReturn:
        match = re.fullmatch(r"argument (\S+?)(?:[/,]\S*)*: (.*)", message, re.DOTALL)
        hint = f"{self.prog} --help"
        if match is not None:
            flag, said = match.groups()
            message = f"{flag} {said}" if said[:1] in "'\"-.0123456789" else f"{flag}: {said}"
            action = self._option_string_actions.get(flag)
            hint = f"{flag} {action.type.example}" if action and isinstance(action.type, Within) else hint
        raise HwbmpqError(message, hint=hint)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = sys.argv[1:] if args is None else list(args)
        if not any(isinstance(action, argparse._SubParsersAction) for action in self._actions):
            self._check_flags(words)
        return super().parse_known_args(args, namespace)

    def _check_flags(self, words: Iterable[str]) -> None:
        """Before argparse, which would first miss what a mistyped flag was to give."""
        flags = list(self._option_string_actions)
        for word in takewhile(lambda word: word != "--", words):
            name = word.partition("=")[0]
            if word.startswith("--") and not any(flag.startswith(name) for flag in flags):
                close = get_close_matches(name, flags, n=1)
                meant = f": did you mean {close[0]}?" if close else ""
                raise HwbmpqError(
                    f"there is no flag {name}{meant}", hint=f"{self.prog} --help lists all flags"
                )

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if isinstance(action, argparse._SubParsersAction):
            what = str(action.metavar).lower()
            raise UnknownNameError(what, str(value), action.choices, hint=f"{self.prog} --help")
        known = [str(choice) for choice in action.choices]
        raise argparse.ArgumentError(action, f"{value!r}: {_nearest(str(value), known)}")


def _nearest(value: str, known: Sequence[str]) -> str:
    close = get_close_matches(value, known, n=1)
    return f"did you mean {close[0]}?" if close else f"use {', '.join(known)}"


@dataclass(frozen=True, kw_only=True)
class Within:
    """A type of argparse: a number within the bounds of a setting."""

    kind: Callable[[str], float]
    """int or float."""
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    usual: float | None = None
    """The setting's default."""

    def __call__(self, text: str) -> float:
        try:
            number = self.kind(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            word = "a whole number" if self.kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r}: give {word} {self.bounds}".rstrip())
        if not self.holds(number):
            raise argparse.ArgumentTypeError(f"{text}: must be {self.bounds}")
        return number

    def holds(self, number: float) -> bool:
        return (
            (self.at_least is None or number >= self.at_least)
            and (self.above is None or number > self.above)
            and (self.at_most is None or number <= self.at_most)
            and (self.below is None or number < self.below)
        )

    @property
    def bounds(self) -> str:
        """``at least 0 and below 1``."""
        said = (
            ("at least", self.at_least),
            ("above", self.above),
            ("at most", self.at_most),
            ("below", self.below),
        )
        return " and ".join(f"{word} {_plain(bound)}" for word, bound in said if bound is not None)

    @property
    def example(self) -> str:
        """A value that is taken."""
        tried = (self.usual, self.at_least, 1 if self.kind is int else 0.1, 1)
        return f"{next((n for n in tried if n is not None and self.holds(n)), 1):g}"


def _plain(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Wraps everything at words, examples as a shell reads them, and never breaks a name at its hyphen."""

    def _format_usage(self, *args: Any) -> str:
        usage = super()._format_usage(*args)
        if all(len(line) <= self._width for line in usage.splitlines()):
            return usage
        # argparse does not break between alternatives, and indents a lot.
        return "\n".join(_wrapped(" ".join(usage.split()), self._width, others="    ")) + "\n\n"

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _wrapped(" ".join(text.split()), width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(line for block in _blocks(text) for line in _fitted(block, width))


def _blocks(text: str) -> Iterator[str]:
    """Paragraphs as one line each; indented lines as they are, with what is indented further behind them."""
    held = ""
    for line in text.splitlines():
        is_indented = line.startswith(" ")
        continues = held and line and (line.startswith(" " * 6) if is_indented else not held.startswith(" "))
        if continues:
            held = f"{held.removesuffix(chr(92)).rstrip()} {line.strip()}"
            continue
        if held:
            yield held
        held = line
        if not line:
            yield ""
    if held:
        yield held


def _fitted(block: str, width: int) -> list[str]:
    indent = block[: len(block) - len(block.lstrip())]
    if len(block) <= width or not indent:
        return _wrapped(block, width) or [""]
    if _COMMAND.match(block):
        lines = _wrapped(block.strip(), width - 2, indent, f"{indent}    ")
        return [f"{line} \\" for line in lines[:-1]] + lines[-1:]
    column = re.match(r"\s+\S+\s{2,}", block)  # an entry of a table: its text stays in its column
    return _wrapped(block.strip(), width, indent, " " * column.end() if column else f"{indent}  ")


def _wrapped(text: str, width: int, first: str = "", others: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=others,
        break_on_hyphens=False,
        break_long_words=False,
    )
