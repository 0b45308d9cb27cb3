"""A total that lacks a figure is shown as "at least", in red, and its budget as not shown to hold."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from hwbmpq.cli.console import Console
from hwbmpq.cli.render.report import print_report
from hwbmpq.costs import Uncosted
from hwbmpq.report import Headline, RunReport
from hwbmpq.report.html.page import render_page
from hwbmpq.report.records import check_plan

MakeReport = Callable[..., RunReport]
LACKS = (Uncosted(name="gru", why="no kernel in float", macs=98, share=0.98),)
WHY = "1 part of the network (98 % of its MACs) has no figure on this device: gru"


@pytest.fixture
def report(made_up_report: MakeReport) -> RunReport:
    """One with a budget on latency that its lower bound is within."""
    found = made_up_report()
    assert found.plan is not None
    latency = replace(found.plan.costs["latency"], budget=1e9, uncosted=LACKS)
    first, *others = found.plan.layers
    lacking = replace(first, costs={name: cost for name, cost in first.costs.items() if name != "latency"})
    plan = replace(found.plan, costs={**found.plan.costs, "latency": latency}, layers=(lacking, *others))
    headlines = tuple(
        replace(one, budget=1e9, uncosted=LACKS) if one.name == "latency" else one for one in found.headlines
    )
    return replace(found, plan=plan, headlines=headlines)


def test_a_lower_bound_within_its_budget_is_not_met_and_not_missed() -> None:
    bound = Headline(name="latency", value=1.0, unit="ms", budget=2.0, uncosted=LACKS)
    assert bound.is_met is None
    assert bound.shown == "at least 1.000 ms"
    assert replace(bound, budget=0.5).is_met is False
    assert replace(bound, uncosted=()).is_met is True


def test_the_terminal_says_so_in_red(report: RunReport) -> None:
    console = Console(width=300, force_terminal=True, color_system="standard", highlight=False)
    with console.capture() as capture:
        print_report(console, report)
    shown = capture.get()
    red = "\x1b[31m"
    assert f"{red}latency: the budget is not shown to hold: {WHY}" in shown
    assert sum("at least 270.1 us" in line for line in shown.splitlines()) == 2  # headline and table
    assert all("\x1b[" in line for line in shown.splitlines() if "at least 270.1 us" in line)


def test_the_page_says_so_and_has_no_tick_on_it(report: RunReport) -> None:
    page = render_page([report])
    (card,) = [part for part in page.split('<div class="card') if "at least 270.1 us" in part]
    note = card.partition('<div class="note">')[2].partition("</div>")[0]
    assert note.startswith("? not shown to hold: budget ")
    assert note.endswith(WHY)
    assert "✓" not in note


def test_its_plan_passes_the_check_of_files(report: RunReport) -> None:
    assert report.plan is not None
    check_plan(report.plan)
    latency = replace(report.plan.costs["latency"], uncosted=())
    with pytest.raises(ValueError, match="without the costs of the others"):
        check_plan(replace(report.plan, costs={**report.plan.costs, "latency": latency}))


def test_json_says_so(report: RunReport) -> None:
    content = report.to_dict()
    (latency,) = [one for one in content["headlines"] if one["name"] == "latency"]
    assert (latency["is_lower_bound"], latency["is_met"]) == (True, None)
    cost = content["plan"]["costs"]["latency"]
    assert (cost["is_lower_bound"], cost["holds"], cost["uncosted"][0]["name"]) == (True, None, "gru")


def test_what_is_on_the_device_adds_up(made_up_report: MakeReport) -> None:
    lines = {line.label: line for line in made_up_report().storage}
    assert (lines["on the device"].planned_bytes, lines["on the device"].actual_bytes) == (900, 900)
    assert (lines["file"].planned_bytes, lines["file"].actual_bytes) == (1000, 1024)
    assert lines["file header"].actual_bytes == 124


def test_the_page_warns_of_bounds_and_estimates_beside_its_plots(report: RunReport) -> None:
    assert report.plan is not None
    energy = replace(report.plan.costs["energy"], estimated=("conv1 (scaled by MACs)",), estimated_share=0.12)
    plan = replace(report.plan, costs={**report.plan.costs, "energy": energy})
    page = render_page([replace(report, plan=plan)])
    care = page.partition("Read with care")[2].partition("</aside>")[0]
    assert f"latency is a lower bound, here and in the plots: {WHY}" in care
    assert "12% of energy rests on estimates: conv1 (scaled by MACs)" in care


def test_without_a_budget_the_page_speaks_of_none(report: RunReport) -> None:
    headlines = tuple(replace(one, budget=None) for one in report.headlines)
    assert "not shown to hold" not in render_page([replace(report, headlines=headlines)])
