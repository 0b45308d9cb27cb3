"""``extends`` and ``modes``: profiles made from other profiles."""

from typing import get_origin

from pydantic import BaseModel

from hwbmpq.hardware.document import YamlNode
from hwbmpq.hardware.normalise import block_of, normalise_field
from hwbmpq.hardware.problems import ProfileProblem, unknown_key
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.schema import short_keys

_OWN = ("abstract", "extends", "name")
"""Keys that a profile never takes from its base."""
_ORIGIN = ("kind", "src", "note")


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


def apply_mode(root: YamlNode, mode: str, problems: list[ProfileProblem]) -> YamlNode:
    """The profile with the dotted overrides of one of its modes."""
    overrides = root.mapping["modes"].mapping[mode].mapping
    origin = {key: overrides[key] for key in _ORIGIN[:2] if key in overrides}
    for key, node in overrides.items():
        if key in _ORIGIN:
            continue
        message = _override(root, key.split("."), node, problems, f"modes.{mode}.{key}", origin)
        if isinstance(message, str):
            problems.append(ProfileProblem(place=node.place, field=f"modes.{mode}.{key}", message=message))
        else:
            root = message
    return root


def _override(
    root: YamlNode,
    steps: list[str],
    new: YamlNode,
    problems: list[ProfileProblem],
    path: str,
    origin: dict[str, YamlNode],
) -> YamlNode | str:
    """A copy of ``root`` with ``new`` at ``steps``, or what is wrong with the path."""
    model: type[BaseModel] | None = HardwareProfile
    trail: list[tuple[YamlNode, str | int]] = []
    node = root
    for position, step in enumerate(steps):
        if isinstance(node.value, list):
            names = [item.mapping["name"].value if "name" in item.mapping else "" for item in node.value]
            if step not in names:
                return f"no entry named {step[:40]!r}; there are: {', '.join(map(str, names))}"
            trail.append((node, names.index(step)))
            node = node.value[names.index(step)]
            continue
        assert model is not None
        fields = {info.alias or name: info for name, info in model.model_fields.items()}
        name = short_keys(model).get(step, step)
        if name not in fields or name in ("modes", "schema", *_OWN):
            known = [*short_keys(model), *fields]
            return unknown_key(step, [key for key in known if key not in ("modes", "schema", *_OWN)])
        trail.append((node, name))
        if position == len(steps) - 1:
            new = normalise_field(new, fields[name], problems, path, origin, needs_unit=name != step)
            return _rebuilt(trail, new)
        if get_origin(fields[name].annotation) is dict and position == len(steps) - 2:
            entries = node.mapping.get(name, YamlNode(value={}, place=node.place))
            return _rebuilt([*trail, (entries, steps[-1])], new)  # cost_models.latency, budgets.flash
        model = block_of(fields[name])
        if model is None:
            return f"`{step}` has no keys below it"
        node = node.mapping.get(name, YamlNode(value={}, place=node.place))
    return "names a whole entry; override one of its keys"


def _rebuilt(trail: list[tuple[YamlNode, str | int]], new: YamlNode) -> YamlNode:
    """Copies of the containers on the way up from ``new``."""
    for container, step in reversed(trail):
        if isinstance(step, int):
            items = list(container.items)
            items[step] = new
            new = container.holding(items)
        else:
            merged = _merge(container.mapping[step], new) if step in container.mapping else new
            new = container.holding({**container.mapping, step: merged})
    return new
