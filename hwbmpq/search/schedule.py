"""When widths are decided in the course of a training run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hwbmpq.errors import HwbmpqError

_SHARE = 0.1
"""Default length of warm-up and interval: the paper's 20 of 200 epochs."""


@dataclass(frozen=True, kw_only=True)
class DecisionSchedule:
    """Warm-up at the widest candidates, then a decision at the end of each of some epochs.

    Epochs count from 1. There is none at the end of the last epoch: the last interval ends with training.
    """

    epochs: int
    decide_after: tuple[int, ...]
    """Epochs at whose end widths are decided, ascending; the first ends the warm-up."""
    first_window: int
    """Epochs before the first decision that it looks back on."""

    @classmethod
    def of(
        cls,
        epochs: int,
        warmup_epochs: int | None,
        interval_epochs: int | None,
        decide_after: Sequence[int] | None,
    ) -> "DecisionSchedule":
        """What was said, completed: warm-up and interval are as long as each other, or a tenth of all."""
        if decide_after is not None:
            if warmup_epochs is not None or interval_epochs is not None:
                raise HwbmpqError(
                    "decide_after says when widths are decided: leave out warmup_epochs and interval_epochs"
                )
            return cls.at(epochs, decide_after)
        said = [number for number in (warmup_epochs, interval_epochs) if number is not None]
        other = said[0] if said else max(1, round(_SHARE * epochs))
        return cls.periodic(
            epochs=epochs,
            warmup_epochs=other if warmup_epochs is None else warmup_epochs,
            interval_epochs=other if interval_epochs is None else interval_epochs,
        )

    @classmethod
    def periodic(cls, *, epochs: int, warmup_epochs: int, interval_epochs: int) -> "DecisionSchedule":
        """The paper's: after the warm-up, then every ``interval_epochs``."""
        for name, number in (("warmup_epochs", warmup_epochs), ("interval_epochs", interval_epochs)):
            if number < 1:
                raise HwbmpqError(f"{name} is {number}: it takes at least one epoch to learn sensitivities")
        _check_warmup(epochs, warmup_epochs)
        return cls(
            epochs=epochs,
            decide_after=tuple(range(warmup_epochs, epochs, interval_epochs)),
            first_window=min(warmup_epochs, interval_epochs),
        )

    @classmethod
    def at(cls, epochs: int, decide_after: Sequence[int]) -> "DecisionSchedule":
        """Aperiodic: at the end of given epochs; the first looks back on the whole warm-up."""
        ascending = sorted(set(decide_after))
        if not ascending or ascending != list(decide_after) or ascending[0] < 1:
            raise HwbmpqError(
                f"decisions after the epochs {', '.join(map(str, decide_after)) or 'none'}: give ascending numbers from 1"
            )
        if ascending[-1] >= epochs:
            raise HwbmpqError(
                f"a decision after epoch {ascending[-1]} of {epochs} comes too late",
                hint="the last interval ends with training: give epochs before the last one",
            )
        return cls(epochs=epochs, decide_after=tuple(ascending), first_window=ascending[0])

    @classmethod
    def after_calibration(
        cls, epochs: int, interval_epochs: int | None, decide_after: Sequence[int] | None, *, settle: float
    ) -> "DecisionSchedule | None":
        """For a run whose first widths were decided before its first epoch; None if they stay."""
        if decide_after is not None:
            return cls.at(epochs, decide_after)
        interval = interval_epochs or max(1, round(_SHARE * epochs))
        if epochs <= interval:
            return None
        found = cls.periodic(epochs=epochs, warmup_epochs=interval, interval_epochs=interval)
        kept = [epoch for epoch in found.decide_after if epoch <= (1 - settle) * epochs]
        return replace(found, decide_after=tuple(kept)) if kept else None

    def settled(self, share: float) -> "DecisionSchedule":
        """The same without decisions in the last ``share`` of the run, except for the first."""
        kept = [epoch for epoch in self.decide_after if epoch <= (1 - share) * self.epochs]
        return replace(self, decide_after=tuple(kept) or self.decide_after[:1])

    @property
    def warmup_epochs(self) -> int:
        return self.decide_after[0]

    def once(self) -> "DecisionSchedule":
        """The same with the first decision only."""
        return DecisionSchedule(
            epochs=self.epochs, decide_after=self.decide_after[:1], first_window=self.first_window
        )

    def is_due(self, epoch: int) -> bool:
        """Whether widths are decided at the end of ``epoch``."""
        return epoch in self.decide_after

    def interval_start(self, epoch: int) -> int:
        """The first epoch of those whose mean is the ENBG during or at the end of ``epoch``."""
        earlier = [decision for decision in self.decide_after if decision < epoch]
        if earlier:
            return earlier[-1] + 1
        # Warm-up: the window before the first decision; until it opens, all there is.
        opens = self.warmup_epochs - self.first_window + 1
        return opens if epoch >= opens else 1


def _check_warmup(epochs: int, warmup_epochs: int) -> None:
    if warmup_epochs < epochs:
        return
    more = f"train more epochs, at least {warmup_epochs + 1} (--epochs {warmup_epochs + 1}; --max-steps must allow as many)"
    shorter = f"shorten the warm-up (--warmup-epochs {max(1, epochs // 10)}), or " if epochs > 1 else ""
    raise HwbmpqError(
        f"{warmup_epochs} of {epochs} epochs are warm-up: the budget would never be enforced",
        hint=f"{shorter}{more}; --epochs 0 calibrates without training",
    )
