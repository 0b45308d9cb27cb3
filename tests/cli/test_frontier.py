"""``hwbmpq frontier`` as a person types it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hwbmpq.cli.main import main

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.fixture
def frontier(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run_frontier(*arguments: str, code: int = 0) -> str:
        network = ("--model", "hwbmpq:resnet8", "--sensitivity", "uniform")
        assert main(["frontier", *network, *arguments]) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    return run_frontier


def test_table_and_plot_of_two_devices(frontier: Callable[..., str]) -> None:
    text = frontier("--target", "mpic", "--target", "gap9_ne16", "--cost", "latency")
    assert text.count("all non-dominated allocations") == 2
    assert "drawn in frontier.svg" in text
    picture = Path("frontier.svg").read_text()
    assert picture.startswith("<?xml")
    assert all(
        words in picture for words in ("gap9_ne16", "latency (ms)", "objective (linear), % of its range")
    )


def test_png_on_request(frontier: Callable[..., str]) -> None:
    frontier("--target", "mpic", "--plot", "memory.png")
    assert Path("memory.png").read_bytes().startswith(b"\x89PNG")


def test_two_costs_are_sampled_and_drawn(frontier: Callable[..., str]) -> None:
    text = frontier("--target", "mpic", "--cost", "memory", "--cost", "latency", "--samples", "4")
    assert "a sample of the non-dominated allocations" in text
    assert "memory (KiB)" in Path("frontier.svg").read_text()


def test_json_has_the_points_and_draws_nothing(frontier: Callable[..., str]) -> None:
    content = json.loads(frontier("--target", "mpic", "--json"))
    points = content["frontiers"]["mpic"]["points"]
    assert content["frontiers"]["mpic"]["is_exact"]
    assert points == sorted(points, key=lambda point: point["costs"]["memory"])
    assert points[0]["bits"]["layer1.0.conv1"] == "W2A8"
    assert points[-1]["bits"]["layer1.0.conv1"] == "W4A8"
    assert not Path("frontier.svg").exists()


def test_frontier_agrees_with_plan(frontier: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    points = json.loads(frontier("--target", "mpic", "--json"))["frontiers"]["mpic"]["points"]
    budget = 200_000  # bits
    best = max(point["objective"] for point in points if point["costs"]["memory"] <= budget)
    network = (
        "--model",
        "hwbmpq:resnet8",
        "--sensitivity",
        "uniform",
        "--target",
        "mpic",
        "--brief",
        "--json",
    )
    assert main(["plan", *network, "--budget", f"memory={budget}bit"]) == 0
    assert json.loads(capsys.readouterr().out)["allocation"]["objective"] == best


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--plot", "frontier.gif"), "has to end with .png, .svg, .pdf"),
        (("--plot", "nowhere/frontier.svg"), "no folder nowhere"),
        (("--samples", "1"), "at least 2"),
        (("--cost", "beauty"), "no cost named 'beauty'"),
    ],
    ids=["suffix", "folder", "samples", "cost"],
)
def test_a_wrong_option_is_one_sentence(
    frontier: Callable[..., str], arguments: tuple[str, ...], message: str
) -> None:
    assert message in frontier("--target", "mpic", *arguments, code=2)
