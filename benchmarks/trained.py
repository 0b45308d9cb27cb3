"""Training from given weights: a trained ResNet-20 on CIFAR-10 under tight budgets, beside calibration alone.

    HWBMPQ_DATA=data python benchmarks/trained.py "2.5 bits, A8" --seeds 0 1 2

The weights were trained on all training images, so images that are held out of those cannot tell what training is good for:
the float network knows them too. Epochs, and calibration against training, are therefore compared on 1,000 of the test images,
which have no part in the figures; these are of the other 4,000, each network being measured once. Every run is kept in a folder
of its own and goes on where it was stopped; runs that the results hold are not repeated.
"""

import argparse
import json
import os
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import hwbmpq
from hwbmpq.data.validation import _image_split
from hwbmpq.measure.kit_runner import machine_facts
from hwbmpq.training import RunDirectory

VALIDATION = 1_000
_A8 = {"target": "mpic", "bits": (2, 4, 8), "activation_bits": 8}
_SAME = {**_A8, "activation_bits": "same"}
_BEST = {"calibrate": "best", "epochs": 10}
ROWS: dict[str, dict[str, Any]] = {
    "2.5 bits, A8": {**_A8, **_BEST, "budgets": {"weight_memory": "2.5b/weight"}},
    "2.5 bits, A8, widths as calibrated": {
        **_A8,
        **_BEST,
        "budgets": {"weight_memory": "2.5b/weight"},
        "settle": 0.99,
    },
    "weights <= 70 kB in all, A8": {**_A8, **_BEST, "budgets": {"weight_memory": "70kB"}},
    "weights <= 70 kB, inputs of layers <= 8 kB": {
        **_A8,
        **_BEST,
        "activation_bits": "apart",
        "budgets": {"weight_memory": "70kB", "largest_input": "8.192kB"},
    },
    "3 bits, W = A": {**_SAME, **_BEST, "budgets": {"weight_memory": "3b/weight"}},
    "3 bits, W = A, a device with all widths from 2 to 8": {
        **_BEST,
        "target": "generic",
        "bits": (2, 3, 4, 5, 6, 8),
        "activation_bits": "same",
        "pin": {"conv1": 8, "linear": 8},
        "budgets": {"weight_memory": "3b/weight"},
    },
    "W2A2, ends 8 bits": {**_SAME, **_BEST, "bits": (2,), "method": "hpq", "epochs": 30},
}


def split_test_images(data: Any) -> Any:
    """1,000 of the test images compare epochs; the others give the figures."""
    test, validation = _image_split(data.test, VALIDATION, seed=0)
    return replace(data, test=test, validation=validation)


def resnet20_settings(**given: Any) -> hwbmpq.training.RunSettings:
    """Of a run from the trained weights."""
    folder = Path(os.environ["HWBMPQ_DATA"])
    own = {
        "model": "hwbmpq:resnet20",
        "weights": str(folder.parent / "weights/cifar10_resnet20.pt"),
        "data": f"npz:{folder / 'cifar10.npz'}",
    }
    return hwbmpq.training.resolve_settings({**own, **given})


def run(row: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    folder = Path(os.environ["HWBMPQ_DATA"])
    given = {**ROWS[row], "seed": seed, **dict(text.split("=", 1) for text in args.set)}
    if args.epochs is not None:
        given["epochs"] = args.epochs
    settings = resnet20_settings(**given)
    data = hwbmpq.data.open_data(settings.data).sized((3, 32, 32), train_limit=settings.train_images, seed=0)
    data = split_test_images(data)
    directory = RunDirectory(args.runs / f"{row}-{seed}-{settings.epochs}".replace(" ", "_"))
    state = directory.load_checkpoint()[0] if directory.has_checkpoint else None
    directory.path.mkdir(parents=True, exist_ok=True)
    network = hwbmpq.models.load_model(settings.model, num_classes=10, weights=settings.weights).network
    teacher = None
    if settings.teacher is not None:
        weights = str(folder.parent / "weights/cifar10_resnet56.pt")
        teacher = hwbmpq.models.load_model(settings.teacher, num_classes=10, weights=weights).network
    start = time.monotonic()
    result = hwbmpq.pipeline.compress(
        network,
        data,
        settings,
        run=directory,
        state=state,
        hooks=[Progress(f"{row}, seed {seed}")],
        teacher=teacher,
    )
    progress = result.progress
    assert progress.float_accuracy is not None
    return {
        "row": row,
        "seed": seed,
        "epochs": settings.epochs,
        "float": progress.float_accuracy,
        "accuracy": result.evaluation.value,
        "difference": result.evaluation.value - progress.float_accuracy,
        "validation_calibrated": progress.calibrated,
        "validation_by_epoch": [record["validation_accuracy"] for record in progress.records],
        "keeps_calibrated": progress.keeps_calibrated,
        "decisions": len(result.decisions),
        "widths": {name: str(width) for name, width in result.decisions[-1].after.items()},
        "costs": dict(result.decisions[-1].allocation.costs),
        "stored": None if result.size is None else result.size.to_dict(),
        "seconds": time.monotonic() - start,
        "settings": settings.model_dump(mode="json", exclude={"weights", "data"}),
    }


class Progress(hwbmpq.training.TrainingHook):
    """Prints a line an epoch."""

    def __init__(self, title: str) -> None:
        self._title = title

    def on_start(self, trainer: Any) -> None:
        print(f"{self._title}: calibrated {trainer.progress.calibrated}", flush=True)

    def after_epoch(self, record: Any, decision: Any) -> None:
        moves = 0 if decision is None else len(decision.moves)
        print(
            f"{self._title}: epoch {record['epoch']}, loss {record['loss']:.3f}, validation "
            f"{record['validation_accuracy']:.4f}, {moves} moves",
            flush=True,
        )


def table(runs: list[dict[str, Any]]) -> None:
    for row in ROWS:
        found = [run["difference"] * 100 for run in runs if run["row"] == row]
        if found:
            spread = statistics.stdev(found) if len(found) > 1 else float("nan")
            print(
                f"{row:30} {statistics.mean(found):+.2f} ± {spread:.2f} points to float, {len(found)} seeds"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", help="by default all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int)
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="NAME=VALUE", help="other settings, to compare"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/trained"), help="folder for the runs")
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/trained.json"))
    args = parser.parse_args()
    for row in args.rows or ROWS:
        for seed in args.seeds:
            # Read again each time: another process may have added runs.
            done = json.loads(args.output.read_text())["runs"] if args.output.exists() else []
            if not any((one["row"], one["seed"]) == (row, seed) for one in done):
                found = run(row, seed, args)
                done = json.loads(args.output.read_text())["runs"] if args.output.exists() else []
                facts = {
                    "machine": machine_facts(),
                    "threads": torch.get_num_threads(),
                    "torch": torch.__version__,
                }
                args.output.write_text(json.dumps({**facts, "runs": [*done, found]}, indent=2) + "\n")
                print(f"{row}, seed {seed}: {found['accuracy']:.4f}, float {found['float']:.4f}", flush=True)
    table(json.loads(args.output.read_text())["runs"])


if __name__ == "__main__":
    main()
