"""Costs as earlier versions counted them, so that their runs go on as they began."""

from typing import Any

from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.schema import CostChoice

_OPTIONS: dict[str, dict[str, Any]] = {
    "stm32f746": {"per_channel": True, "biases": True},
    "stm32h743": {"per_channel": True, "biases": True},
    "imx500": {"per_channel": True},
}
"""Of ``weight_memory``, in the profiles of 0.1.0."""


def counted_as_in(version: str | None, profile: HardwareProfile) -> HardwareProfile:
    """The profile, its ``memory`` counted as in 0.1.0: the weights, and what few profiles said beside them."""
    chosen = profile.cost_models.get("memory", CostChoice(model="stored_memory"))
    if version is None or chosen.model != "stored_memory":
        return profile
    then = CostChoice(model="weight_memory", **chosen.options, **_OPTIONS.get(profile.name, {}))
    return profile.model_copy(update={"cost_models": {**profile.cost_models, "memory": then}})
