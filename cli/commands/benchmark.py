"""Time a run's network in ONNX Runtime beside float.

Time the network of a run in ONNX Runtime on this machine: in float; as hwbmpq export writes it; the same file with its
weights turned into floats once, when it is loaded; and in the form that runs on integer kernels (hwbmpq export
--runtime-compat int8, or int8-vnni where this processor has it). They take turns, so that ratios hold on a busy machine.

examples:
  hwbmpq benchmark runs/resnet18-jetson_nano
  hwbmpq benchmark runs/resnet20-mpic --batch 32 --threads 2 --json
"""

import argparse
import os
import platform
from dataclasses import asdict
from typing import Any

import hwbmpq
from hwbmpq.cli.console import escape
from hwbmpq.cli.options.common import add_count
from hwbmpq.cli.options.network import OpenedRun, add_run_options, open_run
from hwbmpq.cli.progress import progress
from hwbmpq.cli.render.export import print_budget, print_timings
from hwbmpq.cli.render.tables import OutputConsole, print_json, print_remarks
from hwbmpq.errors import HwbmpqError


def add_options(parser: argparse.ArgumentParser) -> None:
    add_count(parser, "--batch", 1, "images at a time")
    add_count(parser, "--threads", 1, "")
    add_count(parser, "--rounds", 50, "runs of each")
    add_run_options(parser)


def run(args: argparse.Namespace) -> None:
    args.device = "cpu"
    if args.threads > (os.cpu_count() or 1):
        raise HwbmpqError(f"--threads {args.threads}: this machine has {os.cpu_count()} cores")
    opened = open_run(args)
    predicted = _predicted_latency(opened)
    with progress("timing", args.rounds) as advance:
        timings = hwbmpq.export.deployment.benchmark(
            opened.network,
            opened.data,
            batch=args.batch,
            threads=args.threads,
            rounds=args.rounds,
            accumulates_int32=hwbmpq.measure.accumulates_int32_here(),
            on_round=advance,
        )
    if args.json:
        content = {
            "run": args.folder,
            "machine": platform.machine(),
            "threads": args.threads,
            "batch": args.batch,
            "timings": {
                name: {**asdict(timing), "images_per_second": timing.images_per_second}
                for name, timing in timings.items()
            },
        }
        print_json(content)
        return
    console = OutputConsole()
    console.print(escape(opened.data.inputs))
    print_remarks(console, opened.remarks)
    print_timings(console, timings, threads=args.threads)
    integers = timings.get(hwbmpq.export.deployment.INTEGER_FORM)
    if integers is None:
        remark = "no layer can run on integer kernels: none has weights and activations of 8 bits or fewer"
        print_remarks(console, [remark])
    elif args.batch == 1:
        print_budget(console, predicted, integers)


def _predicted_latency(opened: OpenedRun) -> dict[str, Any] | None:
    """What the run's plan says about latency, if its target was measured in ONNX Runtime."""
    profile = hwbmpq.load_profile(opened.settings.target)
    if not any("ONNX Runtime" in table.runtime for table in profile.tables.values()):
        return None
    costs = opened.folder.load_allocation().get("costs") or {}
    found: dict[str, Any] | None = costs.get("latency")
    return found
