"""Whether a profile's choice of cost models makes sense, and what it cannot answer yet."""

from hwbmpq.costs.registry import get_cost_model
from hwbmpq.errors import HwbmpqError, MissingFigureError
from hwbmpq.hardware.problems import Place, Problem, ProfileError
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.widths import candidates
from hwbmpq.values import Layer

_PROBE = Layer(
    name="a layer",
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
    """Try the profile's cost models on a 3x3 convolution.

    Unknown models and options raise ``ProfileError``. Missing figures are no fault of the file: they are
    returned as remarks, and so are assumed and uncertain figures.
    """
    problems, remarks = [], []
    for quantity, choice in profile.cost_models.items():
        try:
            model = get_cost_model(choice.model, **choice.options)
        except HwbmpqError as error:
            place = Place(file=profile.files[-1])
            problems.append(Problem(place=place, field=f"cost_models.{quantity}", message=str(error)))
            continue
        if profile.abstract:
            continue
        try:
            precisions = candidates(profile, op=_PROBE.kind)
            model.tabulate([_PROBE], profile, precisions)
        except MissingFigureError as error:
            remarks.append(f"{quantity}: {error}")
        except HwbmpqError as error:
            remarks.append(f"{quantity} of a 3x3 convolution: {error}")
    if problems:
        raise ProfileError(problems)
    doubtful = [path for path, figure, _ in profile.figures() if figure.is_doubtful]
    if doubtful:
        remarks.append(f"assumed or uncertain: {', '.join(doubtful)}")
    return tuple(remarks)
