"""Pages that show measurements show what is in ``benchmarks/results``, all of it."""

import re
from pathlib import Path

import generate_results
import pytest

ROOT = Path(__file__).parents[1]


TEXT = {name: (ROOT / "docs" / name).read_text() for name in generate_results.PAGES}


@pytest.mark.parametrize("name", generate_results.PAGES)
def test_tables_are_those_that_were_measured(name: str) -> None:
    assert generate_results.page_of(TEXT[name]) == TEXT[name], "run docs/generate_results.py"


@pytest.mark.parametrize("result", generate_results.SOURCES)
def test_every_table_of_a_result_is_on_a_page_and_no_other(result: str) -> None:
    shown = re.findall(rf"<!-- table: {result}/(.+?) -->", "".join(TEXT.values()))
    assert sorted(shown) == sorted(generate_results.tables_of(result))


@pytest.mark.parametrize("result", generate_results.SOURCES)
def test_every_result_names_the_machine(result: str) -> None:
    machine = generate_results.content_of(result)["machine"]
    assert machine["cpu"]
    assert machine["cores"]


def test_a_page_with_other_figures_is_noticed() -> None:
    changed = re.sub(
        r"(<!-- table: scale/layers -->\n.*?)\d", r"\g<1>9999", TEXT["results.md"], flags=re.DOTALL
    )
    assert changed != TEXT["results.md"]
    assert generate_results.page_of(changed) != changed


@pytest.mark.parametrize("name", generate_results.PLOTS)
def test_plots_are_those_of_the_results(name: str, tmp_path: Path) -> None:
    generate_results.PLOTS[name](tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == (ROOT / "docs" / name).read_text()
    assert f"({name})" in TEXT["results.md"]


def test_every_test_that_the_pages_name_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT["results.md"])
    assert len(named) > 40
    for path, name in named:
        source = (ROOT / path).read_text()
        assert not name or f"def {name}(" in source, f"{path}::{name}"
