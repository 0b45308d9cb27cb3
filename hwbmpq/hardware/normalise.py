"""Brings what people write to the form that the schema checks, and puts ``extends`` and ``modes`` together.

``bandwidth: 25.6 GB/s`` becomes ``bandwidth_bytes_per_s: {value: 2.56e10, kind: …, src: …}``: units are read
from the text or the key, and a bare number takes the ``kind`` and ``src`` of the block it stands in.
"""

import math
from typing import Any, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hwbmpq.hardware.document import ProfileProblem, YamlNode, unknown_key
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.schema import (
    Quantity,
    RateRow,
    Sourced,
    block_of,
    fields_by_key,
    quantity_of,
    short_keys,
)
from hwbmpq.units import parse_quantity, shown

BLANK = "FILL_IN"
"""What a template writes where a person has to."""

_ORIGIN = ("kind", "src")
_ROW_ORIGIN = ("kind", "src", "note")  # a row is about one figure: its note is the figure's
_LARGEST = 1e30  # products of a few figures stay finite
_OWN = ("abstract", "extends", "name")
"""Keys that a profile never takes from its base."""
_FIXED = ("modes", "schema", *_OWN)
"""Keys that a mode cannot change."""

Problems = list[ProfileProblem]
Origin = dict[str, YamlNode]
"""``kind`` and ``src`` of a block, for the bare numbers in it."""


def normalise(
    node: YamlNode, model: type[BaseModel], problems: Problems, origin: Origin | None = None
) -> YamlNode:
    """A copy of ``node`` in canonical form; what cannot be read is added to ``problems``."""
    if not isinstance(node.value, dict):
        return node
    names = _ROW_ORIGIN if issubclass(model, RateRow) else _ORIGIN
    own = {name: node.mapping[name] for name in names if name in node.mapping}
    origin = {**(origin or {}), **own} if issubclass(model, Sourced) else {}
    fields, full_key = fields_by_key(model), short_keys(model)
    content: dict[str, YamlNode] = {}
    for key, child in node.value.items():
        name = full_key.get(key, key)
        if name != key and name in node.value:
            problems.append(child.problem(f"given twice, also as `{name}`"))
        if name in fields:
            child = _normalise_field(child, fields[name], problems, origin, needs_unit=name != key)
        content[name] = child
    return node.holding(content)


def _normalise_field(
    node: YamlNode, info: FieldInfo, problems: Problems, origin: Origin, *, needs_unit: bool
) -> YamlNode:
    quantity, model = quantity_of(info), block_of(info)
    if quantity is None and model is not None:
        if isinstance(node.value, list):
            return node.holding([normalise(item, model, problems, origin) for item in node.value])
        return normalise(node, model, problems, origin)
    if quantity is None or node.value is None or isinstance(node.value, list):
        return node
    if "value" in node.mapping and node.mapping["value"].value is None:
        return node.holding(None)  # unknown
    content = {**origin, **(node.value if isinstance(node.value, dict) else {"value": node})}
    if "value" in content and content["value"].value != BLANK:
        value = content["value"]
        try:
            content["value"] = value.holding(_number(value, quantity, needs_unit=needs_unit))
        except ValueError as error:
            problems.append(ProfileProblem(place=value.place, field=node.path, message=str(error)))
            content["value"] = value.holding(1.0)  # stands in, so that the other checks can go on
    return node.holding(content)


def _number(node: YamlNode, quantity: Quantity, *, needs_unit: bool) -> float:
    """The number in the figure's unit, or ``ValueError``."""
    value: Any = node.value
    if isinstance(value, str):
        value = parse_quantity(value, quantity.dimension, needs_unit=needs_unit)
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"expected a number, found {shown(node.plain())}")
    elif needs_unit:
        raise ValueError(f"{value} has no unit; write it like {quantity.dimension.examples}")
    if not math.isfinite(value):
        raise ValueError(f"{shown(node.value)} is not a finite figure")
    if value < 0 or (value == 0 and not quantity.may_be_zero):
        raise ValueError(f"{shown(node.value)} must be greater than zero")
    if value > _LARGEST or 0 < value < 1 / _LARGEST:
        raise ValueError(f"{shown(node.value)} is not a figure of a real device")
    return float(value)


def merge(base: YamlNode, child: YamlNode) -> YamlNode:
    """The child over its base: maps merge; figures, lists and choices of a cost model replace."""
    inherited = {key: node for key, node in base.mapping.items() if key not in _OWN}
    return _merge(base.holding(inherited), child)


def _merge(base: YamlNode, child: YamlNode) -> YamlNode:
    both_are_maps = isinstance(base.value, dict) and isinstance(child.value, dict)
    if not both_are_maps or "value" in child.mapping or "model" in child.mapping:
        return child
    content = dict(base.mapping)
    for key, node in child.mapping.items():
        content[key] = _merge(content[key], node) if key in content else node
    return child.holding(content)


def apply_mode(root: YamlNode, mode: str, problems: Problems) -> YamlNode:
    """The profile with the dotted overrides of one of its modes."""
    overrides = root.mapping["modes"].mapping[mode].mapping
    origin = {key: overrides[key] for key in _ORIGIN if key in overrides}
    for key, node in overrides.items():
        if key not in _ROW_ORIGIN:
            try:
                root = _override(root, HardwareProfile, key.split("."), node, problems, origin)
            except ValueError as error:
                problems.append(node.problem(str(error)))
    return root


def _override(
    node: YamlNode,
    model: type[BaseModel],
    steps: list[str],
    new: YamlNode,
    problems: Problems,
    origin: Origin,
) -> YamlNode:
    """A copy of ``node`` with ``new`` at ``steps``; ``ValueError`` if there is no such field."""
    step, *rest = steps
    if isinstance(node.value, list):
        names = [str(item.mapping["name"].value) if "name" in item.mapping else "" for item in node.value]
        if step not in names:
            raise ValueError(f"no entry named {step[:40]!r}; there are: {', '.join(names)}")
        if not rest:
            raise ValueError("names a whole entry; override one of its keys")
        items, index = list(node.value), names.index(step)
        items[index] = _override(items[index], model, rest, new, problems, origin)
        return node.holding(items)
    fields, full_key = fields_by_key(model), short_keys(model)
    name = full_key.get(step, step)
    if name not in fields or name in _FIXED:
        raise ValueError(unknown_key(step, [key for key in [*full_key, *fields] if key not in _FIXED]))
    below = node.mapping.get(name, YamlNode(value={}, place=node.place))
    block = block_of(fields[name])
    if not rest:
        new = _normalise_field(new, fields[name], problems, origin, needs_unit=name != step)
    elif get_origin(fields[name].annotation) is dict and len(rest) == 1:
        new = below.holding({rest[0]: new})  # cost_models.latency, budgets.flash
    elif block is None:
        raise ValueError(f"`{step}` has no keys below it")
    else:
        new = _override(below, block, rest, new, problems, origin)
    return node.holding({**node.mapping, name: _merge(below, new) if name in node.mapping else new})
