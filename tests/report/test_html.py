"""The page: whole, self-contained, and safe whatever the names in it are."""

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hwbmpq.costs.table import FigureUse
from hwbmpq.errors import HwbmpqError, printable
from hwbmpq.report import RunReport
from hwbmpq.report.html import render_page, write_page
from hwbmpq.report.html.plot_style import of_width, text_on
from hwbmpq.values import TieGroup

MakeReport = Callable[..., RunReport]
EVIL = '<img src=x onerror="alert(1)">\'&</script>\x00\x1b[2J\x9b\x7f\u202e\ufffe\udcff{}'
MOST_BYTES = 3 << 20


class Elements(HTMLParser):
    """Tags, attributes and ids of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def parsed(page: str) -> Elements:
    found = Elements()
    found.feed(page)
    return found


@pytest.fixture(scope="module")
def page(made_up_report: MakeReport) -> str:
    return render_page([made_up_report()])


def test_all_parts_are_there(page: str) -> None:
    for part in (
        "Widths over the network&#39;s depth",
        "How the widths moved during training",
        "Sensitivity at each decision",
        "Learning curves",
        "What each layer costs",
        "What memory buys",
        "What if the budget were different",
        "The network",
        "What is not quantized",
        "Where the figures come from",
        "How it was made",
        "hwbmpq compress --model made:up",
        "one caveat",
        "one remark",
    ):
        assert part in page or part.replace("&#39;", "'") in page, part
    assert page.count("<figure") == 7


def test_every_plot_has_words_for_those_who_do_not_see_it(page: str) -> None:
    labels = [value for name, value in parsed(page).attributes if name == "aria-label"]
    assert sum(len(label) > 30 for label in labels) >= 7
    assert page.count("<figcaption>") == 7


def test_axes_have_titles_with_units(page: str) -> None:
    for title in (
        "weight bits",
        "epoch",
        "accuracy (%)",
        "memory (KiB)",
        "share of the layers",
        "sensitivity",
    ):
        assert title in page, title


def test_nothing_is_fetched_from_elsewhere(page: str) -> None:
    found = parsed(page)
    sources = [value for name, value in found.attributes if name in ("src", "href", "xlink:href", "action")]
    assert all(value.startswith("#") for value in sources)
    assert "link" not in found.tags
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_names_in_it_are_unique(page: str) -> None:
    idents = [value for name, value in parsed(page).attributes if name == "id"]
    assert len(idents) == len(set(idents))


def test_reasons_are_there_to_be_pointed_at(page: str) -> None:
    tips = [value for name, value in parsed(page).attributes if name == "data-tip"]
    assert any("rank 5 of 6" in tip and "after epoch 1" in tip for tip in tips)
    assert any("random 1" in tip for tip in tips)
    assert any("downsample: layer1, layer2" in tip for tip in tips)


@pytest.fixture(scope="module")
def hostile(made_up_report: MakeReport) -> RunReport:
    """A run in which everything that is text is an attack."""
    report = made_up_report(
        name=EVIL,
        run=EVIL,
        title=EVIL,
        target=EVIL,
        device=EVIL,
        traced_by=EVIL,
        caveats=(EVIL,),
        sources={"paper": EVIL},
        command=(EVIL,),
        versions={EVIL: EVIL},
        settings={"epochs": 5, EVIL: EVIL},
    )
    assert report.plan is not None
    table = report.facts.tables["memory"]
    figure = FigureUse(
        path=EVIL, value=1.0, unit=EVIL, kind=EVIL, sources=("paper",), note=EVIL, is_doubtful=True
    )
    facts = replace(
        report.facts,
        tables={**report.facts.tables, "memory": replace(table, figures=(figure,))},
        ties=tuple(TieGroup(layers=group.layers, reason=EVIL) for group in report.facts.ties),
        nodes=tuple(replace(node, kind=EVIL) for node in report.facts.nodes),
        unquantized=tuple(replace(one, reason=EVIL, why=EVIL) for one in report.facts.unquantized),
    )
    plan = replace(report.plan, target=EVIL, remarks=(EVIL,), missing={EVIL: EVIL})
    moves = tuple(replace(move, why=EVIL) for move in report.moves)
    return replace(report, facts=facts, plan=plan, moves=moves, state=EVIL)


def test_names_that_attack_stay_text(hostile: RunReport, page: str) -> None:
    for reports in ([hostile], [hostile, hostile]):
        text = render_page(reports)
        found = parsed(text)
        assert "img" not in found.tags
        assert not [name for name, _ in found.attributes if name.startswith("on")]
        assert text.count("<script") == text.count("</script>") == 2
        assert "onerror" in text  # it is there, as text
        assert printable(text, keep="\n") == text
        assert "\\x1b[2J" in text
    assert set(parsed(render_page([hostile])).tags) <= set(parsed(page).tags) | {"aside", "b"}


def test_a_page_of_names_that_are_not_characters_is_written(hostile: RunReport, tmp_path: Path) -> None:
    page = write_page([hostile], tmp_path / "page.html").read_bytes().decode()
    assert "\\udcff" in page


def test_formulas_in_names_stay_text(made_up_report: MakeReport) -> None:
    assert "$x^2$ 1" in render_page([made_up_report(name="$x^2$ {}")])


def test_doubtful_figures_get_a_box(hostile: RunReport, page: str) -> None:
    assert 'class="warning"' in render_page([hostile])
    assert 'class="warning"' not in page


def test_a_run_in_float_and_one_without_epochs_have_pages(made_up_report: MakeReport) -> None:
    report = made_up_report()
    in_float = replace(report, plan=None, trade_off=None)
    assert "What memory buys" not in render_page([in_float])
    planned = replace(report, epochs=(), moves=(), sensitivities={})
    assert "Learning curves" not in render_page([planned])


def test_several_runs_stand_side_by_side(made_up_report: MakeReport) -> None:
    text = render_page([made_up_report(run="runs/a"), made_up_report(run="runs/b", layers=8)])
    assert "2 runs side by side" in text
    assert text.count('class="strip"') == 2
    assert "runs/a: this run" in text
    with pytest.raises(HwbmpqError, match="1 to 12 runs, not 0"):
        render_page([])


def test_a_large_network_has_a_small_page(made_up_report: MakeReport) -> None:
    assert len(render_page([made_up_report(layers=200, epochs=30)]).encode()) < MOST_BYTES


def test_writing_leaves_the_old_page_if_it_fails(made_up_report: MakeReport, tmp_path: Path) -> None:
    path = write_page([made_up_report()], tmp_path / "report.html")
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    with pytest.raises(HwbmpqError, match="cannot be written"):
        write_page([made_up_report()], tmp_path / "missing" / "report.html")


def test_pages_are_the_same_each_time(made_up_report: MakeReport) -> None:
    report = made_up_report()
    assert render_page([report]) == render_page([report])


def test_widths_have_colours_from_dark_to_light() -> None:
    def lightness(colour: str) -> float:
        red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    colours = [of_width(bits) for bits in range(2, 17)]
    assert [lightness(colour) for colour in colours] == sorted(lightness(colour) for colour in colours)
    assert len(set(colours)) == 15
    assert text_on("#000000") == "#ffffff"
    assert text_on("#ffffff") == "#000000"
