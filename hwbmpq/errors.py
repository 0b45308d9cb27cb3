"""Errors a user can act on: what is wrong, where, and what to try next."""

import re
from collections.abc import Iterable
from difflib import get_close_matches


class HwbmpqError(Exception):
    """Base of every error that is the input's fault, not a defect of hwbmpq.

    ``hint`` is the next thing to try; the command line prints it on a line of its own.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


_MOST_LISTED = 30
"""Names that an error lists; of more, only those that are close."""


class UnknownNameError(HwbmpqError):
    """A name that a registry or a model zoo does not hold."""

    def __init__(
        self, what: str, name: str, known: Iterable[str], *, meant: str = "", hint: str = ""
    ) -> None:
        """``meant``: what the name probably stands for, where that is known better than by its letters."""
        known, name = sorted(known), cut(name, 100)
        close = (
            [meant]
            if meant
            else get_close_matches(name, known, n=5, cutoff=0.6)
            or get_close_matches(name.lower(), known, n=5)
        )
        if close:
            suggestion = f"did you mean {', '.join(close)}?"
        elif len(known) <= _MOST_LISTED:
            suggestion = f"known: {', '.join(known)}"
        else:
            suggestion = f"{len(known)} names are known, none is close"
        super().__init__(f"no {what} named {name!r}: {suggestion}", hint=hint)
        self.close = close


class ModelLoadError(HwbmpqError):
    """A model specification that cannot be turned into a network."""


class WeightsError(HwbmpqError):
    """A weights file that cannot be read or does not fit the network."""


class TraceError(HwbmpqError):
    """A network that none of the tracers could follow."""


class NoLayersError(HwbmpqError):
    """A network without a layer that could be quantized."""


class NonFiniteError(HwbmpqError):
    """Infinite or NaN values where a quantizer needs numbers."""


class CostModelError(HwbmpqError):
    """A cost model that cannot be used as asked."""


class OtherRankError(HwbmpqError):
    """The first rank of a distributed run failed, and has said why."""


class RunStoppedError(HwbmpqError):
    """Somebody asked a training run to stop; its state is saved."""


class UnsupportedPrecisionError(HwbmpqError):
    """Widths that a device does not run, or that a cost model has no figure for."""


class MissingFigureError(HwbmpqError):
    """A figure that a cost model needs and the profile does not give."""

    def __init__(self, profile: str, field: str, cost_model: str, *, hint: str = "") -> None:
        super().__init__(
            f"profile {profile!r} has no {field}, which the cost model {cost_model!r} needs", hint=hint
        )
        self.profile, self.field, self.cost_model = profile, field, cost_model


class UnsupportedLayerError(HwbmpqError):
    """A layer that a cost model cannot cost."""


class HwbmpqWarning(UserWarning):
    """Something goes on, but probably not as it was meant."""


_ACTS = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL and C1: colours, the cursor, the window's title
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line separators, and marks that reverse what is read
    "\ud800-\udfff\ufffe\uffff]"  # bytes of file names that are not UTF-8, which nothing can encode
)
LONGEST = 300
"""Characters of a value that a message repeats."""


def printable(text: str, *, keep: str = "") -> str:
    r"""``text`` with control characters written as Python writes them; those in ``keep`` stay.

    >>> print(printable("conv1\x1b[2J"))
    conv1\x1b[2J
    """
    return _ACTS.sub(lambda found: found[0] if found[0] in keep else _spelled(found[0]), text)


def _spelled(character: str) -> str:
    return repr(character)[1:-1] if not character.isprintable() else f"\\u{ord(character):04x}"


def cut(text: str, length: int = LONGEST) -> str:
    """The beginning of a text that may be long."""
    return text if len(text) <= length else f"{text[: length - 1]}…"
