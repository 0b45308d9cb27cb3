"""Your own device: a profile by hand, then one by measuring this machine, and a plan for each.

    python examples/own_device.py

First the profile of an invented board is written, checked and planned with, under its memory. Then the layers of
the network are timed in ONNX Runtime on this machine, a few rounds only, which gives a profile with a table of
measured layers, and the network is planned under a latency budget. Takes about half a minute on a CPU.
"""

import tempfile
from pathlib import Path

import hwbmpq

MODEL = "hwbmpq:resnet8"
WIDTHS = ("W4A8", "W8A8", "W16A16")

BOARD = """\
schema: hwbmpq/profile/v1
name: acme_m4
title: Acme M4 board, which does not exist (a Cortex-M4 at 120 MHz)
class: mcu
sources:
  datasheet: {kind: vendor_doc, title: "made up for this example"}
precisions:
  src: [datasheet]
  weights: [int8, int4, int2]
  activations: [int8]
clock:
  core: {value: 120 MHz, kind: datasheet, src: [datasheet]}
compute:
  kind: assumed # no one has measured it yet, and reports will say so
  table: # multiply-accumulates per cycle
    - {op: conv2d, macs_per_cycle: 0.6}
    - {op: linear, macs_per_cycle: 0.5}
memory:
  - name: flash
    size: {value: 64 KiB, kind: datasheet, src: [datasheet]}
    holds: [weights]
    on_chip: true
cost_models:
  memory: {model: stored_memory}
  latency: {model: roofline}
budgets: # what holds unless one says otherwise
  memory: 28 KiB
"""


def plan(
    profile: hwbmpq.HardwareProfile,
    graph: hwbmpq.LayerGraph,
    scores: hwbmpq.Sensitivity,
    budgets: dict[str, str] | None = None,
) -> hwbmpq.Allocation:
    """Ask for widths within the budgets (None: the profile's own), and print them."""
    space = hwbmpq.pipeline.build_search_space(graph, profile, budgets)
    found = hwbmpq.pipeline.plan(space, scores, with_explanation=False).allocation
    print(f"{profile.title}: {', '.join(f'{cost} {text}' for cost, text in space.asked.items())}")
    for name, precision in found.bits.items():
        print(f"  {name:16} {precision}")
    return found


def by_hand(folder: Path) -> hwbmpq.HardwareProfile:
    """A profile is one YAML file; the check names line and column of whatever is wrong with it."""
    path = folder / "acme_m4.yaml"
    path.write_text(BOARD)
    return hwbmpq.hardware.check_profile(path)


def by_measuring(graph: hwbmpq.LayerGraph, folder: Path) -> hwbmpq.HardwareProfile:
    """What ``hwbmpq targets measure`` does; for real, take more rounds, and leave the machine alone meanwhile."""
    widths = hwbmpq.measure.parse_widths(WIDTHS)
    kernels = hwbmpq.measure.layer_kernels(
        [graph], widths, accumulates_int32=hwbmpq.measure.accumulates_int32_here()
    )
    results = hwbmpq.measure.measure_here(kernels, widths=widths, models=[MODEL], rounds=3)
    measurement = hwbmpq.measure.Measurement.of(results)
    return hwbmpq.measure.write_profile(measurement, "this_machine", folder=folder)


def main() -> tuple[hwbmpq.Allocation, hwbmpq.Allocation]:
    model = hwbmpq.models.load_model(MODEL, seed=0)
    graph = hwbmpq.describe(model.network, model.example_input())
    with tempfile.TemporaryDirectory() as name:
        board = by_hand(Path(name))
        here = by_measuring(graph, Path(name))

    costs = hwbmpq.costs.tabulate(graph, here)
    fastest, slowest = costs.smallest_and_largest("latency")
    budget = f"{fastest + 0.5 * (slowest - fastest):.4f}ms"

    choices = [hwbmpq.hardware.layer_candidates(graph, profile) for profile in (board, here)]
    images = hwbmpq.data.load_images("digits", input_size=model.input_size, count=64)
    scores = hwbmpq.pipeline.measure(model.network, graph, choices, images)
    return plan(board, graph, scores), plan(here, graph, scores, {"latency": budget})


if __name__ == "__main__":
    main()
