"""Probes of accuracy: a network calibrated at one budget after another, each measured on validation images."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from hwbmpq import distributed
from hwbmpq.allocate.infeasible import budget_for, smallest_bits
from hwbmpq.allocate.problem import AllocationProblem
from hwbmpq.allocate.solve import bits_of, find_best, solve_problem
from hwbmpq.costs.table import Number
from hwbmpq.data.images import ImageData
from hwbmpq.errors import HwbmpqError
from hwbmpq.hardware import load_profile
from hwbmpq.quant import as_float
from hwbmpq.report import AccuracyProbe, AccuracySearch
from hwbmpq.search.allocator import BitAllocator
from hwbmpq.search.space import SearchSpace
from hwbmpq.tasks import Task
from hwbmpq.training.evaluation import evaluate, evaluation_batches
from hwbmpq.training.hooks import TrainingHook
from hwbmpq.training.ptq.run import calibrated_sensitivity, loss_of, post_training, rounding_inputs
from hwbmpq.training.settings import RunSettings
from hwbmpq.training.setup import HESSIAN_IMAGES, calibration_batches, example_input
from hwbmpq.values import Sensitivity


def budgets_for_search(settings: RunSettings, budget: float | None = None) -> dict[str, str | float]:
    """The budgets in force, the profile's own where none are given, with ``budget`` on the cost that is minimised.

    Without one it may take all that it takes at the widest widths, unless a budget on it was given.
    """
    given: Mapping[str, str | float] = settings.budgets or load_profile(settings.target).budgets
    cost = minimised(settings)
    return {**given, cost: given.get(cost, "100%") if budget is None else float(budget)}


def minimised(settings: RunSettings) -> str:
    """The cost that is traded against accuracy."""
    return settings.minimise or "memory"


class Prober:
    """Calibrates a copy of ``network`` at any budget, from the same float weights and by one sensitivity."""

    def __init__(
        self,
        network: nn.Module,
        data: ImageData,
        settings: RunSettings,
        task: Task,
        *,
        hooks: Sequence[TrainingHook] = (),
        sensitivity: Sensitivity | None = None,
    ) -> None:
        if data.validation is None:
            raise HwbmpqError(
                f"{data.name} has no validation {data.samples} to measure accuracy on, and none can be held out",
                hint="hold some out with --validation 0.1, or give a validation loader of your own",
            )
        update = {
            "epochs": 0,
            "warmup_epochs": None,
            "interval_epochs": None,
            "decide_after": None,
            "inertia": 0.0,
        }
        self.settings = settings.model_copy(update={**update, "budgets": budgets_for_search(settings)})
        self.cost, self.validation = minimised(settings), data.validation
        self._network, self._task, self.hooks = deepcopy(network), task, hooks
        self._allocator = BitAllocator(
            self._network,
            example_input(self._network, data.train),
            config=self.settings,
            calibration=lambda: calibration_batches(data.train, HESSIAN_IMAGES),
            loss=loss_of(task),
        )
        self.space: SearchSpace = self._allocator.space
        with as_float(self._network):
            self.in_float = self._value()
        self.sensitivity = sensitivity or calibrated_sensitivity(
            self._network, self._allocator, data, self.settings, task, hooks
        )
        self._images = rounding_inputs(data, self.settings)
        self._start = _copied(self._network.state_dict())

    @property
    def search(self) -> AccuracySearch:
        """What is known before the first probe."""
        return AccuracySearch(
            cost=self.cost,
            unit=self.space.costs.table(self.cost).unit,
            metric=self._task.described,
            in_float=self.in_float,
            images=len(self.validation),
        )

    @property
    def ends(self) -> tuple[Number, Number]:
        """The least that the cost can be under the other budgets, and what the widest widths within all budgets cost."""
        solver = self.settings.solver
        narrow = smallest_bits(
            self._problem, self.cost, self._others, lambda other: bits_of(find_best(other, solver))
        )
        assert narrow is not None, "budgets that cannot be met are found before"
        low = budget_for(self._problem, self.cost, narrow)
        return low, max(low, self.snap(self.space.limits[self.cost]))

    def snap(self, budget: float) -> Number:
        """What the best widths within a budget cost, as a budget that they meet."""
        within = self._problem.with_budgets({**self._others, self.cost: budget})
        best = find_best(within, self.settings.solver) or solve_problem(within, self.settings.solver)
        return budget_for(within, self.cost, best.bits)

    @property
    def _others(self) -> dict[str, float]:
        return {name: limit for name, limit in self.space.limits.items() if name != self.cost}

    @property
    def _problem(self) -> AllocationProblem:
        is_own = self._allocator.method.name == "bmpq"  # others have values of their own, or none
        return self.space.problem_for(self.sensitivity, self.settings.objective if is_own else "linear")

    def probe(self, budget: float) -> AccuracyProbe:
        """Decide within a budget, calibrate, and measure; nothing is left of the probe before."""
        self._network.load_state_dict(_copied(self._start))
        limits = {**self._others, self.cost: budget}
        self._allocator.space = replace(self.space, limits=limits)
        self._allocator.decide(self.sensitivity)
        post_training(self._network, self._images)
        return probe_of(self._allocator, self._value())

    def _value(self) -> float:
        return distributed.on_first_rank(
            lambda: evaluate(self._network, evaluation_batches(self.validation), self._task).value
        )


def probe_of(allocator: BitAllocator, value: float, *, is_trained: bool = False) -> AccuracyProbe:
    """The widths that an allocator has given, and what was measured with them."""
    graph, bits = allocator.space.graph, allocator.bits
    weights = sum(layer.parameters for layer in graph) or 1
    return AccuracyProbe(
        costs={name: table.total(bits) for name, table in allocator.space.costs.tables.items()},
        average_bits=sum(layer.parameters * bits[layer.name].weight_bits for layer in graph) / weights,
        value=value,
        weight_bits=tuple(bits[layer.name].weight_bits for layer in graph),
        is_trained=is_trained,
    )


def tell_probe(hooks: Sequence[TrainingHook], search: AccuracySearch, done: int, total: int) -> None:
    """Say what the last probe gave, on rank 0."""
    for hook in hooks if distributed.rank() == 0 else ():
        hook.during_calibration("probing accuracy", done, total)
        hook.after_probe(search.probes[-1], search)


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else deepcopy(value)
        for name, value in state.items()
    }
