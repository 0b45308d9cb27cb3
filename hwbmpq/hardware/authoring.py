"""For authors of profiles: a template with marked blanks, filled in by answers or by hand, and a JSON Schema for editors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from hwbmpq.hardware import schema
from hwbmpq.hardware.normalise import BLANK
from hwbmpq.hardware.profile import SCHEMA_ID, HardwareProfile
from hwbmpq.hardware.schema import parse_format, quantity_of, short_keys
from hwbmpq.units import (
    BYTES,
    BYTES_PER_SECOND,
    HERTZ,
    MACS_PER_CYCLE,
    Dimension,
    format_quantity,
    parse_quantity,
)

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
        hint = "; ".join(
            filter(None, [(info.description or "").rstrip("."), text, f"e.g. {quantity.dimension.examples}"])
        )
        any_form = {"anyOf": [{"type": "number"}, {"type": "string"}, _FIGURE, {"type": "null"}]}
        properties[name] = {**any_form, "description": hint}
        for short, full in short_keys(model).items():
            if full == name:
                with_unit = {"anyOf": [{"type": "string"}, _FIGURE, {"type": "null"}]}
                properties[short] = {**with_unit, "description": f"with its unit; {hint}"}
    definition["required"] = [
        name for name in definition.get("required", []) if quantity_of(model.model_fields[name]) is None
    ]


CLASSES = ("mcu", "cpu", "gpu", "npu", "fpga")


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One blank of the template: what to ask, and how to check the answer."""

    key: str
    text: str
    example: str
    check: Callable[[str], object]


def _quantity(dimension: Dimension) -> Callable[[str], object]:
    def check(answer: str) -> object:
        value = parse_quantity(answer, dimension, needs_unit=bool(dimension.suffix))
        if value <= 0:
            raise ValueError("must be greater than zero")
        return value

    return check


def _formats(answer: str) -> object:
    names = answer.replace(",", " ").split()
    if not names:
        raise ValueError("give at least one format, such as int8")
    return [parse_format(name) for name in names]


def _class(answer: str) -> object:
    if answer not in CLASSES:
        raise ValueError(f"use one of {', '.join(CLASSES)}")
    return answer


def _text(answer: str) -> object:
    if not answer.strip() or '"' in answer or "\n" in answer or "\\" in answer:
        raise ValueError("write a few words, without quotation marks or backslashes")
    return answer


QUESTIONS = (
    Question(key="title", text="What is it called?", example="Acme Edge Board (Cortex-M7)", check=_text),
    Question(key="class", text=f"What is it? ({', '.join(CLASSES)})", example="mcu", check=_class),
    Question(
        key="source", text="Where do its figures come from?", example="Acme data sheet, rev. 3", check=_text
    ),
    Question(key="weights", text="Formats that weights are stored in", example="int8, int4", check=_formats),
    Question(
        key="activations", text="Formats that activations are stored in", example="int8", check=_formats
    ),
    Question(key="clock", text="Clock of the compute unit", example="480 MHz", check=_quantity(HERTZ)),
    Question(
        key="macs_per_cycle",
        text="Multiply-accumulates per cycle (a peak, or measured)",
        example="0.5",
        check=_quantity(MACS_PER_CYCLE),
    ),
    Question(key="ram", text="Memory for activations", example="320 KiB", check=_quantity(BYTES)),
    Question(key="storage", text="Memory for weights", example="2 MiB", check=_quantity(BYTES)),
    Question(
        key="bandwidth",
        text="Bandwidth of the memory that holds the weights",
        example="400 MB/s",
        check=_quantity(BYTES_PER_SECOND),
    ),
)

_TEMPLATE = """\
# A hardware profile for hwbmpq. {todo} hwbmpq targets check {name}.yaml
# Every figure says where it comes from: {{value: …, kind: …, src: [id]}}. Kinds: measured, datasheet, literature,
# simulated, derived, reported, board, uncertain, assumed (the last needs no src). Unknown? Leave the line out:
# a cost model that needs the figure will say so.
schema: hwbmpq/profile/v1
name: {name}
title: {title}
class: {class} # mcu, cpu, gpu, npu or fpga

sources: # each figure refers to one of these by its id
  datasheet:
    kind: vendor_doc
    title: {source}
    # url: https://…

precisions:
  src: [datasheet]
  # Formats: int2 … int16, uint2 … uint16, fp16, bf16, fp32.
  weights: [{weights}]
  activations: [{activations}]
  # Not every combination? List the pairs that run; `compute` is the arithmetic that executes them:
  # pairs:
  #   - {{w: int8, a: int8}}
  #   - {{w: int4, a: int8, compute: int8, kernel: user}} # unpacked by your own kernel

clock:
  core: {{value: {clock}, kind: datasheet, src: [datasheet]}}

compute:
  units: 1 # cores or engines that work side by side
  table: # the row that names most (op, kernel_size, w, a, compute) wins
    - {{op: "*", macs_per_cycle: {macs_per_cycle}, kind: datasheet, src: [datasheet]}}
  # efficiency: {{value: 0.5, kind: measured, src: [datasheet]}} # share of the peak that real kernels reach

memory: # from the nearest to the farthest
  - name: ram
    size: {{value: {ram}, kind: datasheet, src: [datasheet]}}
    holds: [activations]
    on_chip: true # keeps up with the compute unit; otherwise give its bandwidth
  - name: storage
    size: {{value: {storage}, kind: datasheet, src: [datasheet]}}
    bandwidth: {{value: {bandwidth}, kind: datasheet, src: [datasheet]}}
    holds: [weights]

# power:
#   active: {{value: 0.4 W, kind: measured, src: [datasheet]}}

# lookup_tables: # measured layers, in a JSON file beside this one
#   - {{id: measured, file: {name}_layers.json, miss: macs_scaled, kind: measured, src: [datasheet]}}

# budgets: # used when none is given on the command line
#   flash: 1 MiB

cost_models: # `hwbmpq costs list` shows them all
  latency: {{model: roofline}}
  memory: {{model: stored_memory}}
  # energy: {{model: power_time}}
"""

_BASED_ON = """\
# {title}, as far as not changed below. Check with: hwbmpq targets check {name}.yaml
schema: hwbmpq/profile/v1
name: {name}
title: {blank}
extends: {base}

# Maps merge with the base; figures and lists replace. Figures of the base (uncomment and change):
{figures}
# memory, compute.table and precisions.pairs are lists: write them anew as a whole (`hwbmpq targets show {base}`
# says what the base has), or change single figures of them in a mode: `memory.NAME.size: …`.
# New figures need a source:
# sources:
#   my_datasheet: {{kind: vendor_doc, title: My data sheet}}
"""


def new_profile(name: str, answers: Mapping[str, str] | None = None) -> str:
    """The text of a new profile; blanks without an answer are marked."""
    answers = dict(answers or {})
    if "weights" in answers:
        answers |= {
            key: ", ".join(answers[key].replace(",", " ").split()) for key in ("weights", "activations")
        }
    todo = f"Replace every {BLANK}, then:" if len(answers) < len(QUESTIONS) else "After changes:"
    filled = {question.key: answers.get(question.key, BLANK) for question in QUESTIONS}
    for key in ("title", "source"):
        if filled[key] != BLANK:
            filled[key] = f'"{filled[key]}"'
    return _TEMPLATE.format(name=name, todo=todo, **filled)


def profile_based_on(name: str, base: HardwareProfile) -> str:
    """The text of a profile that extends another, with that one's figures as comments."""
    lines = []
    block = ""
    for path, figure, dimension in base.figures():
        head, *middle, key = path.split(".")
        if head in ("memory", "compute", "energy") and middle:
            continue  # lists are replaced as a whole: a single figure would drop the rest
        if head != block:
            lines.append(f"# {head}:")
            block = head
        origin = f"kind: {figure.kind}" + (f", src: [{', '.join(figure.src)}]" if figure.src else "")
        lines.append(f"#   {key}: {{value: {format_quantity(figure.value, dimension.unit)}, {origin}}}")
    return _BASED_ON.format(
        name=name, title=base.title, base=base.name, blank=BLANK, figures="\n".join(lines)
    )
