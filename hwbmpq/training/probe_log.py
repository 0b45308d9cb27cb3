"""Probes of accuracy that a run has made, kept in its folder: a run that is cut off does not make them again."""

from collections.abc import Callable
from typing import Annotated

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from hwbmpq import distributed
from hwbmpq.costs.table import Number
from hwbmpq.errors import HwbmpqError
from hwbmpq.report import AccuracyProbe
from hwbmpq.training.run_directory import RunDirectory

_MOST_PROBES = 1000


class _Entry(BaseModel):
    budget: Number
    probe: AccuracyProbe


_ENTRIES = TypeAdapter(Annotated[list[_Entry], Field(max_length=_MOST_PROBES)])


class ProbeLog:
    """By budget, calibrated or trained: what was measured."""

    def __init__(self, run: RunDirectory | None) -> None:
        """``run`` is where probes are kept; without one, only this object knows them."""
        self._run = run
        self._known = {} if run is None else distributed.on_first_rank(lambda: _read(run))

    def probe(
        self, budget: Number, make: Callable[[Number], AccuracyProbe], *, is_trained: bool = False
    ) -> AccuracyProbe:
        """The probe that was made earlier, or a new one."""
        key = (budget, is_trained)
        if key not in self._known:
            self._known[key] = make(budget)
            self._save()
        return self._known[key]

    def _save(self) -> None:
        if self._run is None or distributed.rank() != 0:
            return
        entries = [_Entry(budget=budget, probe=probe) for (budget, _), probe in self._known.items()]
        self._run.save_probes(_ENTRIES.dump_json(entries))


def _read(run: RunDirectory) -> dict[tuple[Number, bool], AccuracyProbe]:
    content = run.load_probes()
    if content is None:
        return {}
    try:
        entries = _ENTRIES.validate_json(content)
    except ValidationError as error:
        raise HwbmpqError(
            f"{run.path}: the probes of accuracy cannot be read: {error.errors()[0]['msg']}",
            hint="start the run over with --overwrite",
        ) from None
    return {(entry.budget, entry.probe.is_trained): entry.probe for entry in entries}
