"""Widths without training: from a described network to a plan, and what it is worth."""

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any

import torch
from torch import Tensor, nn

import hwbmpq
from hwbmpq.allocate import Allocation, AllocationError, Explanation, Frontier, explain, frontier, values_for
from hwbmpq.allocate.problem import AllocationProblem
from hwbmpq.allocate.solve import solve_problem
from hwbmpq.costs import CostTable
from hwbmpq.costs.stored import WIDER, stored_lines
from hwbmpq.data import LabelledImages, chance_remark
from hwbmpq.data.batches import LoaderImages
from hwbmpq.data.inputs import Inputs, ModelInputs, first_tensor
from hwbmpq.errors import HwbmpqError
from hwbmpq.graph import LayerGraph
from hwbmpq.graph.layergraph import outline
from hwbmpq.hardware import uniform
from hwbmpq.hardware.widths import uniform_pair
from hwbmpq.quant.layers import eval_mode
from hwbmpq.report import Alternative, CostReport, LayerFacts, LayerReport, Node, Plan, RunFacts
from hwbmpq.search.space import Choices, SearchSpace
from hwbmpq.sensitivity import measure_sensitivity
from hwbmpq.sensitivity.measure import LossFunction
from hwbmpq.values import Precision, Sensitivity

_PACKAGES = ("torch", "timm", "pyomo", "highspy", "onnxruntime")


def facts_of(
    space: SearchSpace, *, title: str, settings: Mapping[str, Any] | None = None, command: Sequence[str] = ()
) -> RunFacts:
    """What is known before widths are chosen, as plain values."""
    graph, costs = space.graph, space.costs
    profile = costs.profile
    kept = outline(graph.operations)
    return RunFacts(
        title=title,
        target=profile.target,
        device=profile.title,
        layers=tuple(LayerFacts.of(layer) for layer in graph),
        ties=graph.ties,
        nodes=tuple(
            Node(name=name, kind=data.get("kind") or "", layer=data.get("layer") or "")
            for name, data in kept.nodes(data=True)
        ),
        edges=tuple(kept.edges),
        unquantized=graph.uncovered_by_reason,
        parameters=graph.parameters,
        macs=graph.macs,
        traced_by=graph.traced_by,
        tables=costs.tables,
        limits=space.limits,
        sources={
            ident: f"{source.title}, {source.url}" if source.url else source.title
            for ident, source in profile.sources.items()
        },
        caveats=profile.caveats,
        settings=settings or {},
        command=tuple(command),
        versions=versions(),
    )


def versions() -> dict[str, str]:
    """Of hwbmpq and of what its answers depend on."""
    found = {"hwbmpq": hwbmpq.__version__, "Python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


MEASURING_BATCH = 16
"""Images in a batch of the calibration pass."""
_EXTRA_BITS = 8 * 10 * 1024
"""+10 KiB: what a memory budget is asked to grow by."""


def measure(
    network: nn.Module,
    graph: LayerGraph,
    choices: Sequence[Choices],
    images: LabelledImages | LoaderImages | None,
    *,
    method: str = "enbg",
    batch_size: int = MEASURING_BATCH,
    on_batch: Callable[[int], None] | None = None,
    is_trained: bool = False,
    loss: LossFunction | None = None,
    with_activations: bool = False,
) -> Sensitivity:
    """Sensitivity by a short calibration pass, for the candidates of one or several devices; no training.

    ``is_trained``: a network that is hardly better than guessing gets a remark. ``loss`` is that of (outputs, targets), by
    default a classifier's. ``with_activations``: also what each activation width costs, where a layer has several.
    """
    widths = {
        layer.name: sorted({p.weight_bits for options in choices for p in options[layer.name]})
        for layer in graph
    }
    widest = {layer.name: max(p for options in choices for p in options[layer.name]) for layer in graph}
    batches, remarks = (None, ()) if images is None else _labelled(network, images, batch_size, loss)
    if images is not None and is_trained and loss is None:
        remarks = (*_chance_warnings(network, images, batch_size), *remarks)
    found = measure_sensitivity(
        network,
        graph,
        batches,
        method=method,
        precisions=widest,
        widths=widths,
        on_batch=on_batch,
        loss=loss,
        activation_widths=_activation_widths(choices) if with_activations else {},
    )
    return replace(found, remarks=(*found.remarks, *remarks))


def _activation_widths(choices: Sequence[Choices]) -> dict[str, list[int]]:
    """Of the layers that have several on some device."""
    several = {
        name
        for device in choices
        for name, options in device.items()
        if len({precision.activation_bits for precision in options}) > 1
    }
    return {name: sorted({p.activation_bits for device in choices for p in device[name]}) for name in several}


def _chance_warnings(
    network: nn.Module, images: LabelledImages | LoaderImages, batch_size: int
) -> Iterator[str]:
    """A warning if a trained network is hardly better than guessing on the images to calibrate on."""
    count = correct = 0
    for inputs, labels in images.batches(batch_size):
        scores = _predict(network, inputs)
        if scores.ndim != 2 or scores.shape[1] != images.classes:
            return  # its classes are others: it labels the images itself
        count, correct = count + len(labels), correct + int((scores.argmax(dim=1).cpu() == labels).sum())
    share = correct / max(1, count)
    shown = f"inputs: {images.inputs}"
    doubt = chance_remark(share, count, images.classes, inputs=shown, what="the network", name=images.name)
    if doubt is not None:
        yield doubt


def _labelled(
    network: nn.Module, images: LabelledImages | LoaderImages, batch_size: int, loss: LossFunction | None
) -> tuple[Iterator[tuple[Any, Any]], tuple[str, ...]]:
    """Batches for a network; if the labels are not those of its classes, with its own predictions as labels."""
    if loss is not None:
        return images.batches(batch_size), (f"calibrated on {len(images)} samples of {images.name}",)
    first = next(images.batches(1))[0]
    outputs = _predict(network, first).shape[-1]
    if outputs == images.classes:
        return images.batches(batch_size), (f"calibrated on {len(images)} images of {images.name}",)
    batches = ((x, _predict(network, x).argmax(dim=-1)) for x, _ in images.batches(batch_size))
    return batches, (
        f"calibrated on {len(images)} images of {images.name}, labelled by the network itself: it has {outputs} "
        f"classes, the images have {images.classes}",
    )


def _predict(network: nn.Module, inputs: Inputs) -> Tensor:
    with eval_mode(network), torch.no_grad():
        output = first_tensor(ModelInputs.of(inputs).call(network))
    if output is None:
        raise HwbmpqError("the network returns no tensor: there is nothing to calibrate on")
    return output


def plan(
    space: SearchSpace,
    sensitivity: Sensitivity,
    *,
    objective: str = "linear",
    solver: str = "auto",
    time_limit: float | None = None,
    with_explanation: bool = True,
    on_step: Callable[[int, int], None] | None = None,
) -> Plan:
    """The widths that are worth the most within the budgets; ``InfeasibleBudget`` if there are none."""
    _check_names(space, sensitivity)
    problem = space.problem_for(sensitivity, objective)
    allocation = solve_problem(problem, solver, time_limit, program=space.program)
    return report_on(
        space,
        sensitivity,
        allocation,
        objective=objective,
        with_explanation=with_explanation,
        solver=solver,
        on_step=on_step,
    )


def report_on(
    space: SearchSpace,
    sensitivity: Sensitivity,
    allocation: Allocation,
    *,
    objective: str = "linear",
    is_optimized: bool = True,
    with_explanation: bool = False,
    solver: str = "auto",
    on_step: Callable[[int, int], None] | None = None,
) -> Plan:
    """The report of an allocation: its costs, and the single-width alternatives beside it."""
    costs = space.costs
    problem = space.problem_for(sensitivity, objective)
    allocation = replace(allocation, objective=problem.objective(allocation.bits), problem=problem)
    explanation: Explanation | None = None
    if with_explanation:
        extra = {name: [_EXTRA_BITS] for name in space.limits if costs.table(name).unit == "bit"}
        explanation = explain(allocation, increases=extra, solver=solver, on_step=on_step)
    return Plan(
        target=costs.profile.target,
        objective=objective,
        sensitivity=sensitivity,
        layers=tuple(_layer_reports(space, sensitivity, allocation)),
        costs={name: _cost_report(space, name, allocation) for name in costs.tables},
        allocation=allocation,
        alternatives=tuple(_alternatives(space, problem)),
        explanation=explanation,
        objective_range=problem.objective_range,
        is_optimized=is_optimized,
        remarks=(*space.remarks, *(_objective_remarks(objective, costs.widths) if is_optimized else ())),
        stored=_stored(space, allocation),
        missing={name: str(error) for name, error in costs.missing.items()},
    )


def _stored(space: SearchSpace, allocation: Allocation) -> dict[str, int]:
    """What the network takes as it is stored, and what memory counts beyond that."""
    bits: Any = allocation.bits
    trained = space.as_trained(bits)
    widths = {name: precision.weight_bits for name, precision in trained.items()}
    found = stored_lines(space.graph, widths, space.graph.stored)
    table = space.costs.tables.get("memory")
    if table is not None and table.model == "stored_memory":
        # A width that the device does not have is stored at a wider one there, and as it is in the file.
        found[WIDER] = int(table.total(bits)) - sum(found.values())
    return {label: size for label, size in found.items() if size}


def _objective_remarks(objective: str, widths: Sequence[int]) -> list[str]:
    if objective != "linear" or len(widths) < 3:
        return []
    return [
        "with more than two widths the linear objective prefers extremes; the objective error weighs them"
    ]


def _check_names(space: SearchSpace, sensitivity: Sensitivity) -> None:
    unknown = [name for name in sensitivity.scores if name not in space.choices]
    if unknown:
        raise AllocationError(
            f"the sensitivity has scores for {', '.join(unknown[:5])}{' …' if len(unknown) > 5 else ''}, which the network "
            "does not have",
            hint="was it measured on this network?",
        )


def _layer_reports(
    space: SearchSpace, sensitivity: Sensitivity, allocation: Allocation
) -> Iterator[LayerReport]:
    additive = {name: table for name, table in space.costs.tables.items() if table.is_additive}
    for layer in space.graph:
        precision: Any = allocation.bits[layer.name]
        yield LayerReport(
            name=layer.name,
            kind=layer.kind,
            parameters=layer.parameters,
            sensitivity=sensitivity.scores[layer.name],
            precision=precision,
            is_fixed=len(space.choices[layer.name]) == 1,
            costs={
                name: table[layer.name][precision]
                for name, table in additive.items()
                if layer.name in table.rows[0].costs
            },
        )


def _cost_report(space: SearchSpace, name: str, allocation: Allocation) -> CostReport:
    table = space.costs.table(name)
    smallest, largest = space.costs.smallest_and_largest(name)
    return CostReport(
        name=name,
        unit=table.unit,
        total=allocation.costs[name],
        budget=space.limits.get(name),
        asked=space.asked.get(name, ""),
        smallest=smallest,
        largest=largest,
        float_total=table.float_total,
        capacity=None if table.capacity is None else (table.capacity.level, table.capacity.bits),
        uncosted=table.uncosted,
        estimated=tuple(_estimates(table, allocation.bits)),
        estimated_share=table.estimated_share(allocation.bits),  # type: ignore[arg-type]
        leaves_out=table.leaves_out,
    )


def _estimates(table: CostTable, bits: Mapping[str, Any]) -> Iterator[str]:
    """``conv1 (scaled by MACs from conv2d 3x3)``."""
    for name in table.estimates(bits):
        how = table.origins.get(name, {}).get(bits[name], "")
        yield f"{name} ({how})" if how else name
    if table.estimated_constant:
        yield "what is computed outside of layers"


def _alternatives(space: SearchSpace, problem: AllocationProblem) -> Iterator[Alternative]:
    """One width for all, or one pair for all where widths are chosen apart."""
    pairs = space.pairs_apart
    for pair in pairs:
        yield _alternative(space, problem, uniform_pair(space.choices, pair), pair.weight_bits, str(pair))
    for width in () if pairs else space.costs.widths:
        yield _alternative(space, problem, uniform(space.choices, width), width, space.costs.label(width))


def _alternative(
    space: SearchSpace, problem: AllocationProblem, bits: Mapping[str, Precision], width: int, label: str
) -> Alternative:
    totals = {name: table.total(bits) for name, table in space.costs.tables.items()}
    return Alternative(
        label=label,
        weight_bits=width,
        costs=totals,
        objective=problem.objective(bits),
        fits=problem.is_within_budgets(bits),
    )


def trade_off(
    space: SearchSpace,
    sensitivity: Sensitivity,
    costs: Sequence[str],
    *,
    objective: str = "linear",
    samples: int = 24,
    solver: str = "auto",
    on_step: Callable[[int, int], None] | None = None,
) -> Frontier:
    """What each amount of a cost buys on a device, whatever the budgets are."""
    _check_names(space, sensitivity)
    values = values_for(sensitivity, space.choices, objective)
    tables = {name: space.costs.table(name) for name in costs}
    return frontier(values, tables, space.graph.ties, samples=samples, solver=solver, on_step=on_step)
