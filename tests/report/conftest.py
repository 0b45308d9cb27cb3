"""Reports of runs that never were, for tests of what draws them."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from hwbmpq.allocate import solve, values_for
from hwbmpq.costs import tabulate
from hwbmpq.hardware import load_profile
from hwbmpq.report import (
    CostReport,
    LayerFacts,
    LayerReport,
    Node,
    Plan,
    RunFacts,
    RunReport,
    Unquantized,
    build_report,
    find_trade_off,
)
from hwbmpq.testing import conv_layer
from hwbmpq.values import Sensitivity, TieGroup


def make_report(
    *, layers: int = 6, epochs: int = 5, name: str = "layer{}", run: str = "runs/made-up", **facts: Any
) -> RunReport:
    """A report of a run that never was: convolutions in a row with one shortcut, widths that move once."""
    names = [name.format(number) for number in range(layers)]
    chain = [
        conv_layer(8, 8, size=8, name=one, is_end=number in (0, layers - 1))
        for number, one in enumerate(names)
    ]
    costs = tabulate(chain, load_profile("mpic"), bits=[2, 4])
    limits = {"memory": costs.smallest_and_largest("memory")[0] * 1.2}
    content: dict[str, Any] = {
        "title": f"made up of {layers} layers",
        "target": "mpic",
        "device": costs.profile.title,
        "layers": tuple(
            LayerFacts(
                name=one.name, kind=one.kind, parameters=one.parameters, macs=one.macs, is_end=one.is_end
            )
            for one in chain
        ),
        "ties": (TieGroup(layers=(names[1], names[2]), reason="downsample"),),
        "nodes": (
            Node(name="input", kind="input"),
            *(Node(name=one, kind="conv2d", layer=one) for one in names),
            Node(name="add", kind="add"),
        ),
        "edges": (
            ("input", names[0]),
            *pairwise(names),
            (names[-1], "add"),
            (names[0], "add"),
        ),
        "unquantized": (Unquantized(reason="norm", why="scales", places=2, parameters=32, macs=0),),
        "parameters": sum(one.parameters for one in chain) + 32,
        "macs": sum(one.macs for one in chain),
        "traced_by": "fx",
        "tables": costs.tables,
        "limits": limits,
        "sources": {"paper": "A paper, https://example.org"},
        "caveats": ("one caveat",),
        "settings": {"epochs": epochs, "model": "made:up"},
        "command": ("hwbmpq", "compress", "--model", "made:up"),
        "versions": {"hwbmpq": "0"},
    }
    known = RunFacts(**{**content, **facts})
    scores = {one: 1.0 / (1 + place) for place, one in enumerate(names)}
    sensitivity = Sensitivity(method="enbg", scores=scores)
    allocation = solve(values_for(sensitivity, costs.choices, "linear"), costs.tables, limits, known.ties)
    plan = made_up_plan(known, costs, allocation, sensitivity)
    history = [made_up_epoch(known, costs, plan, number, epochs) for number in range(1, epochs + 1)]
    result = {"test_accuracy": 0.75, "float_accuracy": 0.8, "packed_file": PACKED_FILE}
    trade_off = find_trade_off(known, plan, sensitivity)
    return build_report(run, known, plan, history=history, result=result, trade_off=trade_off)


PACKED_FILE = {
    "predicted_bytes": 1000,
    "actual_bytes": 1024,
    "lines": [
        {"label": "packed weights", "predicted_bytes": 900, "actual_bytes": 900},
        {"label": "file header", "predicted_bytes": 100, "actual_bytes": 124},
    ],
}


def made_up_plan(facts: RunFacts, costs: Any, allocation: Any, sensitivity: Sensitivity) -> Plan:
    problem = allocation.problem
    return Plan(
        target="mpic",
        objective="linear",
        sensitivity=sensitivity,
        layers=tuple(
            LayerReport(
                name=one.name,
                kind=one.kind,
                parameters=one.parameters,
                sensitivity=sensitivity.scores[one.name],
                precision=allocation.bits[one.name],
                is_fixed=one.is_end,
                costs={
                    name: table[one.name][allocation.bits[one.name]]
                    for name, table in costs.tables.items()
                    if table.is_additive
                },
            )
            for one in facts.layers
        ),
        costs={
            name: CostReport(
                name=name,
                unit=table.unit,
                total=table.total(allocation.bits),
                budget=facts.limits.get(name),
                asked="",
                smallest=costs.smallest_and_largest(name)[0],
                largest=costs.smallest_and_largest(name)[1],
                float_total=32 * costs.weights if name == "memory" else None,
            )
            for name, table in costs.tables.items()
        },
        allocation=allocation,
        alternatives=(),
        explanation=None,
        objective_range=problem.objective_range,
        remarks=("one remark",),
    )


def made_up_epoch(facts: RunFacts, costs: Any, plan: Plan, number: int, epochs: int) -> dict[str, Any]:
    """Every layer at its widest in the first epoch, as planned from the second on."""
    widest = {one.name: max(costs.choices[one.name]) for one in facts.layers}
    planned = {layer.name: layer.precision for layer in plan.layers}
    decision = {
        "decided_by": {**plan.sensitivity.to_dict()},
        "moves": [
            {"layer": name, "before": str(widest[name]), "after": str(planned[name]), "why": "rank 5 of 6"}
            for name in planned
            if number == 1 and planned[name] != widest[name]
        ],
    }
    return {
        "epoch": number,
        "loss": 2.0 / number,
        "train_accuracy": 0.5,
        "test_accuracy": 0.7,
        "test_loss": 1.0,
        "bits": {name: str(width) for name, width in (widest if number == 1 else planned).items()},
        "decision": decision if number < epochs else None,
    }


@pytest.fixture(scope="session")
def made_up_report() -> Callable[..., RunReport]:
    return make_report
