"""From rounds to values."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from hwbmpq.measure import Results, ResultsError
from hwbmpq.measure.measurement import Summary, fit_line, is_integer_kernel, middle_mean
from hwbmpq.measure.results import Kernel, parse_results

Sign = Callable[[Mapping[str, Any]], dict[str, Any]]


def kernel_of(results: Results, form: str, op: str = "conv2d") -> Kernel:
    return next(
        kernel
        for kernel in results.manifest.kernels
        if kernel.geometry is not None and kernel.program == form and kernel.geometry.op == op
    )


def test_what_the_profiler_and_the_call_take_is_told_from_the_chains(parsed: Results) -> None:
    summary = Summary(parsed)
    assert summary.node_us == pytest.approx(1.0)
    assert summary.run_us == pytest.approx(20.0)
    assert summary.profiler_us == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("form", "us_per_mac"), [("float32", 1e-3), ("int8", 5e-4), ("uint8", 8e-4), ("qdq16", 15e-4)]
)
def test_a_layer_is_its_kernel_without_layouts_and_without_the_profiler(
    parsed: Results, form: str, us_per_mac: float
) -> None:
    one = kernel_of(parsed, form)
    timing = Summary(parsed).layer_timing(one)
    assert timing is not None
    assert one.geometry is not None
    assert timing.us == pytest.approx(one.geometry.macs * us_per_mac)
    assert timing.node == ("QLinearConv" if "int8" in form else "Conv")
    assert (timing.std, timing.count) == (0, 4)


def test_a_layer_without_an_integer_kernel_takes_its_conversions_along(
    made_up: dict[str, Any], sign: Sign
) -> None:
    content = copy.deepcopy(made_up)
    ident = next(e["id"] for e in content["manifest"]["kernels"] if e.get("form") == "int8")
    ops = content["times"][ident]["ops"]
    ops["ConvTranspose"] = ops.pop("QLinearConv")
    results = parse_results(sign(content), "made up")
    one = next(e for e in results.manifest.kernels if e.id == ident)
    timing = Summary(results).layer_timing(one)
    assert timing is not None
    assert timing.us > 990  # the QuantizeLinear, not the Transpose
    assert timing.us < 1990


def test_a_slow_clock_is_made_up_for(made_up: dict[str, Any], sign: Sign) -> None:
    content = copy.deepcopy(made_up)
    content["rounds"] = [[[500.0, 500.0], [500.0, 500.0], [500.0, 500.0], [550.0, 550.0]]]
    for kernel in content["times"].values():
        for node in kernel["ops"].values():
            node["us"][3] *= 1.1
    results = parse_results(sign(content), "made up")
    timing = Summary(results).layer_timing(kernel_of(results, "float32"))
    assert timing is not None
    assert timing.std == pytest.approx(0, abs=1e-6)


def test_disturbed_rounds_are_left_out(made_up: dict[str, Any], sign: Sign) -> None:
    content = copy.deepcopy(made_up)
    content["rounds"] = [[[500.0, 500.0], [500.0, 500.0], [500.0, 500.0], [500.0, 900.0]]]
    for kernel in content["times"].values():
        for node in kernel["ops"].values():
            node["us"][3] *= 40
    summary = Summary(parse_results(sign(content), "made up"))
    assert summary.disturbed_share == pytest.approx(0.25)
    timing = summary.layer_timing(kernel_of(summary.results, "float32"))
    assert timing is not None
    assert timing.count == 3
    assert timing.std == pytest.approx(0)


def test_too_few_rounds_are_refused(made_up: dict[str, Any], sign: Sign) -> None:
    content = copy.deepcopy(made_up)
    content["rounds"] = [content["rounds"][0][:2]]
    for kernel in content["times"].values():
        for node in kernel["ops"].values():
            node["us"] = node["us"][:2]
    with pytest.raises(ResultsError, match="fewer than 3 rounds"):
        Summary(parse_results(sign(content), "made up"))


def test_operations_are_a_line_over_their_elements(parsed: Results) -> None:
    summary = Summary(parsed)
    assert fit_line(summary.operation_points("add")) == pytest.approx((4.0, 1e-3))
    assert fit_line(summary.operation_points("quantize", "QuantizeLinear")) == pytest.approx((4.0, 1e-3))
    assert fit_line(summary.operation_points("quantize", "DequantizeLinear")) == pytest.approx(
        (0.0, 2e-3), abs=1e-9
    )


@pytest.mark.parametrize(
    ("points", "line"),
    [
        ([(100, 10.0), (200, 10.0), (400, 10.0)], (10.0, 0.0)),
        ([(100, 1.0), (200, 4.0), (400, 16.0)], (0.0, None)),  # steeper than a line: no negative start
        ([(100, 5.0)], (0.0, 0.05)),
    ],
)
def test_a_line_has_no_negative_parts(
    points: list[tuple[int, float]], line: tuple[float, float | None]
) -> None:
    fixed, slope = fit_line(points)
    assert fixed == pytest.approx(line[0], abs=1e-9)
    assert slope > 0 if line[1] is None else slope == pytest.approx(line[1], abs=1e-9)


def test_the_middle_half_ignores_extremes() -> None:
    assert middle_mean([0, 10, 11, 12, 13, 14, 15, 9000]) == pytest.approx(12.5)
    assert middle_mean([5]) == 5


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("QLinearConv", True),
        ("QGemm", True),
        ("MatMulIntegerToFloat", True),
        ("QuantizeLinear", False),
        ("Conv", False),
    ],
)
def test_integer_kernels_are_known_by_name(op: str, expected: bool) -> None:
    assert is_integer_kernel(op) is expected
