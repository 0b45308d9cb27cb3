"""Thousands of broken profiles: each ends in success or one readable report, soon, and reads nothing outside."""

import contextlib
import io
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hwbmpq.cli.main import main
from hwbmpq.costs import check_cost_models, cost_models
from hwbmpq.hardware import ProfileError, check_profile, shipped_folder
from hwbmpq.hardware.document import MOST_PROBLEMS

SHIPPED = [path.read_text() for path in sorted(shipped_folder().glob("*.yaml"))]
TABLES = [path.read_text() for path in sorted((shipped_folder() / "tables").glob("*.json"))]
NASTY = [
    "null",
    "~",
    "''",
    "-1",
    "0",
    ".nan",
    ".inf",
    "-.inf",
    "1e999",
    "921.6e6",
    "'921.6e6'",
    "9" * 400,
    "[]",
    "{}",
    "[[[[1]]]]",
    "{a: {b: {c: 1}}}",
    "true",
    "int0",
    "int99",
    "../../../etc/passwd",
    "/etc/passwd",
    "../secret",
    "../secret.json",
    "tables/../../secret.json",
    "~/.ssh/id_rsa",
    '"\\0"',
    '"\\ud83d"',
    "!!python/object:os.system x",
    "*anchor",
    "&anchor x",
    "<<",
    "gap8",
    "_pulp_core",
    "fuzzed",
    "25.6 GB/s",
    "12 KB",
    "FILL_IN",
    "{value: 1}",
    "{value: -1, kind: assumed}",
    "{value: {}, kind: []}",
    "💥",
    "latency",
    "power_time",
    "flash",
    "bops",
    "10" * 90,
    "x" * 5000,
]
_FAST = 1500
_THOROUGH = 20_000
_SLOWEST = 3.0  # seconds, for one file, on a busy machine
_opened: list[str] | None = None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _opened is not None and isinstance(arguments[0], str):
        _opened.append(arguments[0])


sys.addaudithook(_watch)


@contextlib.contextmanager
def reads_recorded() -> Iterator[list[str]]:
    global _opened
    _opened = []
    try:
        yield _opened
    finally:
        _opened = None


outcomes: Counter[str] = Counter()
slowest = [0.0]


@pytest.fixture(scope="module", autouse=True)
def _record() -> Iterator[None]:
    """With HWBMPQ_RESULTS, leave what was tried in that folder."""
    yield
    folder = os.environ.get("HWBMPQ_RESULTS")
    if folder and sum(outcomes.values()) >= _THOROUGH:
        facts = {"profiles tried": sum(outcomes.values()), **outcomes, "slowest_s": round(slowest[0], 3)}
        (Path(folder) / "profile_fuzz.json").write_text(json.dumps(facts, indent=2) + "\n")


@pytest.fixture(scope="module", autouse=True)
def _plugins_looked_up() -> None:
    cost_models()  # reads the metadata of installed packages once


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "tables").mkdir()
    for name in ("secret.yaml", "secret.json"):  # within reach of ../secret
        (folder.parent / name).write_text(SHIPPED[0])
    for path in (shipped_folder() / "tables").glob("*.json"):
        (folder / "tables" / path.name).write_text(path.read_text())
    return folder


def assert_ends_well(content: bytes, folder: Path) -> None:
    """The one property: a profile, or a report that a person can read; no other file is touched."""
    path = folder / "fuzzed.yaml"
    path.write_bytes(content)
    report: ProfileError | None = None
    start = time.perf_counter()
    with reads_recorded() as opened:
        try:
            check_cost_models(check_profile(path))
        except ProfileError as error:
            report = error
    seconds = time.perf_counter() - start
    slowest[0] = max(slowest[0], seconds)
    assert seconds < _SLOWEST
    # Python itself loads a codec when it first meets it.
    allowed = tuple(
        f"{place}{os.sep}" for place in (folder.resolve(), shipped_folder().resolve(), sys.base_prefix)
    )
    outside = [name for name in opened if not str(Path(name).resolve()).startswith(allowed)]
    assert outside == []
    outcomes["accepted" if report is None else "refused with a report"] += 1
    if report is not None:
        lines = str(report).splitlines()
        assert 1 <= len(lines) <= MOST_PROBLEMS + 1
        assert all(len(line) < 1500 for line in lines)


def _renamed(text: str) -> str:
    return re.sub(r"^name: .*$", "name: fuzzed", text, flags=re.MULTILINE)


@st.composite
def mutated_profiles(draw: st.DrawFn) -> bytes:
    """A real profile with a few lines, values or characters changed."""
    lines = _renamed(draw(st.sampled_from(SHIPPED))).splitlines()
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, max(len(lines) - 1, 0)))
        if not lines:
            break
        line = lines[position]
        kind = draw(st.sampled_from("delete repeat swap value key indent character".split()))
        if kind == "delete":
            del lines[position]
        elif kind == "repeat":
            lines.insert(position, line)
        elif kind == "swap":
            other = draw(st.integers(0, len(lines) - 1))
            lines[position], lines[other] = lines[other], line
        elif kind == "value":
            tokens = list(re.finditer(r"(?<=: )[^,{}\[\]#]+", line))
            if tokens:
                token = draw(st.sampled_from(tokens))
                lines[position] = line[: token.start()] + draw(st.sampled_from(NASTY)) + line[token.end() :]
        elif kind == "key":
            lines[position] = re.sub(r"(\w+):", lambda match: f"{match[1][::-1]}:", line, count=1)
        elif kind == "indent":
            lines[position] = " " * draw(st.integers(0, 8)) + line.lstrip()
        else:
            at = draw(st.integers(0, len(line)))
            lines[position] = line[:at] + draw(st.text(max_size=3)) + line[at + draw(st.integers(0, 2)) :]
    return "\n".join(lines).encode("utf-8", "surrogatepass")


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.sampled_from(NASTY)
)
KEYS = st.sampled_from(
    "schema name title class extends abstract sources precisions weights activations pairs w a promote simd_channels "
    "clock core core_hz compute table op macs_per_cycle memory size bandwidth holds energy power active_w modes budgets "
    "lookup_tables id file cost_models model constraints first_last value kind src note".split()
)
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=6)),
    max_leaves=40,
)


@st.composite
def random_profiles(draw: st.DrawFn) -> bytes:
    """The right keys with anything in them, as JSON, which is YAML."""
    content = draw(st.dictionaries(KEYS, trees, max_size=8))
    head = {"schema": "hwbmpq/profile/v1", "name": "fuzzed", "title": "t", "class": "mcu"}
    return json.dumps({**head, **content}).encode("utf-8", "surrogatepass")


def sized(examples: int) -> Any:
    return settings(
        max_examples=examples,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


@sized(_FAST)
@given(content=mutated_profiles())
def test_mutated_profiles(content: bytes, folder: Path) -> None:
    assert_ends_well(content, folder)


def test_some_mutants_are_accepted_and_some_refused() -> None:
    assert outcomes["accepted"] > 20
    assert outcomes["refused with a report"] > 500


@sized(_FAST // 2)
@given(content=random_profiles())
def test_random_contents(content: bytes, folder: Path) -> None:
    assert_ends_well(content, folder)


@sized(_FAST // 2)
@given(content=st.one_of(st.binary(max_size=300), st.text(max_size=300).map(lambda text: text.encode())))
def test_random_bytes(content: bytes, folder: Path) -> None:
    assert_ends_well(content, folder)


@sized(_FAST // 5)
@given(data=st.data())
def test_mutated_lookup_tables(data: st.DataObject, folder: Path) -> None:
    text = data.draw(st.sampled_from(TABLES))
    at = data.draw(st.integers(0, len(text) - 1))
    length = data.draw(st.integers(0, 30))
    nasty = data.draw(st.sampled_from(["", "{", "null", "-1", "1e999", "NaN", '"x"', "[]", "\\", "\x00"]))
    (folder / "table.json").write_text(text[:at] + nasty + text[at + length :])
    head = "schema: hwbmpq/profile/v1\nname: fuzzed\ntitle: t\nclass: mcu\n"
    body = "precisions: {weights: [int8], activations: [int8]}\nlookup_tables: [{id: t, file: table.json}]\n"
    assert_ends_well((head + body).encode(), folder)


@pytest.mark.slow
@sized(_THOROUGH)
@given(content=mutated_profiles())
def test_many_mutated_profiles(content: bytes, folder: Path) -> None:
    assert_ends_well(content, folder)


@pytest.mark.slow
@sized(_THOROUGH // 2)
@given(content=random_profiles())
def test_many_random_contents(content: bytes, folder: Path) -> None:
    assert_ends_well(content, folder)


@sized(60)
@given(content=mutated_profiles())
def test_the_command_line_never_shows_a_traceback(content: bytes, folder: Path) -> None:
    path = folder / "fuzzed.yaml"
    path.write_bytes(content)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["targets", "check", str(path)])
    assert code in (0, 2)
    assert "Traceback" not in err.getvalue()
    assert (code == 0) == out.getvalue().startswith("ok")
