"""What holds for every cost model."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from hwbmpq.costs import CostModelError, CostTable, check_cost_models, cost_models
from hwbmpq.errors import MissingFigureError, UnsupportedLayerError
from hwbmpq.hardware import HardwareProfile, ProfileError
from hwbmpq.testing import conv_layer
from hwbmpq.values import Precision

Write = Callable[..., HardwareProfile]
Tabulate = Callable[..., CostTable]
Value = Callable[..., float]
W2A8, W4A8, W8A8 = (Precision(weight_bits=bits, activation_bits=8) for bits in (2, 4, 8))
CONV = conv_layer(64, 64, size=56)


@pytest.mark.parametrize("name", sorted(cost_models()))
def test_no_model_invents_a_cost_for_a_profile_that_says_nothing(
    name: str, write: Write, tabulate: Tabulate
) -> None:
    """It needs nothing of the device (a count), or it raises and says what is missing."""
    counts = {"weight_memory", "stored_memory", "memory", "bops", "layer_working_set", "largest_input"}
    profile = write("")
    if name in counts:
        assert tabulate(name, profile).total({"conv": W8A8}) > 0
    elif name == "activation_memory":
        with pytest.raises(UnsupportedLayerError):
            tabulate(name, profile)
    else:
        with pytest.raises(MissingFigureError, match="profile 'board' has no"):
            tabulate(name, profile)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("latency: {model: latency}", "'latency' passes on to another one: choose that"),
        ("memory: {model: flash}", "'flash' passes on to another one"),
        (
            "latency: {model: power_time}",
            "'power_time' gives uJ, not ms; for latency there are bit_fusion, bit_serial",
        ),
        ("latency: {model: bops}", "'bops' gives bit-op, not ms"),
        ("energy: {model: roofline}", "'roofline' gives ms, not uJ"),
    ],
)
def test_a_profile_chooses_a_model_that_answers_for_the_quantity(
    choice: str, message: str, write: Write, value: Value
) -> None:
    profile = write(f"cost_models: {{{choice}}}\n")
    with pytest.raises(ProfileError, match=message) as caught:
        check_cost_models(profile)
    assert caught.value.problems[0].place.line == 6
    with pytest.raises(CostModelError, match=message):
        value(choice.partition(":")[0], profile)


@pytest.mark.parametrize(
    ("budgets", "message"),
    [
        ("flsh: 1 MiB", r"board.yaml:6:11: budgets.flsh: no cost named 'flsh': did you mean flash"),
        ("latency: 3 MHz", "budget latency=3 MHz: 'MHz' is not a unit of a quantity in ms"),
        ("flash: 12", "'12.0' has no unit; write it like 350KiB"),
    ],
)
def test_budgets_are_on_costs_that_exist_in_their_units(budgets: str, message: str, write: Write) -> None:
    with pytest.raises(ProfileError, match=message):
        check_cost_models(write(f"budgets: {{{budgets}}}\n"))


def test_a_table_in_joules_is_no_latency(write: Write, value: Value) -> None:
    entry = {"op": "conv2d", "w_bits": 8, "a_bits": 8, "macs": CONV.macs, "value": 1}
    table = {
        "schema": "hwbmpq/lut/v1",
        "device": "d",
        "runtime": "r",
        "source": {},
        "unit": "nJ",
        "key": ["op", "w_bits", "a_bits"],
        "entries": [entry],
    }
    body = "lookup_tables: [{id: t, file: t.json, kind: assumed}]\ncost_models: {latency: {model: lookup_table}}\n"
    with pytest.raises(CostModelError, match="'lookup_table' gave uJ for latency"):
        value("latency", write(body, t=table))


def test_kernels_that_do_not_exist_are_remarked_upon(tabulate: Tabulate) -> None:
    w4 = Precision(weight_bits=4, activation_bits=16)
    assert (
        "a kernel of your own is needed for int4×fp16" in tabulate("latency", "jetson_nano", bits=[w4]).notes
    )
    w4 = Precision(weight_bits=4, activation_bits=8)
    assert "no kernel, storage only: int4×int8" in tabulate("latency", "x86_onnxruntime", bits=[w4]).notes


@pytest.mark.parametrize(("name", "target"), [("gap8", "gap8"), ("ne16", "gap9_ne16")])
def test_images_folded_into_the_batch_all_cost(name: str, target: str, value: Value) -> None:
    one = conv_layer(16, 16, size=6)
    shape = (4, *one.output_shape[1:])
    four = replace(one, input_shape=shape, output_shape=shape, macs=4 * one.macs)
    assert value(name, target, four) == pytest.approx(4 * value(name, target, one), rel=0.05)


def test_the_accelerators_clock_counts(write: Write, value: Value) -> None:
    slow = write("clock: {kind: assumed, core: 100 MHz}\n")
    fast = write("clock: {kind: assumed, core: 100 MHz, accel: 200 MHz}\n")
    assert value("ne16", slow) == pytest.approx(2 * value("ne16", fast))
