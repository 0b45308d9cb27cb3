"""Whether a profile's choice of cost models makes sense, and what it cannot answer yet."""

from hwbmpq.costs.budgets import parse_budget
from hwbmpq.costs.model import CostModel
from hwbmpq.costs.quantities import chosen_model
from hwbmpq.errors import HwbmpqError
from hwbmpq.hardware.problems import ProfileError, ProfileProblem
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.widths import candidates, weight_widths
from hwbmpq.values import Layer

_PROBE = Layer(
    name="3x3 convolution",
    kind="conv2d",
    weight_shape=(32, 32, 3, 3),
    parameters=9216,
    bias_parameters=0,
    macs=9216 * 64,
    input_shape=(1, 32, 8, 8),
    output_shape=(1, 32, 8, 8),
    in_channels=32,
    out_channels=32,
    kernel_size=(3, 3),
    stride=(1, 1),
)


def check_cost_models(profile: HardwareProfile) -> tuple[str, ...]:
    """Remarks on a profile: costs that it cannot answer yet, and its assumed and uncertain figures.

    Unknown models, options and budgets raise ``ProfileError``. A missing figure is not a fault of the file.
    """
    problems = []
    for quantity, choice in profile.cost_models.items():
        try:
            chosen_model(quantity, choice)
        except HwbmpqError as error:
            problems.append(_problem(profile, "cost_models", quantity, str(error)))
    for name, budget in profile.budgets.items():
        try:
            parse_budget(name, str(budget))  # as text: in a file, a bare number has no unit
        except HwbmpqError as error:
            problems.append(_problem(profile, "budgets", name, str(error)))
    if problems:
        raise ProfileError(problems)
    doubtful = [path for path, figure, _ in profile.figures() if figure.is_doubtful]
    return (
        *unanswered_costs(profile),
        *([f"assumed or uncertain: {', '.join(doubtful)}"] if doubtful else []),
    )


def unanswered_costs(profile: HardwareProfile) -> tuple[str, ...]:
    """Why the profile's cost models cannot cost a 3x3 convolution, if they cannot."""
    if profile.abstract:
        return ()
    return tuple(
        remark
        for quantity, choice in profile.cost_models.items()
        for remark in _try_out(chosen_model(quantity, choice), quantity, profile)
    )


def _problem(profile: HardwareProfile, block: str, key: str, message: str) -> ProfileProblem:
    return ProfileProblem(place=profile.place(block, key), field=f"{block}.{key}", message=message)


def _try_out(model: CostModel, quantity: str, profile: HardwareProfile) -> list[str]:
    try:
        precisions = candidates(profile, weight_widths(profile, _PROBE.kind), op=_PROBE.kind)
        model.tabulate([_PROBE], profile, precisions)
    except HwbmpqError as error:
        return [f"{quantity}: {error}"]
    return []
