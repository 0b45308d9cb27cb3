"""Accuracy over a cost: every probe of a run, the network in float, and what was asked for."""

from matplotlib.figure import Figure

from hwbmpq.report import AccuracySearch, RunReport
from hwbmpq.report.html.plot_style import INK, Plot, Tooltips, colour_of, short
from hwbmpq.units import amount, counted, scale


def accuracy_plot(report: RunReport) -> Plot | None:
    """None for a run without probes; it stands where the expected benefit would, since it was measured."""
    search = report.accuracy
    if search is None or not search.probes:
        return None
    most = max(float(probe.costs[search.cost]) for probe in search.probes)
    unit, size = scale(most, search.unit)
    times = 100 if search.metric.is_share else 1

    def paint(figure: Figure, tips: Tooltips) -> None:
        axes = figure.subplots()
        for is_trained, label in ((False, "calibrated"), (True, "trained")):
            kind = [probe for probe in search.curve if probe.is_trained == is_trained]
            colour = colour_of(int(is_trained))
            x = [float(probe.costs[search.cost]) / size for probe in kind]
            if kind:
                axes.plot(x, [times * probe.value for probe in kind], "-", color=colour, label=label)
            for place, probe in zip(x, kind, strict=True):
                (mark,) = axes.plot(place, times * probe.value, "o", color=colour, markersize=7)
                tips.add(mark, search.line(probe))
        axes.axhline(times * search.in_float, color=INK, linestyle="--", linewidth=1.2, label="float")
        if search.least is not None:
            axes.axhline(times * search.least, color=INK, linestyle=":", linewidth=1.2, label="asked for")
        if search.budget is not None:
            axes.axvline(
                search.budget / size, color=colour_of(0), linestyle=":", linewidth=1.2, label="found"
            )
        axes.set_xlabel(f"{short(search.cost)} ({short(unit)})")
        axes.set_ylabel(
            f"validation {short(search.metric.name)}" + (" (%)" if search.metric.is_share else "")
        )
        axes.legend(fontsize=8, loc="lower right")

    return Plot.drawn(
        "frontier",
        4.6,
        paint,
        title=f"{search.metric.name.capitalize()} over {search.cost}",
        caption=_caption(search),
    )


def _caption(search: AccuracySearch) -> str:
    found = ""
    if search.budget is not None and search.reached is not None:
        verdict = "" if search.is_met else ", less than was asked for"
        found = (
            f" The run has {search.metric.text(search.reached)} at {search.cost} "
            f"{amount(search.budget, search.unit)}{verdict}."
        )
    probes = counted(len(search.probes), "probe")
    return f"{search.question[:1].upper()}{search.question[1:]}; {probes}.{found}"
