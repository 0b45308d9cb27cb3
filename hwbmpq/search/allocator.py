"""``BitAllocator``: widths that are learned inside anybody's own training loop."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hwbmpq import distributed
from hwbmpq.allocate import Allocation
from hwbmpq.errors import HwbmpqError
from hwbmpq.graph import describe
from hwbmpq.hardware import HardwareProfile, load_profile
from hwbmpq.quant import InputQuantizer, assign, prepare, quantized_layers
from hwbmpq.search.decisions import Decision, find_moves
from hwbmpq.search.methods import CalibrationBatches, DecisionContext, Outcome, get_method
from hwbmpq.search.schedule import DecisionSchedule
from hwbmpq.search.space import Budgets
from hwbmpq.sensitivity.collector import BitGradientCollector, mean_over_epochs
from hwbmpq.sensitivity.density_meter import DensityMeter
from hwbmpq.sensitivity.weight_error import squared_errors
from hwbmpq.values import DEFAULT_TIE, FLOAT_BITS, Precision, Sensitivity

_FLOAT = Precision(weight_bits=FLOAT_BITS, activation_bits=FLOAT_BITS)
_STATE = "hwbmpq-allocator/1"
_NOTHING = Sensitivity(method="none", scores={})


class BitAllocator:
    """Gives the layers of ``model`` their widths while you train it.

    Changes ``model`` in place: it is prepared for quantization and stays the object that you train, wrap and
    save. Create the optimizer afterwards. Call ``step`` when the gradients of an optimizer step are complete,
    before clipping and before ``optimizer.step()``, and ``epoch_end`` after each epoch:

        allocator = BitAllocator(model, example_input, target="mpic", budgets={"memory": "12x"}, epochs=200)
        for epoch in range(200):
            for x, y in loader:
                loss = criterion(model(x), y)
                loss.backward()
                allocator.step()
                optimizer.step()
                optimizer.zero_grad()
            allocator.epoch_end()

    ``target`` is a profile, its name or its file. ``budgets`` as people say them; by default the profile's own.
    ``bits`` are the candidate weight widths. All layers train at their widest candidate during the
    ``warmup_epochs``; then, and after every ``interval_epochs`` more, the integer program decides, but not at the
    end of the last epoch (both default to a tenth of ``epochs``). ``decide_after`` names the epochs instead.
    With 0 epochs only ``decide`` does.
    Budgets that cannot be met raise ``InfeasibleBudget`` here, before any training.

    Under torch.distributed (DDP) rank 0 decides for all.
    """

    def __init__(
        self,
        model: nn.Module,
        example_input: Tensor,
        *,
        target: str | Path | HardwareProfile,
        epochs: int,
        budgets: Budgets | None = None,
        bits: Sequence[int] | int | None = None,
        warmup_epochs: int | None = None,
        interval_epochs: int | None = None,
        decide_after: Sequence[int] | None = None,
        activation_bits: str | int = "auto",
        method: str = "bmpq",
        objective: str = "linear",
        solver: str = "auto",
        tie: str = DEFAULT_TIE,
        per_channel: bool = False,
        calibration: CalibrationBatches | None = None,
        seed: int = 0,
    ) -> None:
        self.method = get_method(method)
        self.schedule: DecisionSchedule | None = None
        if self.method.decides != "never" and epochs:
            schedule = DecisionSchedule.of(epochs, warmup_epochs, interval_epochs, decide_after)
            self.schedule = schedule.once() if self.method.decides == "once" else schedule
        profile = target if isinstance(target, HardwareProfile) else load_profile(target)
        graph = describe(model, example_input, tie=tie)
        self.space = self.method.space(graph, profile, budgets, bits, activation_bits)
        self.method.check(self.space, objective, solver)
        self._objective, self._solver, self._seed = objective, solver, seed
        self.model = model
        self.epoch = 0
        """Epochs that have ended."""
        self.bits: dict[str, Precision] = {}
        """What each layer has now, as the device counts it."""
        self.history: list[Decision] = []
        self._calibration = calibration
        self._epoch_norms: list[dict[str, float]] = []
        self._epoch_squares: list[dict[str, float]] = []
        prepare(model, graph, per_channel=per_channel)
        self._collector: BitGradientCollector | None = None
        if "enbg" in self.method.looks_at:
            widest = {name: precision.weight_bits for name, precision in self.space.widest.items()}
            self._collector = BitGradientCollector(model, widest, with_squares=objective == "error")
        self._densities: DensityMeter | None = None
        if "density" in self.method.looks_at:
            self._densities = DensityMeter(model, graph, in_training_only=True)
        self._start()

    def _start(self) -> None:
        if self.method.in_float:
            self.bits = dict.fromkeys(self.space.choices, _FLOAT)
            assign(self.model, self.bits)
            return
        self._assign(self.space.widest)
        if self._densities is not None:
            self._densities.start()
        if self.method.decides == "never":
            self.decide()

    def _assign(self, bits: Mapping[str, Any]) -> None:
        self.bits = dict(bits)
        assign(self.model, self.space.as_trained(self.bits))

    @property
    def allocation(self) -> Allocation | None:
        """The last decision's; None before the first."""
        return self.history[-1].allocation if self.history else None

    @property
    def is_settled(self) -> bool:
        """Whether the network is at widths that the method chose; not so during the warm-up."""
        return self.method.in_float or self.allocation is not None

    @property
    def sensitivities(self) -> dict[str, float]:
        """ENBG by layer, over the running interval so far; before its first step, over the one before."""
        running = [] if self._collector is None else [*self._interval_norms(), self._collector.running()]
        found = mean_over_epochs(running)
        if not found and self.history:
            return dict(self.history[-1].sensitivities)
        return found

    def _interval_norms(self) -> list[dict[str, float]]:
        """NBG of the running interval's epochs that have ended."""
        start = 1 if self.schedule is None else self.schedule.interval_start(self.epoch + 1)
        return self._epoch_norms[start - 1 :]

    def step(self, scaler: Any = None) -> None:
        """Read the gradients of an optimizer step: complete, averaged over ranks, before clipping.

        With a ``GradScaler``, pass it, unless you called its ``unscale_`` for this step.
        """
        if self._collector is not None:
            self._collector.add_step(scaler)
        if distributed.is_distributed():
            self._average_clipping_points()

    def _average_clipping_points(self) -> None:
        """DDP looks once which parameters train; clipping points that begin to at a decision are left to us."""
        alphas = [m.alpha for m in self.model.modules() if isinstance(m, InputQuantizer)]
        gradients = [alpha.grad for alpha in alphas if alpha.grad is not None]
        if gradients:
            means = distributed.mean(torch.stack(gradients))
            for gradient, mean in zip(gradients, means, strict=True):
                gradient.copy_(mean)

    def epoch_end(self) -> Decision | None:
        """Close an epoch; the decision, if widths were decided at its end."""
        self.epoch += 1
        if self._collector is not None:
            norms, squares = self._collector.close_epoch()
            self._epoch_norms.append(norms)
            self._epoch_squares.append(squares)
        is_due = self.schedule is not None and self.schedule.is_due(self.epoch)
        decision = self.decide(self._interval_sensitivity()) if is_due else None
        if self._densities is not None and not self.history:
            self._densities.start()  # the density of one epoch, the last before the decision
        return decision

    def _interval_sensitivity(self) -> Sensitivity:
        """ENBG over the interval that ends now."""
        if self._collector is None:
            return _NOTHING
        assert self.schedule is not None
        start = self.schedule.interval_start(self.epoch) - 1
        norms, squares = (
            mean_over_epochs(epochs[start:]) for epochs in (self._epoch_norms, self._epoch_squares)
        )
        if not norms:
            raise HwbmpqError(
                f"no bit gradients were collected up to epoch {self.epoch}, so there is nothing to decide by",
                hint="call allocator.step() after loss.backward(), before the gradients are cleared",
            )
        return Sensitivity(method="enbg", scores=norms, errors=self._errors(squares))

    def decide(self, sensitivity: Sensitivity = _NOTHING) -> Decision:
        """Decide now, by sensitivities from wherever; ``epoch_end`` calls it when it is time."""
        context = self._context(sensitivity)
        outcome: Outcome = distributed.on_first_rank(lambda: _without_problem(self.method.decide(context)))
        decision = self._decision(sensitivity.scores, outcome)
        self.history.append(decision)
        self._assign(decision.after)
        distributed.check_equal(self.bits, "the widths")
        if self._densities is not None:
            self._densities.stop()
        return decision

    def _context(self, sensitivity: Sensitivity) -> DecisionContext:
        densities = sensitivity.scores if sensitivity.method == "activation_density" else {}
        if self._densities is not None and not densities:
            densities = self._densities.densities()
        return DecisionContext(
            space=self.space,
            model=self.model,
            current=self.bits,
            sensitivity=sensitivity,
            densities=densities,
            calibration=self._calibration,
            objective=self._objective,
            solver=self._solver,
            seed=self._seed,
        )

    def _errors(self, squares: Mapping[str, float]) -> dict[str, dict[int, float]]:
        """½·mean(g²)·||W - Q(W)||²: the loss that each width is expected to add, for the objective ``error``."""
        if self._objective != "error" or not squares:
            return {}
        errors = {}
        assert self._collector is not None
        weights = self._collector.weights()
        for name, layer in quantized_layers(self.model):
            widths = [precision.weight_bits for precision in self.space.choices[name]]
            found = squared_errors(layer, weights[name], widths)
            errors[name] = {bits: 0.5 * squares[name] * error for bits, error in found.items()}
        return errors

    def _decision(self, norms: Mapping[str, float], outcome: Outcome) -> Decision:
        after: Any = outcome.allocation.bits
        earlier = self.history[-1] if self.history else None
        free = {
            layer.name: layer.parameters
            for layer in self.space.graph
            if len(self.space.choices[layer.name]) > 1
        }
        before_scores = earlier.decided_by.scores if earlier else {}
        return Decision(
            epoch=self.epoch,
            method=self.method.name,
            sensitivities=norms,
            decided_by=outcome.sensitivity,
            objective=outcome.objective,
            before=self.bits,
            after=after,
            allocation=outcome.allocation,
            moves=find_moves(
                self.bits,
                after,
                outcome.sensitivity.scores if self.method.by_scores else {},
                before_scores,
                free,
            ),
        )

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values, for ``torch.save``. The widths are in the model's own state_dict too."""
        return {
            "format": _STATE,
            "method": self.method.name,
            "question": self._fingerprint(),
            "epoch": self.epoch,
            "bits": {name: str(precision) for name, precision in self.bits.items()},
            "history": [decision.to_dict() for decision in self.history],
            "epoch_norms": [dict(norms) for norms in self._epoch_norms],
            "epoch_squares": [dict(squares) for squares in self._epoch_squares],
            "collector": None if self._collector is None else self._collector.state_dict(),
            "densities": None if self._densities is None else self._densities.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another allocator, of the same network under the same question, stood."""
        if not isinstance(state, Mapping) or state.get("format") != _STATE:
            raise HwbmpqError("this is no state of a BitAllocator")
        if state["method"] != self.method.name or state["question"] != self._fingerprint():
            raise HwbmpqError(
                "the state belongs to another network, device or budget",
                hint="give the same model, target, budgets and widths as when it was saved",
            )
        self.epoch = state["epoch"]
        self.history = [Decision.from_dict(content) for content in state["history"]]
        self._epoch_norms = [dict(norms) for norms in state["epoch_norms"]]
        self._epoch_squares = [dict(squares) for squares in state["epoch_squares"]]
        if self._collector is not None:
            self._collector.load_state_dict(state["collector"])
        if self._densities is not None:
            self._densities.load_state_dict(state["densities"])
            if self.history:
                self._densities.stop()
        self.bits = {name: Precision.parse(text) for name, text in state["bits"].items()}
        assign(self.model, self.bits if self.method.in_float else self.space.as_trained(self.bits))

    def _fingerprint(self) -> dict[str, Any]:
        """What must not have changed between saving and loading."""
        return {
            "target": self.space.costs.profile.target,
            "limits": dict(self.space.limits),
            "choices": {
                name: [str(precision) for precision in options]
                for name, options in self.space.choices.items()
            },
        }


def _without_problem(outcome: Outcome) -> Outcome:
    """Fit to be sent to other ranks: the whole integer program stays here."""
    allocation = Allocation.from_dict(outcome.allocation.to_dict())
    return replace(outcome, allocation=allocation)
