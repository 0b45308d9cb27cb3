"""The cost models by name, with their options."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from hwbmpq.costs.model import CostModel
from hwbmpq.errors import CostModelError as CostModelError
from hwbmpq.registry import COST_MODELS
from hwbmpq.registry import Registration as Registration

M = TypeVar("M", bound=type)


def register(name: str) -> Callable[[M], M]:
    """Class decorator: make a cost model known as ``name``."""

    def add(model: M) -> M:
        _named(COST_MODELS.add(name, model), name)
        return model

    return add


def cost_models() -> Mapping[str, Registration[type]]:
    """Every cost model that is known, broken plug-ins included, by name."""
    return dict(sorted(COST_MODELS.registrations().items()))


def refused_plugins() -> tuple[Registration[type], ...]:
    """Models of plug-ins whose name is taken."""
    return COST_MODELS.refused()


def get_cost_model(name: str, **options: Any) -> CostModel:
    """The cost model of that name with its options, or an error that says what is known."""
    model = _named(COST_MODELS.get(name), name)
    try:
        return cast(CostModel, model(**options))
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc']))}: {_said(item)}" for item in error.errors(include_url=False)
        )
        allowed = ", ".join(getattr(model, "model_fields", ())) or "none"
        raise CostModelError(f"cost model {name!r}: {problems} (its options: {allowed})") from None
    except TypeError as error:
        raise CostModelError(f"cost model {name!r}: {error}") from None


def _named(model: type, name: str) -> type:
    """Tell a model its name, for its messages; a subclass of one of ours has a name of its own."""
    if "registered_name" not in vars(model):
        model.registered_name = name  # type: ignore[attr-defined]
    return model


def _said(item: Any) -> str:
    return "no such option" if item["type"] == "extra_forbidden" else str(item["msg"])
