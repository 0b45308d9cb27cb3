"""``AllocationConfig``: what widths depend on besides the network."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from hwbmpq.errors import HwbmpqError
from hwbmpq.hardware import HardwareProfile


class AllocationConfig(BaseModel):
    """The device, its budgets, the candidate widths, and who decides when. ``RunSettings`` of a whole run is one too."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, use_attribute_docstrings=True
    )

    target: str | Path | HardwareProfile
    """A profile, its name or its file."""
    budgets: dict[str, str | float] = {}
    """Upper bounds such as ``{"memory": "12x", "latency": "8ms"}``, or numbers in the cost's own unit; by default the
    profile's own."""
    bits: tuple[int, ...] | int | None = None
    """Candidate weight widths."""
    activation_bits: Literal["auto", "same", "widest", "float"] | int = "auto"
    tie: Literal["input", "sibling", "none"] = "input"
    per_channel: bool = False
    """One weight scale for every output channel, not one per layer."""
    quantizer: str = "paper"
    """Of the weights, by its registered name."""
    method: str = "bmpq"
    objective: str = "linear"
    solver: str = "auto"
    epochs: int
    """With 0, only ``BitAllocator.decide`` decides."""
    warmup_epochs: int | None = None
    """Epochs at the widest candidates before the first decision; by default a tenth of all."""
    interval_epochs: int | None = None
    """Epochs between decisions; by default a tenth of all."""
    decide_after: tuple[int, ...] | None = None
    """The epochs after which to decide, instead."""
    seed: int = 0
    """For methods that draw at random."""


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
                f"there is no setting {name!r}; settings are {', '.join(AllocationConfig.model_fields)}"
            )
        else:
            found.append(f"{name}: {message[0].lower()}{message[1:]} (given: {problem['input']!r})")
    return list(dict.fromkeys(found))
