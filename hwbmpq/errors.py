"""Errors a user can act on: what is wrong, where, and what to try next."""

from collections.abc import Iterable
from difflib import get_close_matches

from hwbmpq.printable import cut


class HwbmpqError(Exception):
    """Base of every error that is the input's fault, not a defect of hwbmpq.

    ``hint`` is the next thing to try; the command line prints it on a line of its own.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


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
        elif len(known) <= 20:
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
