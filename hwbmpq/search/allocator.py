"""``BitAllocator``: widths that are learned inside anybody's own training loop."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import nn

from hwbmpq import distributed
from hwbmpq.allocate import Allocation
from hwbmpq.data.inputs import Inputs
from hwbmpq.deprecated import renamed_arguments, warn
from hwbmpq.errors import HwbmpqError
from hwbmpq.graph import describe
from hwbmpq.hardware import HardwareProfile, load_profile
from hwbmpq.quant import InputQuantizer, WeightQuantizer, assign, prepare, quantized_layers
from hwbmpq.search import loop_checks
from hwbmpq.search.config import AllocationConfig, allocation_config
from hwbmpq.search.decisions import CalibrationBatches, Decision, DecisionContext, weighed_scores
from hwbmpq.search.methods import Method, checked_decision, get_method
from hwbmpq.search.schedule import DecisionSchedule
from hwbmpq.search.space import SearchSpace
from hwbmpq.sensitivity.activations import ActivationErrorMeter, ImageCounter, is_sampled, mean_of_errors
from hwbmpq.sensitivity.alternatives import squared_errors
from hwbmpq.sensitivity.density_meter import DensityMeter
from hwbmpq.sensitivity.enbg import BitGradientCollector, mean_over_epochs
from hwbmpq.sensitivity.measure import LossFunction
from hwbmpq.values import FLOAT_BITS, Precision, Sensitivity

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

    ``example_args`` is what the network is called with: a tensor, a tuple of arguments or a dict of keyword arguments, to
    which ``example_kwargs`` adds: ``BitAllocator(model, (ids, mask), {"positions": positions}, target=…)``.

    The keywords are the fields of ``AllocationConfig``, which can be given whole instead. All layers train at their
    widest candidate during the ``warmup_epochs``; then, and after every ``interval_epochs`` more, the integer program
    decides, but not at the end of the last epoch. Budgets that cannot be met raise ``InfeasibleBudget`` here, before
    any training. ``calibration`` returns labelled batches, for methods that measure on their own (``hawq``); ``loss`` is
    their loss of (outputs, targets), by default cross entropy.

    Under torch.distributed (DDP) rank 0 decides for all.
    """

    @renamed_arguments(example_input="example_args")
    def __init__(
        self,
        model: nn.Module,
        example_args: Inputs,
        example_kwargs: Mapping[str, Any] | AllocationConfig | None = None,
        config: AllocationConfig | None = None,
        *,
        calibration: CalibrationBatches | None = None,
        loss: LossFunction | None = None,
        **settings: Any,
    ) -> None:
        if isinstance(example_kwargs, AllocationConfig):  # the third argument, before there were keywords
            example_kwargs, config = None, example_kwargs
        if config is not None and settings:
            raise HwbmpqError(f"give a config or settings, not both: {', '.join(settings)}")
        self.config = allocation_config(**settings) if config is None else config
        self.method = get_method(self.config.method)
        self.schedule = _schedule(self.method, self.config)
        target = self.config.target
        self._profile = target if isinstance(target, HardwareProfile) else load_profile(target)
        graph = describe(model, example_args, example_kwargs, tie=self.config.tie)
        graph = graph.with_scales(per_channel=self.config.per_channel)
        self.space = self.method.search_space(graph, self._profile, self.config)
        self.method.check(self.space, self.config)
        for remark in self.space.not_shown_to_hold:
            loop_checks.warn(remark)
        self.model = model
        self.epoch = 0
        """Epochs that have ended."""
        self.bits: dict[str, Precision] = {}
        """What each layer has now, as the device counts it."""
        self.history: list[Decision] = []
        self._calibration, self._loss = calibration, loss
        self._epoch_norms: list[dict[str, float]] = []
        self._epoch_squares: list[dict[str, float]] = []
        self._epoch_activation_errors: list[dict[str, dict[int, float]]] = []
        prepare(model, graph, per_channel=self.config.per_channel, quantizer=self.config.quantizer)
        self._collector: BitGradientCollector | None = None
        self._activations: ActivationErrorMeter | None = None
        self._images: ImageCounter | None = None
        self._step = 0
        """Steps of the running epoch."""
        if "enbg" in self.method.looks_at:
            widest = {name: precision.weight_bits for name, precision in self.space.widest.items()}
            self._collector = BitGradientCollector(
                model, widest, with_squares=self.config.objective == "error"
            )
            self._weigh_errors()
        self._watch = loop_checks.LoopWatch(model)
        self._densities: DensityMeter | None = None
        if "density" in self.method.looks_at:
            self._densities = DensityMeter(model, graph, in_training_only=True)
        self._start()

    def _weigh_errors(self) -> None:
        """For the objective ``error``: count images, and look at activations where their widths differ."""
        if self.config.objective != "error":
            return
        self._images = ImageCounter(self.model)
        if self.space.activation_widths:
            self._activations = ActivationErrorMeter(self.model, self.space.activation_widths)
            self._activations.watch()

    def _start(self) -> None:
        if self.method.in_float:
            self.bits = dict.fromkeys(self.space.choices, _FLOAT)
            assign(self.model, self.bits)
            return
        self._assign(self.space.widest)
        self._mark()
        if self._densities is not None:
            self._densities.start()
        if self.method.decides == "never":
            self.decide()

    def _assign(self, bits: Mapping[str, Any]) -> None:
        self.bits = dict(bits)
        assign(self.model, self.space.as_trained(self.bits))

    def _mark(self) -> None:
        """Tell those who write files whether the widths are decided."""
        why = loop_checks.undecided(self.epoch, self.config.epochs, self.space.asked)
        loop_checks.mark_undecided(self.model, "" if self.is_settled else why)

    @property
    def question(self) -> SearchSpace:
        """Deprecated: ``space``."""
        warn("BitAllocator.question", "BitAllocator.space")
        return self.space

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

    def step(self, scaler: Any = None, *, is_unscaled: bool = False) -> None:
        """Read the gradients of an optimizer step: complete, averaged over ranks, before clipping.

        With a ``GradScaler``, pass it; ``is_unscaled`` if you called its ``unscale_`` for this step.
        """
        images = 1 if self._images is None else self._images.take()
        if self._collector is not None:
            # The factor puts weights and activations on one scale; without the latter, errors are as in 0.1.0.
            on_all = 1 if self._activations is None else images * distributed.rank_count()
            self._collector.add_step(None if is_unscaled else scaler, images=on_all)
        self._step += 1
        if self._activations is not None:
            if is_sampled(self._step):
                self._activations.add_step(images, scaler)
            self._activations.watch(is_sampled(self._step + 1))
        self._watch.after_step(self._collector)
        if distributed.is_distributed():
            self._average_clipping_points()

    def _average_clipping_points(self) -> None:
        """DDP looks once which parameters train; clipping points and steps that begin to at a decision are left to us."""
        learned = [
            parameter
            for module in self.model.modules()
            if isinstance(module, (InputQuantizer, WeightQuantizer))
            for parameter in module.parameters(recurse=False)
        ]
        gradients = [parameter.grad for parameter in learned if parameter.grad is not None]
        if gradients:
            means = distributed.mean(torch.cat([gradient.flatten() for gradient in gradients]))
            for gradient, mean in zip(
                gradients, torch.split(means, [g.numel() for g in gradients]), strict=True
            ):
                gradient.copy_(mean.view_as(gradient))

    def epoch_end(self) -> Decision | None:
        """Close an epoch; the decision, if widths were decided at its end."""
        self.epoch += 1
        self._watch.check_optimizers()
        loop_checks.warn_of_extra_epoch(self.epoch, self.config.epochs)
        left_out = "" if self._collector is None else self._collector.left_out()
        if self._collector is not None:
            norms, squares = self._collector.close_epoch()
            self._epoch_norms.append(norms)
            self._epoch_squares.append(squares)
        self._step = 0
        if self._activations is not None:
            self._epoch_activation_errors.append(self._activations.close())
            self._activations.watch()
        is_due = self.schedule is not None and self.schedule.is_due(self.epoch)
        sensitivity = self._interval_sensitivity(left_out) if is_due else None
        if left_out:
            loop_checks.warn(f"epoch {self.epoch}: {left_out}")
        decision = None if sensitivity is None else self.decide(sensitivity)
        self._mark()
        if self._densities is not None and not self.history:
            self._densities.start()  # the density of one epoch, the last before the decision
        return decision

    def _interval_sensitivity(self, left_out: str) -> Sensitivity:
        """ENBG over the interval that ends now; ``left_out`` says which steps of its last epoch do not count."""
        if self._collector is None:
            return _NOTHING
        assert self.schedule is not None
        start = self.schedule.interval_start(self.epoch) - 1
        norms, squares = (
            mean_over_epochs(epochs[start:]) for epochs in (self._epoch_norms, self._epoch_squares)
        )
        loop_checks.check_scores(norms, self.epoch, left_out)
        return Sensitivity(
            method="enbg",
            scores=norms,
            errors=self._errors(squares),
            activation_errors=mean_of_errors(self._epoch_activation_errors[start:]),
        )

    def decide(self, sensitivity: Sensitivity = _NOTHING) -> Decision:
        """Decide now, by sensitivities from wherever; ``epoch_end`` calls it when it is time."""
        context = self._context(sensitivity)
        decision = distributed.on_first_rank(
            lambda: checked_decision(self.method, self.method.decide(context), self.space)
        )
        self.history.append(decision)
        self._assign(decision.after)
        distributed.check_equal(self.bits, "the widths")
        self._mark()
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
            method=self.method.name,
            epoch=self.epoch,
            current=self.bits,
            sensitivity=sensitivity,
            earlier_scores=self._earlier_scores(),
            densities=densities,
            calibration=self._calibration,
            loss=self._loss,
            objective=self.config.objective,
            solver=self.config.solver,
            seed=self.config.seed,
            inertia=self.config.inertia if self.history else 0.0,
        )

    def _earlier_scores(self) -> Mapping[str, float]:
        """What the last decision looked at."""
        if not self.history:
            return {}
        last = self.history[-1]
        return weighed_scores(last.decided_by, last.objective, self.space.choices)

    def _errors(self, squares: Mapping[str, float]) -> dict[str, dict[int, float]]:
        """½·mean(g²)·||W - Q(W)||²: the loss that each width is expected to add, for the objective ``error``.

        g² is that of a single image, estimated from those of batches.
        """
        if self.config.objective != "error" or not squares:
            return {}
        errors = {}
        assert self._collector is not None
        weights = self._collector.weights()
        for name, layer in quantized_layers(self.model):
            widths = [precision.weight_bits for precision in self.space.choices[name]]
            found = squared_errors(layer, weights[name], widths)
            errors[name] = {bits: 0.5 * squares[name] * error for bits, error in found.items()}
        return errors

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values, for ``torch.save``. The widths are in the model's own state_dict too."""
        return {
            "format": _STATE,
            "method": self.method.name,
            "memory_as_in": self.config.memory_as_in,
            "question": self._fingerprint(),
            "epoch": self.epoch,
            "bits": {name: str(precision) for name, precision in self.bits.items()},
            "history": [decision.to_dict() for decision in self.history],
            "epoch_norms": [dict(norms) for norms in self._epoch_norms],
            "epoch_squares": [dict(squares) for squares in self._epoch_squares],
            "epoch_activation_errors": [
                {name: dict(errors) for name, errors in epoch.items()}
                for epoch in self._epoch_activation_errors
            ],
            "step": self._step,
            "activations": None if self._activations is None else self._activations.state_dict(),
            "collector": None if self._collector is None else self._collector.state_dict(),
            "densities": None if self._densities is None else self._densities.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another allocator, of the same network under the same question, stood."""
        if not isinstance(state, Mapping) or state.get("format") != _STATE:
            raise HwbmpqError("this is not the state of a BitAllocator")
        self._count_memory_as_in(state.get("memory_as_in", "0.1.0"))  # which did not say
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
        self._load_activations(state)
        if self._densities is not None:
            self._densities.load_state_dict(state["densities"])
            if self.history:
                self._densities.stop()
        self.bits = {name: Precision.parse(text) for name, text in state["bits"].items()}
        assign(self.model, self.bits if self.method.in_float else self.space.as_trained(self.bits))
        self._mark()

    def _load_activations(self, state: Mapping[str, Any]) -> None:
        """States of 0.1.0 know nothing of activations."""
        self._epoch_activation_errors = [
            {name: dict(errors) for name, errors in epoch.items()}
            for epoch in state.get("epoch_activation_errors", [{}] * self.epoch)
        ]
        self._step = state.get("step", 0)
        if self._activations is not None:
            if state.get("activations") is not None:
                self._activations.load_state_dict(state["activations"])
            self._activations.watch(is_sampled(self._step + 1))

    def _count_memory_as_in(self, version: Literal["0.1.0"] | None) -> None:
        """Let ``memory`` mean what it meant when a state was saved."""
        if version != self.config.memory_as_in:
            self.config = self.config.model_copy(update={"memory_as_in": version})
            self.space = self.method.search_space(self.space.graph, self._profile, self.config)

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


def _schedule(method: Method, config: AllocationConfig) -> DecisionSchedule | None:
    if method.decides == "never" or not config.epochs:
        return None
    if config.start == "calibrated":
        # The first decision comes before training, by other sensitivities.
        if method.decides == "once":
            return None
        return DecisionSchedule.after_calibration(
            config.epochs, config.interval_epochs, config.decide_after, settle=config.settle
        )
    schedule = DecisionSchedule.of(
        config.epochs, config.warmup_epochs, config.interval_epochs, config.decide_after
    ).settled(config.settle)
    return schedule.once() if method.decides == "once" else schedule
