"""Which activations are in memory at each step of a forward pass."""

from dataclasses import dataclass, field
from math import prod

import networkx as nx

from hwbmpq.graph.dataflow import Dataflow
from hwbmpq.values import Schedule, StoredTensor


@dataclass(slots=True)
class _Fate:
    """What becomes of an operation's result, up to the next layers and additions."""

    readers: dict[str, None] = field(default_factory=dict)  # an ordered set
    feeds_addition: bool = False
    leaves: bool = False


def find_schedule(operations: nx.DiGraph) -> Schedule:
    """The steps of the execution order and the tensors alive at each.

    An operation without weights that reads one tensor, alone, and keeps its size works in place. What the
    network is given is in memory from the first step until its last reader.
    """
    flow = Dataflow(operations)
    steps: list[str] = []
    step_of: dict[str, int] = {}
    owner: dict[str, str] = {}  # operation -> the operation that made the tensor it writes to
    for name in operations:
        if name not in flow.data:
            continue
        reads = flow.data_inputs(name)
        if reads and _works_in_place(flow, name, reads):
            owner[name] = owner[reads[0]]
            step_of[name] = step_of[owner[name]]
            continue
        owner[name] = name
        step_of[name] = len(steps) if reads else 0  # an input is there from the start
        if reads:
            steps.append(flow.label(name))
    return Schedule(steps=tuple(steps), tensors=_tensors(flow, owner, step_of, last=len(steps) - 1))


def _works_in_place(flow: Dataflow, name: str, reads: list[str]) -> bool:
    if flow.tensor_read(name) != name:
        return True  # it hands on what it reads, whoever else reads that
    if flow.layer(name) or len(reads) != 1:
        return False
    only_reader = sum(reader in flow.data for reader in flow.graph.succ[reads[0]]) == 1
    return only_reader and prod(flow.shape(name)) == prod(flow.shape(reads[0]))


def _tensors(
    flow: Dataflow, owner: dict[str, str], step_of: dict[str, int], *, last: int
) -> tuple[StoredTensor, ...]:
    fates = _fates(flow)
    last_read = {made_by: step_of[made_by] for made_by in owner.values()}
    for name, made_by in owner.items():
        if flow.is_output(name):
            last_read[made_by] = last  # the network's output stays
        for read in flow.data_inputs(name):
            last_read[owner[read]] = max(last_read[owner[read]], step_of[name])
    found = []
    for made_by, last_read_at in last_read.items():
        fate = fates[made_by]
        found.append(
            StoredTensor(
                name=flow.label(made_by),
                elements=prod(flow.shape(made_by)),
                made_at=step_of[made_by],
                last_read_at=last_read_at,
                readers=tuple(fate.readers),
                feeds_addition=fate.feeds_addition,
                leaves=fate.leaves,
            )
        )
    return tuple(found)


def _fates(flow: Dataflow) -> dict[str, _Fate]:
    fates: dict[str, _Fate] = {}
    for name in reversed([name for name in flow.graph if name in flow.data]):
        fate = fates[name] = _Fate()
        readers = [reader for reader in flow.graph.succ[name] if reader in flow.data]
        fate.leaves = flow.is_output(name)
        for reader in readers:
            if flow.layer(reader):
                fate.readers[flow.layer(reader)] = None
            elif flow.is_addition(reader) and len(flow.data_inputs(reader)) > 1:
                fate.feeds_addition = True
            else:
                fate.readers |= fates[reader].readers
                fate.feeds_addition |= fates[reader].feeds_addition
                fate.leaves |= fates[reader].leaves
    return fates
