"""Probable mistakes in profiles that can be read all the same."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hwbmpq.cli.main import main
from hwbmpq.hardware import ProfileError, check_profile, list_profiles, load_profile, remarks_on

HEAD = """\
schema: hwbmpq/profile/v1
name: board
title: x
class: mcu
precisions: {weights: [int8, int4], activations: [int8]}
"""
Write = Callable[[str], Path]


@pytest.fixture
def board(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "board.yaml"
        path.write_text(HEAD + text)
        return path

    return write


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "clock: {core: 200 mHz, kind: assumed}",
            "clock.core_hz is 200 mHz: m is milli; did you mean 200 MHz?",
        ),
        ("clock: {core: 0.5 Hz, kind: assumed}", "did you mean 500 MHz?"),
        ("memory: [{name: ram, size: 2 mB, kind: assumed}]", "did you mean 2 MB?"),
        ("memory: [{name: ram, bandwidth: 25 mB/s, kind: assumed}]", "did you mean 25 MB/s?"),
    ],
)
def test_milli_where_mega_was_meant(board: Write, text: str, told: str) -> None:
    (remark,) = remarks_on(load_profile(str(board(text))))
    assert told in remark


@pytest.mark.parametrize(
    "text",
    [
        "clock: {core: 200 MHz, kind: assumed}",
        "clock: {core: 32 kHz, kind: assumed}",
        "power: {active: 5 mW, kind: assumed}",
        "memory: [{name: ram, size: 2 kB, kind: assumed}]",
    ],
)
def test_small_devices_are_not_a_mistake(board: Write, text: str) -> None:
    assert remarks_on(load_profile(str(board(text)))) == ()


@pytest.mark.parametrize("block", ["compute: {table: [ROW, {w: int8, macs_per_cycle: 2, kind: assumed}]}"])
@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("{w: int2, a: int8, macs_per_cycle: 4, kind: assumed}", "compute.table.0 (int2×int8)"),
        ("{w: int8, a: int4, macs_per_cycle: 4, kind: assumed}", "compute.table.0 (int8×int4)"),
        ("{compute: fp16, macs_per_cycle: 4, kind: assumed}", "compute.table.0 (computed in fp16)"),
    ],
)
def test_rows_for_widths_that_the_profile_does_not_list(
    board: Write, block: str, row: str, told: str
) -> None:
    (remark,) = remarks_on(load_profile(str(board(block.replace("ROW", row)))))
    assert remark.startswith(f"{told}: precisions lists no such pair")


def test_energy_rows_too(board: Write) -> None:
    (remark,) = remarks_on(
        load_profile(str(board("energy: {table: [{w: int2, pj_per_mac: 1, kind: assumed}]}")))
    )
    assert remark.startswith("energy.table.0 (int2)")


@pytest.mark.parametrize(
    "row", ["{w: uint8, macs_per_cycle: 4, kind: assumed}", "{macs_per_cycle: 4, kind: assumed}"]
)
def test_rows_that_match_are_not_told(board: Write, row: str) -> None:
    assert remarks_on(load_profile(str(board(f"compute: {{table: [{row}]}}")))) == ()


def test_check_and_show_print_them(board: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(board("clock: {core: 200 mHz, kind: assumed}"))
    for command in (["targets", "check", path], ["targets", "show", path]):
        assert main(command) == 0
        assert "did you mean 200 MHz?" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("listing", list_profiles(), ids=lambda listing: listing.name)
def test_shipped_profiles_have_none(listing: object) -> None:
    profile = listing.profile  # type: ignore[attr-defined]
    assert profile is None or remarks_on(profile) == ()


def test_pins_of_a_profile_are_widths(board: Write) -> None:
    with pytest.raises(ProfileError, match=r"constraints.pin.head.*: 'wide' is not a width: write 8"):
        check_profile(str(board("constraints: {pin: {head: wide}}")))
    check_profile(str(board("constraints: {pin: {head: W4A8, '*.conv': 8}, keep_float: [gate]}")))
