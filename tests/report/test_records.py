"""What the figures of a run's records must be like."""

from typing import Any

import pytest

from hwbmpq.report import RunFacts
from hwbmpq.report.records import check_records

ERROR = {"name": "mean absolute error", "higher_is_better": False, "is_share": False}


NO_NETWORK = RunFacts(
    **dict.fromkeys(("title", "target", "device", "traced_by"), ""),
    **dict.fromkeys(("layers", "ties", "nodes", "edges", "unquantized", "caveats"), ()),
    tables={},
    limits={},
    sources={},
    parameters=0,
    macs=0,
)


def record(**figures: Any) -> dict[str, Any]:
    return {"epoch": 1, "bits": {}, **figures}


@pytest.mark.parametrize(
    "figures",
    [
        {"test_accuracy": 0.5, "test_loss": 1.0},  # of 0.1.0
        {"validation_accuracy": 0.5, "validation_loss": 1.0, "metric": {**ERROR, "name": "accuracy"}},
        {"validation_metric": -12.5, "validation_loss": -1.0, "metric": ERROR},
    ],
    ids=["0.1.0", "validation", "another metric"],
)
def test_figures_of_any_task_are_taken(figures: dict[str, Any]) -> None:
    check_records(
        NO_NETWORK, [record(**figures)], {k.replace("validation", "test"): v for k, v in figures.items()}
    )


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({}, "has no validation_accuracy"),
        ({"test_accuracy": 0.5, "metric": ERROR}, "has no validation_metric"),
        ({"test_accuracy": 2.0}, "test_accuracy"),
        ({"test_metric": float("nan"), "metric": ERROR}, "test_metric"),
        ({"test_accuracy": 0.5, "metric": {"name": 3}}, "metric.name"),
        ({"test_accuracy": 0.5, "metric": {**ERROR, "text": "x"}}, "metric.text"),
    ],
    ids=["none", "of another metric", "not a share", "not a number", "no metric", "too much"],
)
def test_figures_that_cannot_be_shown_are_refused(figures: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_records(NO_NETWORK, [record(**figures)], None)
