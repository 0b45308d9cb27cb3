"""The reference pages are what their generator writes now."""

import sys
from importlib import import_module
from pathlib import Path

import generate_reference as generator
import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["cli.md", "api.md"])
def test_the_page_is_up_to_date(name: str) -> None:
    if name == "cli.md" and sys.version_info[:2] != generator.PYTHON:
        pytest.skip("argparse words its help differently in other versions of Python")
    written = (ROOT / "docs" / name).read_text(encoding="utf-8")
    expected = generator.PAGES[name]()
    wanted, found = expected.splitlines(), written.splitlines()
    line = next((n for n, pair in enumerate(zip(wanted, found, strict=False), 1) if pair[0] != pair[1]), 0)
    line = line or min(len(wanted), len(found))
    assert written == expected, f"docs/{name} is out of date from line {line} on. Run: {generator.COMMAND}"


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


def test_the_pages_name_no_place_or_address() -> None:
    for page in (generator.cli_page(), generator.api_page()):
        assert str(ROOT) not in page
        assert " at 0x" not in page
