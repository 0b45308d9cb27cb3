"""From a measured device to a latency budget that holds, in one run: measure, validate on networks that were not measured,
compress within a budget, and time the result.

    python benchmarks/measured_latency.py [--rounds 40] [--json FILE]

Everything is done by the command line, as a person would type it. Takes about six minutes; leave the machine alone.
"""

import argparse
import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

from hwbmpq.cli.main import main as hwbmpq

MEASURED = ["timm:resnet18", "timm:mobilenetv2_100", "hwbmpq:vgg16"]
"""What `targets measure` takes by itself."""
UNSEEN = [
    "timm:resnet26",
    "timm:regnetx_004",
    "timm:efficientnet_lite0",
    "hwbmpq:resnet20",
    "torchvision:squeezenet1_1",
]
BUDGETS = [
    ("hwbmpq:resnet20", "4,8,16", "70%", "--epochs 4 --warmup-epochs 1 --interval-epochs 1"),
    (
        "timm:resnet18",
        "4,8,16",
        "60%",
        "--input 3x224x224 --epochs 0 --train-images 64 --test-images 32 --calibration-images 32",
    ),
]
"""Network, widths, share of the time at the widest of them, and how to train."""


def typed(*words: str) -> Any:
    """What a command prints as JSON."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = hwbmpq([*words, "--json"])
    assert code == 0, words
    return json.loads(out.getvalue())


def within_budget(
    profile: str, model: str, bits: str, budget: str, options: str, folder: str
) -> dict[str, Any]:
    words = ["--model", model, "--target", profile, "--bits", bits, "--budget", f"latency={budget}", "-q"]
    run = typed("compress", *words, *options.split(), "--run-dir", folder)
    timings = typed("benchmark", folder, "--rounds", "100")["timings"]
    latency = run["costs"]["latency"]
    return {
        "model": model,
        "options": options,
        "budget_ms": latency["budget"],
        "predicted_ms": latency["total"],
        "measured_ms": timings["int8 kernels"]["median_ms"],
        "is_met": timings["int8 kernels"]["median_ms"] <= latency["budget"],
        "widths": {layer["name"]: layer["precision"] for layer in run["layers"]},
        "timings": timings,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", default="40")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        profile = f"{folder}/this_machine.yaml"
        measured = typed(
            "targets", "measure", "this_machine", "--model", *MEASURED, "--rounds", args.rounds, "-o", folder
        )
        validated = typed("targets", "validate", profile, "--model", *UNSEEN)
        seen = typed("targets", "validate", profile, "--model", "timm:resnet18")
        budgets = [
            within_budget(profile, *asked, f"{folder}/{number}") for number, asked in enumerate(BUDGETS)
        ]
    result = {
        "measured": measured,
        "not_measured_networks": validated,
        "measured_network": seen,
        "budgets": budgets,
    }
    text = json.dumps(result, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
