"""Lookup tables that profiles refer to."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hwbmpq.hardware import ProfileError, load_profile

Write = Callable[..., Path]
CLOCK = "clock: {{core: {{value: {}, kind: assumed}}}}\n"


TABLE = {
    "schema": "hwbmpq/lut/v1",
    "device": "d",
    "runtime": "r",
    "source": {"title": "t"},
    "unit": "us",
    "key": ["op", "w_bits", "a_bits"],
    "entries": [{"op": "conv2d", "w_bits": 8, "a_bits": 8, "macs": 10, "value": 1.5}],
}


def with_table(write: Write, tmp_path: Path, content: str, file: str = "t.json", extra: str = "") -> Path:
    (tmp_path / "here").mkdir(exist_ok=True)
    (tmp_path / "here" / "t.json").write_text(content)
    return write(f'lookup_tables: [{{id: t, file: "{file}", kind: assumed{extra}}}]\n', folder="here")


def test_a_lookup_table_is_read_from_the_profiles_folder(write: Write, tmp_path: Path) -> None:
    profile = load_profile(with_table(write, tmp_path, json.dumps(TABLE)))
    assert profile.tables["t"].entries[0].value == 1.5


def test_a_child_finds_the_tables_of_its_base(write: Write) -> None:
    assert load_profile(write("extends: nvidia_t4\n", widths="")).tables["tvm_batch8"].batch == 8


def test_a_table_is_checked_against_its_sha256(write: Write, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="its sha256 differs"):
        load_profile(with_table(write, tmp_path, json.dumps(TABLE), extra=f", sha256: {'a' * 64}"))


@pytest.mark.parametrize(
    "file", ["../t.json", "/etc/hostname", "link.json", "nothing.json", "", "t.json\\0", "."]
)
def test_tables_are_read_from_nowhere_else(file: str, write: Write, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(TABLE))
    path = with_table(write, tmp_path, json.dumps(TABLE), file=file)
    (tmp_path / "here" / "link.json").symlink_to(tmp_path / "t.json")
    with pytest.raises(
        ProfileError, match=r"no file .* in the profile's folder|at least 1 character|not YAML"
    ):
        load_profile(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unit": "hours"}, "unit: Input should be 's', 'ms'"),
        ({"entries": []}, "entries: Tuple should have at least 1 item"),
        ({"extra": 1}, "extra: unknown key"),
        ({"key": ["op", "in_channels", "w_bits", "a_bits"]}, "an entry lacks 'in_channels'"),
        ({"key": ["op", "w_bits", "w_bits"]}, "the table's key lacks 'a_bits'"),
        ({"entries": TABLE["entries"] * 2}, "two entries for op=conv2d w_bits=8 a_bits=8"),
        ({"schema": "other"}, "schema"),
        (
            {"entries": [{"op": "convolution", "w_bits": 8, "a_bits": 8, "macs": 10, "value": 1}]},
            "'convolution' is not an operation",
        ),
        (
            {"entries": [{"op": "conv2d", "w_bits": 8, "a_bits": 8, "macs": 10, "value": 1, "kernal": 3}]},
            "entries.0.kernal",
        ),
        (
            {"entries": [{"op": "conv2d", "w_bits": 8, "a_bits": 8, "macs": 10**400, "value": 1}]},
            "entries.0.macs",
        ),
        (
            {"entries": [{"op": "conv2d", "w_bits": 8, "a_bits": 8, "macs": 10, "value": -1}]},
            "entries.0.value: Input should be greater than 0",
        ),
    ],
)
def test_wrong_tables_say_what_is_wrong(
    change: dict[str, object], message: str, write: Write, tmp_path: Path
) -> None:
    with pytest.raises(ProfileError, match=message):
        load_profile(with_table(write, tmp_path, json.dumps({**TABLE, **change})))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"t.json:1:2: not JSON"),
        ('{"a": NaN}', "NaN is not a measured value"),
        ("[" * 100_000, "not a JSON table"),
        ("[1]", "t.json"),
        ("1" * 10_000, "not a JSON table"),
        ("\x00", "not JSON"),
    ],
)
def test_what_is_no_table_ends_in_one_sentence(
    content: str, message: str, write: Write, tmp_path: Path
) -> None:
    with pytest.raises(ProfileError, match=message):
        load_profile(with_table(write, tmp_path, content))


def test_modes_and_tables_are_bounded(write: Write, tmp_path: Path) -> None:
    many = "".join(f"  m{n}: {{compute.units: 2}}\n" for n in range(65))
    with pytest.raises(ProfileError, match="65 modes; a profile has at most 64"):
        load_profile(write(f"modes:\n{many}"))
    refs = "".join(f"  - {{id: t{n}, file: t.json, kind: assumed}}\n" for n in range(17))
    (tmp_path / "t.json").write_text(json.dumps(TABLE))
    with pytest.raises(ProfileError, match="17 tables; a profile has at most 16"):
        load_profile(write(f"lookup_tables:\n{refs}"))


def test_tables_are_bounded_together(write: Write, tmp_path: Path) -> None:
    padding = " " * (5 << 20)
    (tmp_path / "t.json").write_text(json.dumps(TABLE) + padding)
    one = "  - {id: a, file: t.json, kind: assumed}\n"
    assert load_profile(write(f"lookup_tables:\n{one}")).tables
    with pytest.raises(ProfileError, match="larger than 8 MiB together"):
        load_profile(write(f"lookup_tables:\n{one}{one.replace('id: a', 'id: b')}"))


def test_a_table_beside_the_profile_comes_before_one_in_the_search_path(write: Write, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "t.json").write_text(json.dumps({**TABLE, "device": "elsewhere"}))
    assert load_profile(with_table(write, tmp_path, json.dumps(TABLE))).tables["t"].device == "d"


def test_a_missing_layer_is_an_error_unless_the_profile_says_otherwise(write: Write, tmp_path: Path) -> None:
    assert load_profile(with_table(write, tmp_path, json.dumps(TABLE))).lookup_tables[0].miss == "error"
