"""Candidates, ends, promotion."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hwbmpq.errors import UnsupportedPrecisionError
from hwbmpq.hardware import (
    candidates,
    first_last_precision,
    layer_candidates,
    load_profile,
    uniform,
    weight_widths,
)
from hwbmpq.hardware.widths import WidthFinder
from hwbmpq.testing import conv_layer, linear_layer
from hwbmpq.values import Precision

Write = Callable[..., Path]


def names(precisions: tuple[Precision, ...]) -> str:
    return " ".join(map(str, precisions))


@pytest.mark.parametrize(
    ("target", "bits", "activation_bits", "expected"),
    [
        ("mpic", None, "same", "W2A2 W4A4"),
        ("mpic", None, "widest", "W2A8 W4A8"),
        ("mpic", [8, 2], "same", "W2A2 W8A8"),
        ("mpic", [2, 4], 4, "W2A4 W4A4"),
        ("mpic", [3], "same", "W3A4"),
        ("imx500", None, "same", "W2A8 W4A8"),
        ("gap9_ne16", [3, 5, 8], "same", "W3A8 W5A8 W8A8"),
        ("jetson_nano", None, "same", "W2A16 W4A16"),
        ("jetson_nano", None, "widest", "W2A16 W4A16"),
        ("jetson_nano", [8], "float", "W8A16"),
        ("generic", None, "same", "W2A2 W4A4"),
        ("generic", None, "widest", "W2A8 W4A8"),
        ("generic", None, "float", "W2A32 W4A32"),
        ("coral_edge_tpu", None, "same", "W8A8"),
    ],
)
def test_candidates(target: str, bits: list[int] | None, activation_bits: str | int, expected: str) -> None:
    assert names(candidates(load_profile(target), bits, activation_bits=activation_bits)) == expected


@pytest.mark.parametrize(
    ("target", "bits", "activation_bits", "message"),
    [
        (
            "coral_edge_tpu",
            [4],
            "same",
            r"'coral_edge_tpu' does not run \* with 4-bit weights; its pairs: int8×int8",
        ),
        ("mpic", [2], "float", "with 2-bit weights and float activations"),
        ("imx500", [4], 4, r"does not run \* at W4A4; it runs W2A8, W4A8, W8A8"),
        ("jetson_nano@5w", [3], "same", "'jetson_nano@5w' does not run"),
    ],
)
def test_unsupported_widths_say_what_is(
    target: str, bits: list[int], activation_bits: str | int, message: str
) -> None:
    with pytest.raises(UnsupportedPrecisionError, match=message):
        candidates(load_profile(target), bits, activation_bits=activation_bits)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="use 'same', 'widest', 'apart', 'float' or a number"):
        candidates(load_profile("mpic"), activation_bits="wide")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("generic", "W16A16"),
        ("jetson_nano", "W16A16"),
        ("mpic", "W8A8"),
        ("nvidia_t4", "W8A8"),  # first_last, though it has fp16
        ("stm32h743", "W8A8"),  # first_last, though it has int8×int16
        ("gap9_ne16", "W8A8"),
    ],
)
def test_ends(target: str, expected: str) -> None:
    assert str(first_last_precision(load_profile(target))) == expected


def test_only_promote_widens_a_width() -> None:
    finder = WidthFinder(load_profile("mpic"))
    runs = finder.execution("conv2d", Precision(weight_bits=3, activation_bits=4))
    assert (str(runs.pair), runs.is_promoted) == ("int4×int4", True)
    assert not finder.execution("conv2d", Precision(weight_bits=4, activation_bits=4)).is_promoted
    with pytest.raises(UnsupportedPrecisionError, match="does not run conv2d at W16A16; it runs W2A2"):
        finder.execution("conv2d", Precision(weight_bits=16, activation_bits=16))


def test_pairs_may_belong_to_operations() -> None:
    profile = load_profile("jetson_orin_nano")
    assert weight_widths(profile, "conv2d") == (8,)
    assert weight_widths(profile, "linear") == (4, 8)
    layers = [conv_layer(8, 8, size=8, name="c"), linear_layer(8, 8, name="l")]
    choices = layer_candidates(layers, profile)
    assert {name: names(found) for name, found in choices.items()} == {
        "c": "W8A8",
        "l": "W4A16 W8A8",
    }
    with pytest.raises(UnsupportedPrecisionError, match=r"layer 'c' \(conv2d\): .* with 4-bit weights"):
        layer_candidates(layers, profile, [4])


def test_a_named_operation_wins_over_a_general_pair(write: Write) -> None:
    path = write(
        "",
        widths="precisions: {pairs: [{w: int8, a: int8}, {w: int8, a: int8, compute: fp16, ops: [linear]}]}\n",
    )
    finder = WidthFinder(load_profile(path))
    eight = Precision(weight_bits=8, activation_bits=8)
    assert finder.execution("linear", eight).pair.compute == "fp16"
    assert finder.execution("conv2d", eight).pair.compute == "int8"


def test_ends_of_an_operation_take_its_own_pairs(write: Write) -> None:
    path = write(
        "",
        widths="precisions: {pairs: [{w: int8, a: int8}, {w: fp16, a: fp16, ops: [linear]}, {w: int4, a: int8}]}\n",
    )
    profile = load_profile(path)
    assert str(first_last_precision(profile, "linear")) == "W16A16"
    assert str(first_last_precision(profile, "conv2d")) == "W8A8"


def test_widest_is_one_width_for_all_candidates(write: Write) -> None:
    pairs = (
        "{w: int2, a: int4}, {w: int4, a: int4}, {w: int4, a: int8}, {w: int8, a: int4}, {w: int8, a: int8}"
    )
    profile = load_profile(write("", widths=f"precisions: {{pairs: [{pairs}]}}\n"))
    assert names(candidates(profile, [2, 4, 8], activation_bits="widest")) == "W2A4 W4A4 W8A4"
    assert names(candidates(profile, [4, 8], activation_bits="widest")) == "W4A8 W8A8"


def test_pairs_with_an_existing_kernel_are_preferred() -> None:
    profile = load_profile("x86_onnxruntime")
    assert names(candidates(profile, [4, 8], op="linear")) == "W4A32 W8A8"
    assert names(candidates(profile, [4, 8], op="conv2d")) == "W4A8 W8A8"


@pytest.mark.parametrize("target", ["stm32h743", "stm32f746", "nvidia_t4"])
def test_a_device_with_one_of_the_papers_widths_offers_all_it_has(target: str) -> None:
    assert [p.weight_bits for p in candidates(load_profile(target), op="conv2d")] == [4, 8]


def test_ends_keep_their_precision() -> None:
    layers = [conv_layer(3, 8, size=8, name="stem", is_end=True), conv_layer(8, 8, size=8, name="body")]
    choices = layer_candidates(layers, load_profile("generic"))
    assert {name: names(found) for name, found in choices.items()} == {"stem": "W16A16", "body": "W2A2 W4A4"}


def test_uniform_takes_the_next_wider_width_where_one_is_missing() -> None:
    w = {bits: Precision(weight_bits=bits, activation_bits=8) for bits in (2, 4, 8)}
    choices = {"a": (w[2], w[4], w[8]), "b": (w[2], w[8]), "c": (w[2],)}
    assert uniform(choices, 4) == {"a": w[4], "b": w[8], "c": w[2]}


def test_unsigned_activations_compute_as_integers(write: Write) -> None:
    profile = load_profile(write("", widths="precisions: {pairs: [{w: int8, a: uint8, ops: ['*']}]}\n"))
    assert (profile.pairs[0].compute, profile.pairs[0].ops) == ("int8", ())


def test_a_pair_of_another_operation_is_not_taken(write: Write) -> None:
    profile = load_profile(write("", widths="precisions: {pairs: [{w: int8, a: int8, ops: [linear]}]}\n"))
    with pytest.raises(UnsupportedPrecisionError, match="does not run conv2d at W8A8; it runs no width"):
        WidthFinder(profile).execution("conv2d", Precision(weight_bits=8, activation_bits=8))
