"""The profile format as a JSON Schema, for editors."""

from typing import Any

from pydantic import BaseModel

from hwbmpq.hardware import schema
from hwbmpq.hardware.profile import SCHEMA_ID, HardwareProfile
from hwbmpq.hardware.schema import quantity_of, short_keys

_FIGURE = {"$ref": "#/$defs/Figure"}


def profile_json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a profile file.

    It checks names, types and shapes; ``hwbmpq targets check`` also checks units, sources and widths.
    """
    content = HardwareProfile.model_json_schema(by_alias=True)
    definitions = content["$defs"]
    # A value may carry its unit, or be bare in a block that names the origin.
    definitions["Figure"]["properties"]["value"] = {"type": ["number", "string"], "title": "Value"}
    for name, definition in definitions.items():
        model = getattr(schema, name, None)
        if isinstance(model, type) and issubclass(model, BaseModel):
            _open_figures(definition, model)
    # With `extends`, all the rest may come from the base.
    content["required"] = ["schema", "name", "title"]
    content["if"] = {"properties": {"extends": {"type": "string"}}, "required": ["extends"]}
    content["else"] = {"required": ["class"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{SCHEMA_ID.replace('/', ':')}",
        **content,
        "title": "hwbmpq hardware profile",
    }


def _open_figures(definition: dict[str, Any], model: type[BaseModel]) -> None:
    properties = definition.get("properties", {})
    for name, info in model.model_fields.items():
        quantity = quantity_of(info)
        if quantity is None:
            continue
        text = f"in {quantity.dimension.unit}" if quantity.dimension.unit else ""
        hint = "; ".join(filter(None, [info.description or "", text, f"e.g. {quantity.dimension.examples}"]))
        any_form = {"anyOf": [{"type": "number"}, {"type": "string"}, _FIGURE, {"type": "null"}]}
        properties[name] = {**any_form, "description": hint}
        for short, full in short_keys(model).items():
            if full == name:
                with_unit = {"anyOf": [{"type": "string"}, _FIGURE, {"type": "null"}]}
                properties[short] = {**with_unit, "description": f"with its unit; {hint}"}
    definition["required"] = [
        name for name in definition.get("required", []) if quantity_of(model.model_fields[name]) is None
    ]
