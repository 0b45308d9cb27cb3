"""The generated reference has every public name and every command, and the site builds without a broken link."""

import argparse
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import generate_reference as generator
import pytest

from hwbmpq.cli.main import build_parser

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("reference")
    generator.write(folder)
    return {page.name: page.read_text(encoding="utf-8") for page in folder.iterdir()}


def headings(page: str) -> set[str]:
    """Those outside of code."""
    return set(re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S), re.MULTILINE))


def anchors(page: str) -> set[str]:
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings(page)}


def commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    groups = [a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return [parser, *(found for group in groups for child in group.values() for found in commands(child))]


def test_pages_are_generated_and_not_committed(pages: dict[str, str]) -> None:
    assert set(pages) == {"cli.md", "api.md"}
    assert not [name for name in pages if (ROOT / "docs" / name).exists()]


@pytest.mark.parametrize("command", commands(build_parser()), ids=lambda command: command.prog)
def test_every_command_and_option_is_there(command: argparse.ArgumentParser, pages: dict[str, str]) -> None:
    assert command.prog in headings(pages["cli.md"])
    section = pages["cli.md"].split(f"\n## {command.prog}\n")[1].split("\n## ")[0]
    options = [option for action in command._actions for option in action.option_strings]
    assert [option for option in options if option not in section] == []


@pytest.mark.parametrize("module", ["hwbmpq", *generator.public_modules()])
def test_every_public_name_is_there(module: str, pages: dict[str, str]) -> None:
    assert module in headings(pages["api.md"])
    for name in generator.public_names(module):
        said = f"{module}.{name}"
        assert said in headings(pages["api.md"]) or f"- `{said}` is [" in pages["api.md"], said


@pytest.mark.parametrize("name", ["cli.md", "api.md"])
def test_links_within_a_page_lead_somewhere(name: str, pages: dict[str, str]) -> None:
    links = re.findall(r"\]\(#([^)]+)\)", pages[name])
    assert links
    assert set(links) <= anchors(pages[name])


def test_help_does_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    page = generator.cli_page()
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert generator.cli_page() == page
    assert "\x1b" not in page


@pytest.mark.parametrize("module", ["hwbmpq", *generator.public_modules()])
def test_the_page_has_what_can_be_imported(module: str) -> None:
    loaded = import_module(module)
    listed = set(generator.public_names(module))
    for name in listed:
        assert hasattr(loaded, name), f"{module}.{name} is documented and does not exist"
    offered = {name for name in getattr(loaded, "__all__", ()) if not name.startswith("_")}
    missing = ", ".join(sorted(offered - listed))
    assert not missing, f"name {missing} as `X as X` under TYPE_CHECKING in the __init__.py of {module}"


def test_the_pages_name_no_place_or_address(pages: dict[str, str]) -> None:
    for page in pages.values():
        assert str(ROOT) not in page
        assert " at 0x" not in page


def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    pytest.importorskip("zensical", reason="the docs extra is not installed")
    pytest.importorskip("latex2mathml", reason="the docs extra is not installed")
    site = import_module("build_site")
    (tmp_path / "build/docs").mkdir(parents=True)
    site.stage(tmp_path / "build/docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    found = {page.stem for page in (tmp_path / "site").glob("*.html")}
    wanted = {page.stem for page in (tmp_path / "build/docs").glob("*.md")} - {"README"}
    assert found >= wanted | {"index"}
    assert "hwbmpq.search.BitAllocator" in (tmp_path / "site/search.json").read_text()
    concepts = (tmp_path / "site/concepts.html").read_text()
    assert "<math" in concepts
    assert "$" not in re.sub(r"<(code|pre|script)\b.*?</\1>", "", concepts, flags=re.DOTALL)
