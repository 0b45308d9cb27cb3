"""Brings what people write to the form that the schema checks.

``bandwidth: 25.6 GB/s`` becomes ``bandwidth_bytes_per_s: {value: 2.56e10, kind: …, src: …}``: units are read
from the text or the key, and a bare number takes the ``kind`` and ``src`` of the block it stands in.
"""

import math
from collections.abc import Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hwbmpq.hardware.document import YamlNode
from hwbmpq.hardware.problems import ProfileProblem
from hwbmpq.hardware.schema import Quantity, RateRow, Sourced, quantity_of, short_keys
from hwbmpq.units import parse_quantity, shown

BLANK = "FILL_IN"
"""What a template writes where a person has to."""

_ORIGIN = ("kind", "src")
_LARGEST = 1e30  # products of a few figures stay finite
_ROW_ORIGIN = ("kind", "src", "note")  # a row is about one figure: its note is the figure's


def normalise(
    node: YamlNode,
    model: type[BaseModel],
    problems: list[ProfileProblem],
    path: str = "",
    origin: dict[str, YamlNode] | None = None,
) -> YamlNode:
    """A copy of ``node`` in canonical form; what cannot be read is added to ``problems``."""
    if not isinstance(node.value, dict):
        return node
    fields = {info.alias or name: info for name, info in model.model_fields.items()}
    origin = {**(origin or {}), **_origin(node, model)} if issubclass(model, Sourced) else {}
    full_key = short_keys(model)
    content: dict[str, YamlNode] = {}
    for key, child in node.value.items():
        here = f"{path}.{key}" if path else key
        name = full_key.get(key, key)
        if name != key and name in node.value:
            problems.append(
                ProfileProblem(place=child.place, field=here, message=f"given twice, also as `{name}`")
            )
        if name in fields:
            child = normalise_field(child, fields[name], problems, here, origin, needs_unit=name != key)
        content[name] = child
    return node.holding(content)


def normalise_field(
    node: YamlNode,
    info: FieldInfo,
    problems: list[ProfileProblem],
    path: str,
    origin: dict[str, YamlNode],
    *,
    needs_unit: bool = False,
) -> YamlNode:
    """The value of one field in canonical form."""
    quantity = quantity_of(info)
    if quantity is not None:
        return _figure(node, quantity, problems, path, origin, needs_unit=needs_unit)
    model = block_of(info)
    if model is None:
        return node
    if isinstance(node.value, list):
        items = [normalise(item, model, problems, f"{path}.{i}", origin) for i, item in enumerate(node.value)]
        return node.holding(items)
    return normalise(node, model, problems, path, origin)


def block_of(info: FieldInfo) -> type[BaseModel] | None:
    """The model of a field that is a block or a list of blocks."""
    return next(iter(_models(info.annotation)), None)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (tuple, list, Union, UnionType):
        for argument in get_args(annotation):
            yield from _models(argument)


def _origin(node: YamlNode, model: type[BaseModel]) -> dict[str, YamlNode]:
    names = _ROW_ORIGIN if issubclass(model, RateRow) else _ORIGIN
    return {name: node.mapping[name] for name in names if name in node.mapping}


def _figure(
    node: YamlNode,
    quantity: Quantity,
    problems: list[ProfileProblem],
    path: str,
    origin: dict[str, YamlNode],
    *,
    needs_unit: bool,
) -> YamlNode:
    if node.value is None or isinstance(node.value, list):
        return node
    if "value" in node.mapping and node.mapping["value"].value is None:
        return node.holding(None)  # unknown
    content = {**origin, **(node.value if isinstance(node.value, dict) else {"value": node})}
    if "value" in content:
        value = content["value"]
        content["value"] = value.holding(_number(value, quantity, problems, path, needs_unit=needs_unit))
    return node.holding(content)


def _number(
    node: YamlNode, quantity: Quantity, problems: list[ProfileProblem], path: str, *, needs_unit: bool
) -> Any:
    """The number in the figure's unit, or the value as it is with a problem noted."""
    value, dimension = node.value, quantity.dimension
    if value == BLANK:
        return value
    try:
        if isinstance(value, str):
            value = parse_quantity(value, dimension, needs_unit=needs_unit)
        elif isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"expected a number, found {shown(node.plain())}")
        elif needs_unit:
            raise ValueError(f"{value} has no unit; write it like {dimension.examples}")
        if not math.isfinite(value):
            raise ValueError(f"{shown(node.value)} is not a finite figure")
        if value < 0 or (value == 0 and not quantity.may_be_zero):
            raise ValueError(f"{shown(node.value)} must be greater than zero")
        if value > _LARGEST or 0 < value < 1 / _LARGEST:
            raise ValueError(f"{shown(node.value)} is not a figure of a real device")
    except ValueError as error:
        problems.append(ProfileProblem(place=node.place, field=path, message=str(error)))
        return 1.0  # stands in, so that the other checks can go on
    return float(value)
