"""From a canonical tree to a ``HardwareProfile``: types, then what types cannot say."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from hwbmpq.hardware.document import ProfileProblem, YamlNode, unknown_key
from hwbmpq.hardware.normalise import BLANK
from hwbmpq.hardware.profile import SCHEMA_ID, HardwareProfile
from hwbmpq.hardware.schema import Array, Figure, LookupTableRef, block_of, fields_by_key, short_keys
from hwbmpq.units import shown
from hwbmpq.values import Precision, is_width

Location = tuple[str | int, ...]


def validate(root: YamlNode, problems: list[ProfileProblem]) -> HardwareProfile | None:
    """The profile, or None with every problem added to ``problems``."""
    blanks = [node for node in root.walk() if node.value == BLANK]
    problems += [node.problem("still to be filled in") for node in blanks]
    places = {node.place for node in blanks}
    try:
        profile = HardwareProfile.model_validate(root.plain(nulls=False))
    except ValidationError as error:
        found = [_problem(root, item) for item in error.errors(include_url=False)]
        problems += [problem for problem in found if problem.place not in places]
        problems += _despite(root, error)
        return None
    found = _placed(root, _inconsistencies(profile))
    problems += found
    return None if found or blanks else profile


def _placed(root: YamlNode, found: Iterable[tuple[Location, str]]) -> list[ProfileProblem]:
    return [
        ProfileProblem(place=root.find(*path).place, field=".".join(map(str, path)), message=message)
        for path, message in found
    ]


_STAND_INS = {"schema": SCHEMA_ID, "name": "profile", "title": "profile", "class": "abstract"}


def _despite(root: YamlNode, error: ValidationError) -> list[ProfileProblem]:
    """What is wrong besides: the checks of origins and names on what is left without the wrong entries."""
    data = root.plain(nulls=False)
    for item in error.errors(include_url=False):
        _remove(data, item["loc"])
    for key, value in _STAND_INS.items():
        data.setdefault(key, value)
    try:
        profile = HardwareProfile.model_validate(data)
    except ValidationError:
        return []
    found = list(_repeated(profile))
    if not any(item["loc"][:1] == ("sources",) for item in error.errors(include_url=False)):
        # A figure whose kind was wrong has been told so already.
        found += [
            (path, message) for path, message in _origins(profile) if "kind" not in root.find(*path).mapping
        ]
    return _placed(root, found)


def _remove(data: Any, path: Location) -> None:
    """Take the entry at ``path``, or the nearest one above it, out of its mapping."""
    owner, name = data, path[0]
    for step in path:
        if isinstance(data, dict) and step in data:
            owner, name, data = data, step, data[step]
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
        else:
            break
    if isinstance(owner, dict):
        owner.pop(name, None)


_EXPECTED = {
    "float_type": "a number",
    "float_parsing": "a number",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "string_type": "text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def _problem(root: YamlNode, error: Any) -> ProfileProblem:
    # Dict keys are marked "[key]" and union members by their type: neither is a step in the file.
    path = tuple(step for step in error["loc"] if step != "[key]" and step not in ("str", "float"))
    node = root.find(*path)
    kind, found = error["type"], error.get("input")
    place = node.place
    if kind == "extra_forbidden":
        message = unknown_key(str(path[-1]), _keys_at(path[:-1]))
        place = node.key_place or place
    elif kind == "missing":
        message = "is missing"
        above = root.find(*path[:-1])
        place = above.key_place or above.place
    elif kind in _EXPECTED:
        message = f"expected {_EXPECTED[kind]}, found {shown(found)}"
    elif kind == "literal_error":
        message = f"expected {error['ctx']['expected']}, found {shown(found)}"
    elif kind == "string_pattern_mismatch":
        message = f"{shown(found)} is not a name: use letters, digits, _, - and ."
    else:
        message = str(error["msg"]).removeprefix("Value error, ")
    return ProfileProblem(place=place, field=".".join(map(str, path)), message=message)


def _keys_at(path: Location) -> list[str]:
    """The keys that the block at ``path`` may have, short ones first."""
    model: type[BaseModel] | None = HardwareProfile
    for step in path:
        if model is None or isinstance(step, int):
            continue
        fields = fields_by_key(model)
        if step == "sources":
            model = None
        elif step in fields:
            model = block_of(fields[step])
    if model is None:
        return []
    return [*short_keys(model), *fields_by_key(model)]


def _inconsistencies(profile: HardwareProfile) -> Iterator[tuple[Location, str]]:
    yield from _origins(profile)
    yield from _widths(profile)
    yield from _repeated(profile)
    yield from _pins(profile)
    if profile.compute.efficiency and profile.compute.efficiency.value > 1:
        yield ("compute", "efficiency"), "is a share of the peak: at most 1"
    for index, row in enumerate(profile.compute.table):
        if (row.macs_per_cycle is None) == (row.macs_per_s is None):
            yield ("compute", "table", index), "give either macs_per_cycle or macs_per_s"
    array = profile.compute.array
    if array and len(array.dims) != (3 if array.type == "bit_serial" else 2):
        yield ("compute", "array", "dims"), "bit_serial takes Dm, Dk, Dn; bit_fusion takes rows, columns"


def _origins(profile: HardwareProfile) -> Iterator[tuple[Location, str]]:
    """Every figure says where it comes from, and every source it names exists."""
    for path, block in _sourced(profile, ()):
        for name in block.src:
            if name not in profile.sources:
                known = ", ".join(profile.sources) or "none yet"
                yield (*path, "src"), f"no source {name[:40]!r} in `sources` (there: {known})"
        if not isinstance(block, (Figure, LookupTableRef, Array)):
            continue  # a block's own src is about the numbers in it
        if block.kind is None:
            example = (
                "{value: …, kind: datasheet, src: [id]}"
                if isinstance(block, Figure)
                else "kind: … and src: [id]"
            )
            yield path, f"a figure needs its origin: {example}, or kind: assumed"
        elif not block.src and block.kind != "assumed":
            yield path, f"`src` is missing: kind {block.kind} needs a source (only kind: assumed does not)"


def _sourced(block: BaseModel, path: Location) -> Iterator[tuple[Location, Any]]:
    """Every block with a ``src``, with the path to it as the file spells it."""
    for name, info in type(block).model_fields.items():
        value = getattr(block, name)
        here = (*path, info.alias or name)
        entries = enumerate(value) if isinstance(value, tuple) else [(None, value)]
        for index, item in entries:
            if isinstance(item, BaseModel):
                where = here if index is None else (*here, index)
                if hasattr(item, "src"):
                    yield where, item
                yield from _sourced(item, where)


def _widths(profile: HardwareProfile) -> Iterator[tuple[Location, str]]:
    precisions = profile.precisions
    pairs = profile.pairs
    if not pairs and not profile.abstract:
        yield ("precisions",), "no widths: list `weights` and `activations`, or `pairs`"
    for index, listed_pair in enumerate(precisions.pairs or ()):
        for name, listed in (("w", precisions.weights), ("a", precisions.activations)):
            if listed and getattr(listed_pair, name) not in listed:
                block = "weights" if name == "w" else "activations"
                yield (
                    ("precisions", "pairs", index, name),
                    f"{getattr(listed_pair, name)} is not in `{block}`",
                )
    seen: set[tuple[object, str]] = set()
    for index, pair in enumerate(pairs):
        for op in pair.ops or ("*",):
            if (pair.precision, op) in seen:
                where: Location = ("precisions", "pairs", index) if precisions.pairs else ("precisions",)
                yield (
                    where,
                    f"a second pair with the widths {pair.precision}: costs could not tell them apart",
                )
            seen.add((pair.precision, op))
    widths = {bits for pair in pairs for bits in (pair.weight.bits, pair.activation.bits)}
    for width, target in precisions.promote.items():
        if pairs and (target not in widths or target <= width):
            yield ("precisions", "promote", str(width)), f"{target} is not a wider width of this device"
    for name in precisions.simd_channels:
        if pairs and name not in {pair.weight.name for pair in pairs}:
            yield ("precisions", "simd_channels", name), "no weight format of this device"
    ends = profile.constraints.first_last
    if ends and (ends.w, ends.a) not in [(pair.weight, pair.activation) for pair in pairs]:
        yield ("constraints", "first_last"), f"{ends.w}×{ends.a} is not a pair of this device"


def _pins(profile: HardwareProfile) -> Iterator[tuple[Location, str]]:
    for pattern, width in profile.constraints.pin.items():
        try:
            if not is_width(width):
                Precision.parse(str(width))
        except ValueError:
            yield (
                ("constraints", "pin", pattern),
                f"{shown(width)} is not a width: write 8, or a pair such as W4A8",
            )


def _repeated(profile: HardwareProfile) -> Iterator[tuple[Location, str]]:
    for block, names in (
        ("memory", [level.name for level in profile.memory]),
        ("lookup_tables", [table.id for table in profile.lookup_tables]),
    ):
        for name, count in Counter(names).items():
            if count > 1:
                yield (block, len(names) - 1 - names[::-1].index(name)), f"{name!r} appears {count} times"
    for block, rows in (("compute", profile.compute.table), ("energy", profile.energy.table)):
        seen = set()
        for index, row in enumerate(rows):
            for op in row.op:
                key = (op, row.w, row.a, row.compute, row.kernel_size)
                if key in seen:
                    yield (block, "table", index), "a second row for the same layers and widths"
                seen.add(key)
