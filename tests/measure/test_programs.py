"""Which kernel runs which widths."""

import pytest

from hwbmpq.errors import HwbmpqError
from hwbmpq.measure.kit_runner import accumulates_in_int32
from hwbmpq.measure.profiles import parse_widths
from hwbmpq.measure.programs import INT8, program_of, widened
from hwbmpq.values import Precision


@pytest.mark.parametrize(
    ("op", "widths", "form"),
    [
        ("conv2d", "W32A32", "float32"),
        ("conv2d", "W2A8", "int8"),
        ("conv2d", "W8A4", "int8"),
        ("conv2d", "W8A8", "uint8"),
        ("conv2d", "W16A16", "qdq16"),
        ("conv2d", "W4A16", "qdq16"),
        ("linear", "W3A32", "nbits4"),
        ("linear", "W8A32", "nbits8"),
        ("conv2d", "W8A32", None),
        ("linear", "W32A8", None),
    ],
)
def test_each_pair_has_its_program(op: str, widths: str, form: str | None) -> None:
    found = program_of(op, Precision.parse(widths))
    assert (None if found is None else found.name) == form


def test_where_sums_are_wide_signed_bytes_run_all_widths_up_to_eight() -> None:
    found = {
        program_of("conv2d", Precision.parse(text), accumulates_int32=True)
        for text in ("W2A8", "W8A8", "W8A4")
    }
    assert found == {INT8}


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("x86_64", ["avx2"], False),
        ("x86_64", ["avx2", "avx512_vnni"], True),
        ("AMD64", ["avx_vnni"], True),
        ("aarch64", ["asimd"], True),
        ("armv7l", [], True),
        ("riscv64", [], False),
    ],
)
def test_which_processors_add_in_32_bits(machine: str, flags: list[str], expected: bool) -> None:
    assert accumulates_in_int32(machine, flags) is expected


@pytest.mark.parametrize(
    ("widths", "note"),
    [
        ("W8A8", ""),
        ("W32A32", ""),
        ("W4A32", ""),
        ("W4A8", "weights are widened to int8"),
        ("W3A32", "weights are widened to 4 bits"),
        ("W16A16", "computed in float32"),
    ],
)
def test_what_becomes_of_narrow_weights_is_said(widths: str, note: str) -> None:
    assert widened(Precision.parse(widths)) == note


@pytest.mark.parametrize(
    ("text", "message"),
    [("W8", "not a pair of widths"), ("W32A8", "no kernel for W32A8"), ("8,8", "not a pair")],
)
def test_widths_that_are_none_are_refused(text: str, message: str) -> None:
    with pytest.raises(HwbmpqError, match=message) as caught:
        parse_widths([text])
    assert caught.value.hint


def test_widths_are_read_once_each() -> None:
    assert parse_widths(["w4a8", "W4A8", "W8A8"]) == (Precision.parse("W4A8"), Precision.parse("W8A8"))
