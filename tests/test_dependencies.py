"""docs/dependencies.md has every dependency and no other, and shows what was measured."""

import importlib.metadata
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import dependencies
import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "dependencies.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def canonical(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!~\[ ;]", requirement)[0]).lower()


def rows_below(heading: str) -> set[str]:
    """What stands in the first column of the tables of a section."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    return {canonical(name) for name in re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)}


RUNTIME = {canonical(line) for line in PROJECT["dependencies"]}
EXTRAS = {
    canonical(line)
    for extra, lines in PROJECT["optional-dependencies"].items()
    if extra not in ("dev", "docs")
    for line in lines
}


def test_every_dependency_is_justified_and_no_other() -> None:
    assert rows_below("Why each is needed") == RUNTIME


def test_every_dependency_has_its_figures() -> None:
    shown = rows_below("What each costs")
    assert shown >= RUNTIME
    assert shown - RUNTIME <= EXTRAS


@pytest.mark.parametrize("name", sorted(EXTRAS))
def test_every_extra_is_named(name: str) -> None:
    assert f"`{name}`" in PAGE


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonical(name): version for name, version in pairs}


def test_the_tested_versions_pin_every_dependency() -> None:
    assert set(pins()) >= RUNTIME


@pytest.mark.parametrize("name", sorted(pins()))
def test_what_is_pinned_is_what_is_installed(name: str) -> None:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("an extra that is not installed")
    assert version.partition("+")[0] == pins()[name]  # 2.13.0+cpu is 2.13.0


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ROOT / "benchmarks/results/dependencies.json").read_text())
    return content


def test_no_command_that_only_reads_imports_torch(measured: dict[str, Any]) -> None:
    for command in ("--help", "targets list"):
        assert "torch" not in measured["commands"][command]
    assert "torch" in measured["commands"]["inspect"]  # the list tells them apart


def test_only_glpk_is_copyleft() -> None:
    """What the page says about distributing holds for what is installed; a new licence has to be looked at."""
    strict = re.compile(r"GPL|GNU", re.IGNORECASE)
    found = {name for name in dependencies.needed_by(RUNTIME) if strict.search(dependencies.licence(name))}
    assert found == {"swiglpk"}


def test_bytes_are_those_of_the_files() -> None:
    files = importlib.metadata.files("platformdirs")
    assert files
    assert dependencies.size("platformdirs") >= sum(f.size or 0 for f in files) > 1000
