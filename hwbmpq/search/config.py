"""``AllocationConfig``: what widths depend on besides the network."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from hwbmpq.errors import HwbmpqError, cut
from hwbmpq.hardware import HardwareProfile
from hwbmpq.units import shown

_MOST_PROBLEMS = 20


class AllocationConfig(BaseModel):
    """The device, its budgets, the candidate widths, and who decides when. ``RunSettings`` of a whole run is one too."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, use_attribute_docstrings=True
    )

    @field_validator("budgets", mode="before")
    @classmethod
    def _no_budgets(cls, budgets: Any) -> Any:
        return {} if budgets is None else budgets

    target: str | Path | HardwareProfile
    """A profile: its name (jetson_nano), name.yaml, name@mode (jetson_nano@5w), or the path of a file. Names are
    looked up in your own folder first (HWBMPQ_PROFILES, or the platform's configuration folder)."""
    budgets: dict[str, str | float] = {}
    """Upper bounds such as ``{"memory": "12x", "latency": "8ms"}``, or numbers in the cost's own unit; by default the
    profile's own."""
    bits: tuple[int, ...] | int | None = None
    """Candidate weight widths; by default 2 and 4 if the device has both, else all."""
    activation_bits: Literal["auto", "same", "widest", "apart", "float"] | int = "auto"
    """Activation width: auto (the widest up to 8, or the same as the weights if a budget depends on it), same, widest,
    apart (chosen for each layer, apart from its weight width), float, or a number."""
    pin: dict[str, int | str] = {}
    """Layers with a width of their own, by patterns of their names: 8 for the weights, or a pair such as W4A8. The first
    and the last layer can be pinned too."""
    keep_float: tuple[str, ...] = ()
    """Layers that are not quantized, by patterns of their names."""
    ends: Literal["fixed", "free"] = "fixed"
    """The first and the last layer. fixed: at their own width, the profile's or the widest; free: they may be narrowed as
    the others are, unless the profile gives their width."""
    tie: Literal["input", "sibling", "none"] = "input"
    """The width of a downsample layer: that of the layer that feeds it (input, as in BMPQ), that of the first layer
    beside it (sibling, as in HAWQ), or its own (none)."""
    memory_as_in: Literal["0.1.0"] | None = None
    """Count memory as that version did, the weights alone; set for runs that it wrote."""
    per_channel: bool = False
    """One weight scale for every output channel; by default one per layer as in the paper, and one per channel without
    training."""
    quantizer: str = "paper"
    """How weights are rounded; paper is symmetric with ternary weights at 2 bits."""
    method: str = "bmpq"
    """How widths are decided. bmpq: bit gradients and an integer program, again after every interval; fp32: no
    quantization; hpq: one width for all; ad: activation density, no budget; hawq: Hessian traces; random, greedy
    (smallest first), reversed (least sensitive first): baselines that fill the budget."""
    objective: str = "linear"
    """What the integer program maximises. linear: the paper's, score times position of the width; error: the expected
    loss that a width saves, of weights and of activations; hawq: Hessian trace times squared error. By default linear for
    the paper's data sets and recipes, else error when training or calibrating a network; linear in plan and frontier
    unless widths are chosen apart."""
    solver: str = "auto"
    """The solver of the integer program; auto tries all, the fastest first."""
    epochs: int
    """Epochs in all; with 0, nothing is trained and only ``BitAllocator.decide`` decides."""
    warmup_epochs: int | None = None
    """Epochs at the widest candidates before the first decision; by default a tenth of all."""
    interval_epochs: int | None = None
    """Epochs between decisions; by default a tenth of all."""
    decide_after: tuple[int, ...] | None = None
    """Decide after these epochs, instead of at regular intervals."""
    start: Literal["widest", "calibrated"] = "widest"
    """What training begins with. widest: all layers at their widest candidate until the warm-up ends; calibrated: widths
    that were decided and weights that were rounded without training (by default where weights are given)."""
    settle: float = Field(default=0.0, ge=0, lt=1)
    """Share of the run, at its end, in which widths stay as they are."""
    inertia: float = Field(default=0.0, ge=0, lt=1)
    """How much a change of width must be worth once widths were decided: its gains count less by this share, its losses
    more. 0: nothing holds layers at what they were trained at, as in the paper; by default 0.25, but 0 for the paper's recipes
    and, from scratch, its data sets. For the method bmpq."""
    seed: int = 0
    """For methods that draw at random."""
    activation_widths: tuple[int, ...] | None = None
    """Candidate activation widths where they are chosen apart; by default 2, 4 and 8 if the device has them."""

    @model_validator(mode="before")
    @classmethod
    def _weighs_activations(cls, given: Any) -> Any:
        """Widths apart have no value by the paper's objective; where none is named, it is the one that weighs them."""
        if isinstance(given, dict) and given.get("activation_bits") == "apart":
            return {"objective": "error", **given}
        return given


def allocation_config(**settings: Any) -> AllocationConfig:
    """A configuration; settings that are wrong are one ``HwbmpqError``."""
    try:
        return AllocationConfig(**settings)
    except ValidationError as error:
        raise HwbmpqError("\n".join(setting_problems(error))) from None


def setting_problems(error: ValidationError) -> list[str]:
    """What pydantic says, a sentence per setting."""
    found = []
    for problem in error.errors():
        name = str(problem["loc"][0]) if problem["loc"] else "settings"
        message = problem["msg"].removeprefix("Value error, ")
        if not problem["loc"]:
            found.append(message)
        elif problem["type"] == "missing":
            found.append(f"{name}: is missing")
        elif problem["type"] == "extra_forbidden":
            found.append(
                f"there is no setting {shown(name)}; settings are {', '.join(AllocationConfig.model_fields)}"
            )
        else:
            found.append(
                f"{cut(name, 60)}: {cut(_said(problem['type'], message, problem.get('ctx', {})))} "
                f"(given: {shown(problem['input'])})"
            )
    found = list(dict.fromkeys(found))
    left = len(found) - _MOST_PROBLEMS
    return [*found[:_MOST_PROBLEMS], *([f"… and {left} more problems"] if left > 0 else [])]


_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("above", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("below", "lt"),
}


def _said(kind: str, message: str, context: Mapping[str, Any]) -> str:
    """A bound as the command line says it; else pydantic's sentence."""
    if kind in _BOUNDS:
        word, bound = _BOUNDS[kind]
        return f"must be {word} {context[bound]:g}"
    return f"{message[0].lower()}{message[1:]}"
