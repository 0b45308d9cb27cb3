"""What is wrong with a profile is said at once, in its place, with what to write instead."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hwbmpq.hardware import ProfileError, check_profile

Write = Callable[..., Path]

WRONG = """\
schema: hwbmpq/profile/v1
name: board
title: x
clas: mcu
precisions: {weights: [int8, int1], activations: [int8], pairs: [{w: int8, a: int8, kernel: vendr}]}
clock: {core: 480}
memory:
  - {name: ram, bandwith: 3 GB/s, size: {value: 12 KB, kind: datashet, src: [no]}, holds: [weight]}
  - {name: ram, size: 12 kB}
compute: {table: [{op: conv, macs_per_cycle: -1, kind: assumed}]}
modes: {fast: {clock.cor: 3 MHz, memory.flash.size: 3 B, compute.units: many}}
"""
PROBLEMS = [
    "1:1: class: is missing",
    "4:1: clas: unknown key: did you mean `class`?",
    "5:30: precisions.weights.1: 'int1' is not a number format: use int2 to int16, uint2 to uint16, fp16, bf16, fp32",
    "5:93: precisions.pairs.0.kernel: expected 'vendor', 'user' or 'none', found 'vendr'",
    "6:15: clock.core: 480 has no unit; write it like 921.6 MHz",
    "6:15: clock.core_hz: a figure needs its origin",
    "8:17: memory.0.bandwith: unknown key: did you mean `bandwidth`?",
    "8:49: memory.0.size: 'KB' is ambiguous: write kB (1000) or KiB (1024)",
    "8:62: memory.0.size_bytes.kind: expected 'measured', 'datasheet'",
    "8:77: memory.0.size_bytes.src: no source 'no' in `sources` (there: none yet)",
    "8:92: memory.0.holds.0: expected 'weights', 'activations' or 'tile', found 'weight'",
    "9:5: memory.1: 'ram' appears 2 times",
    "9:23: memory.1.size_bytes: a figure needs its origin",
    "10:24: compute.table.0.op.0: 'conv' is not an operation: use *, conv1d",
    "10:46: compute.table.0.macs_per_cycle: -1 must be greater than zero",
    "11:27: modes.fast.clock.cor: unknown key: did you mean `core`?",
    "11:53: modes.fast.memory.flash.size: no entry named 'flash'; there are: ram, ram",
    "11:73: compute.units: expected a whole number, found 'many'",
]


def test_all_problems_are_listed_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "board.yaml"
    path.write_text(WRONG)
    with pytest.raises(ProfileError) as caught:
        check_profile(path)
    lines = [line.removeprefix(f"{path}:") for line in str(caught.value).splitlines()]
    assert len(lines) == len(PROBLEMS)
    for line, expected in zip(lines, PROBLEMS, strict=True):
        assert line.startswith(expected)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("power: {active_w: 3}", "power.active_w: a figure needs its origin"),
        ("power: {active_w: {value: 3, kind: datasheet}}", "`src` is missing: kind datasheet needs a source"),
        ("power: {active_w: {kind: assumed}}", "power.active_w.value: is missing"),
        ("power: {active_w: {value: 3, kind: assumed, unit: W}}", "power.active_w.unit: unknown key"),
        ("power: {active_w: [1, 2]}", "expected a mapping"),
        ("power: {active_w: {value: .nan, kind: assumed}}", "nan is not a finite figure"),
        ("power: {active_w: {value: -.inf, kind: assumed}}", "-inf is not a finite figure"),
        ("power: {active_w: {value: 0, kind: assumed}}", "0 must be greater than zero"),
        ("power: {active_w: {value: -1 W, kind: assumed}}", "'-1 W' must be greater than zero"),
        ("power: {active_w: {value: true, kind: assumed}}", "expected a number, found True"),
        ("power: {active_w: {value: [], kind: assumed}}", r"expected a number, found \[\]"),
        (
            "power: {active: {value: 1 W, kind: assumed}, active_w: {value: 1, kind: assumed}}",
            "given twice, also as",
        ),
        ("power: 3", "power: expected a mapping, found 3"),
        ("memory: {name: x}", "memory: expected a list"),
        ("memory: [3]", "memory.0: expected a mapping"),
        ("name: 3", "key 'name' appears twice"),
        ("compute: {efficiency: {value: 1.5, kind: assumed}}", "is a share of the peak: at most 1"),
        ("compute: {table: [{op: conv2d}]}", "give either macs_per_cycle or macs_per_s"),
        (
            "compute: {kind: assumed, table: [{macs_per_cycle: 1, macs_per_s: 4 TOPS}]}",
            "give either macs_per_cycle or macs_per_s",
        ),
        (
            "compute: {kind: assumed, table: [{op: conv2d, macs_per_cycle: 1}, {op: [linear, conv2d], macs_per_cycle: 2}]}",
            "compute.table.1: a second row for the same layers",
        ),
        ("compute: {array: {type: bit_serial, dims: [8, 8]}}", "bit_serial takes Dm, Dk, Dn"),
        ("compute: {array: {type: bit_serial, dims: [8, 8, 8], src: [x]}}", "no source 'x' in `sources`"),
        ("constraints: {first_last: {w: int16, a: int8}}", "int16×int8 is not a pair of this device"),
        ("lookup_tables: [{id: a, file: x.json}]", "no file 'x.json'"),
        ("budgets: {flash: [1]}", "budgets.flash"),
        ("extends: [a]", "extends"),
        ("modes: {m: 3}", "modes.m: expected a mapping"),
        ("modes: 3", "modes: expected a mapping"),
        ("cost_models: {latency: roofline}", "cost_models.latency: expected a mapping"),
        ("cost_models: {latency: {}}", "cost_models.latency.model: is missing"),
        ("sources: {a: {title: A}}", "sources.a.kind: is missing"),
        ("caveats: be careful", "caveats: expected a list"),
        (
            "cost_models: {latancy: {model: roofline}}",
            "'latancy' is not a quantity: use latency, energy, memory",
        ),
        ("budgets: {flash: -5}", "budgets.flash"),
        (
            "lookup_tables: [{id: a, file: x, kind: assumed}, {id: a, file: y, kind: assumed}]",
            "lookup_tables.1: 'a' appears 2 times",
        ),
        (
            "energy: {kind: assumed, table: [{w: int8, pj_per_mac: 1}, {w: int8, pj_per_mac: 2}]}",
            "energy.table.1: a second row for the same layers",
        ),
        ("budgets: {flash: .nan}", "budgets.flash"),
        ("power: {active_w: {value: 1.0e40, kind: assumed}}", "is not a figure of a real device"),
        ("power: {active_w: {value: 1.0e-40, kind: assumed}}", "is not a figure of a real device"),
        ("compute: {array: {type: bit_serial, dims: [8, 8, 8]}}", "compute.array: a figure needs its origin"),
        ("compute: {units: 10000000000}", "compute.units"),
        ("lookup_tables: [{id: a, file: x.json}]", "lookup_tables.0: a figure needs its origin"),
    ],
)
def test_each_problem_is_named(body: str, message: str, write: Write) -> None:
    with pytest.raises(ProfileError, match=message):
        check_profile(write(body))


@pytest.mark.parametrize(
    ("precisions", "message"),
    [
        ("{}", "no widths: list `weights` and `activations`, or `pairs`"),
        ("{weights: [int8]}", "no widths"),
        ("{weights: [int8], pairs: [{w: int4, a: int8}]}", "precisions.pairs.0.w: int4 is not in `weights`"),
        (
            "{activations: [int4], pairs: [{w: int4, a: int8}]}",
            "precisions.pairs.0.a: int8 is not in `activations`",
        ),
        ("{weights: [int8], activations: [int8], promote: {8: 8}}", "8 is not a wider width of this device"),
        ("{pairs: [{w: int4, a: int16}, {w: int4, a: fp16}]}", "a second pair with the widths W4A16"),
        ("{weights: [int8], activations: [int8], promote: {3: 4}}", "4 is not a wider width of this device"),
        ("{weights: [int8], activations: [int8], promote: {9: 8}}", "8 is not a wider width of this device"),
        ("{weights: [fp8], activations: [int8]}", "'fp8' is not a number format"),
        ("{weights: [int17], activations: [int8]}", "'int17' is not a number format"),
        (
            "{weights: [int8], activations: [int8], simd_channels: {itn8: 4}}",
            "no weight format of this device",
        ),
        ("{weights: int8, activations: [int8]}", "precisions.weights: expected a list, found 'int8'"),
        ("{weights: [int8], activations: [int8], src: [nobody]}", "no source 'nobody'"),
    ],
)
def test_widths_are_checked(precisions: str, message: str, write: Write) -> None:
    with pytest.raises(ProfileError, match=message):
        check_profile(write("", widths=f"precisions: {precisions}\n"))


def test_the_file_has_the_profiles_name(write: Write) -> None:
    path = write("")
    other = path.with_name("other.yaml")
    path.rename(other)
    with pytest.raises(ProfileError, match=r"'board' in a file called other.yaml: write `name: other`"):
        check_profile(other)


def test_bare_numbers_take_the_origin_of_their_block(write: Write) -> None:
    profile = check_profile(
        write(
            """
sources: {a: {kind: code, title: A}}
compute:
  kind: measured
  src: a
  table:
    - {op: conv2d, macs_per_cycle: 1}
    - {op: linear, macs_per_cycle: 2, kind: assumed, note: a guess}
    - {op: dwconv2d, macs_per_cycle: {value: 3, kind: uncertain}}
"""
        )
    )
    figures = [row.macs_per_cycle for row in profile.compute.table]
    assert [(f.value, f.kind, f.src, f.note) for f in figures if f] == [
        (1, "measured", ("a",), None),
        (2, "assumed", ("a",), "a guess"),
        (3, "uncertain", ("a",), None),
    ]


def test_kernel_sizes_may_be_written_as_they_are_shown(write: Write) -> None:
    rows = "{kernel_size: 3x3, macs_per_cycle: 1}, {kernel_size: [5, 5], macs_per_cycle: 1}, {kernel_size: 1, macs_per_cycle: 1}"
    profile = check_profile(write(f"compute: {{kind: assumed, table: [{rows}]}}\n"))
    assert [row.kernel_size for row in profile.compute.table] == [(3, 3), (5, 5), (1,)]


def test_missing_keys_are_each_named(tmp_path: Path) -> None:
    path = tmp_path / "board.yaml"
    path.write_text("name: board\nprecisions: {weights: [int8], activations: [int8]}\n")
    with pytest.raises(ProfileError) as caught:
        check_profile(path)
    assert {problem.field for problem in caught.value.problems} == {"schema", "title", "class"}


def test_null_means_unknown(write: Write) -> None:
    profile = check_profile(
        write("power: {active_w: {value: ~, kind: datasheet}}\nenergy: null\nmemory: null\nclock:\n")
    )
    assert (profile.power.active_w, profile.memory, profile.clock.core_hz) == (None, (), None)


def test_more_than_fifty_problems_are_counted(write: Write) -> None:
    body = "memory:\n" + "".join(f"  - {{name: m{n}, hold: x}}\n" for n in range(70))
    with pytest.raises(ProfileError) as caught:
        check_profile(write(body))
    assert len(caught.value.problems) == 70
    assert str(caught.value).splitlines()[-1] == "… and 20 more problems"


def test_a_long_name_does_not_flood_the_report(write: Write) -> None:
    body = f"memory: [{{name: {'x' * 5000}}}]\nmodes: {{m: {{memory.ram.size: 1 KiB}}}}\n"
    with pytest.raises(ProfileError, match="there are: xxx") as caught:
        check_profile(write(body))
    assert all(len(line) < 1000 for line in str(caught.value).splitlines())
