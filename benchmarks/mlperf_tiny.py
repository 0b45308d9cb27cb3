"""Reference networks of MLPerf Tiny without training: accuracy at a size, from their float files (``pip install tflite``).

    HWBMPQ_DATA=data python benchmarks/mlperf_tiny.py

Image classification (IC02): calibrated on CIFAR-10's training images, measured on the first 2,000 test images, as the
reference figures are; ``flash`` is all that is stored. Keyword spotting (KWS): there are 500 of the official inputs and no
training data, so every fifth calibrates and the other 400 are measured. 8-bit activations. IC02: widths {2, 4, 8} and 8-bit
ends on ``mpic``; KWS: those, and on ``gap9_ne16`` 2 to 8 bits, the ends being free to be narrowed: the first layer has an
eighth of the weights.
"""

import argparse
import json
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tflite_network import TfliteNetwork, input_quantization
from torch.utils.data import DataLoader, TensorDataset

import hwbmpq
from hwbmpq.data.validation import subset
from hwbmpq.measure.kit_runner import machine_facts

_DEVICE = {"target": "mpic", "bits": (2, 4, 8), "activation_bits": 8, "epochs": 0}
_MORE_WIDTHS = {"target": "gap9_ne16", "bits": (2, 3, 4, 5, 6, 8), "ends": "free"}


@dataclass(frozen=True, kw_only=True)
class Row:
    network: str
    budget: dict[str, str]
    calibrate: str = "best"
    device: dict[str, Any] = field(default_factory=dict)


ROWS = {
    "IC02, 272 kB of flash, fast": Row(network="ic02", budget={"memory": "272kB"}, calibrate="fast"),
    "IC02, 272 kB of flash": Row(network="ic02", budget={"memory": "272kB"}),
    "KWS, 4 bits, fast": Row(network="kws", budget={"weight_memory": "4b/weight"}, calibrate="fast"),
    "KWS, 4 bits": Row(network="kws", budget={"weight_memory": "4b/weight"}),
    "KWS, 3 bits, fast": Row(network="kws", budget={"weight_memory": "3b/weight"}, calibrate="fast"),
    "KWS, 3 bits": Row(network="kws", budget={"weight_memory": "3b/weight"}),
    **{
        f"KWS, {bits} bits, ends free, 2 to 8 bits, {calibrate}": Row(
            network="kws",
            budget={"weight_memory": f"{bits}b/weight"},
            calibrate=calibrate,
            device=_MORE_WIDTHS,
        )
        for bits in (4, 3)
        for calibrate in ("fast", "best")
    },
}


def images(folder: Path) -> Any:
    data = hwbmpq.data.open_data(f"npz:{folder / 'cifar10.npz'}")
    # The network takes pixels from 0 to 255.
    data = data.sized((3, 32, 32), normalise=f"0/{1 / 255}", seed=0)
    return replace(data, test=subset(data.test, torch.arange(2_000)))


def speech(folder: Path) -> Any:
    content = np.load(folder / "mlperf_tiny/kws01_half.npz")
    scale, zero = input_quantization(folder / "mlperf_tiny/kws_int8.tflite")
    inputs = ((torch.from_numpy(content["x_test"]).float() - zero) * scale).permute(0, 3, 1, 2)
    labels = torch.from_numpy(content["y_test"]).long()
    calibrates = torch.arange(len(labels)) % 5 == 0
    parts = [
        DataLoader(TensorDataset(inputs[which], labels[which]), batch_size=50)
        for which in (calibrates, ~calibrates)
    ]
    return hwbmpq.data.from_loaders(*parts, classes=12)


def run(name: str, seed: int) -> dict[str, Any]:
    row, folder = ROWS[name], Path(os.environ["HWBMPQ_DATA"])
    network = TfliteNetwork(folder / f"mlperf_tiny/{row.network}_float32.tflite").eval()
    data = images(folder) if row.network == "ic02" else speech(folder)
    given = {"model": f"mlperf-tiny:{row.network}", "weights": "the float file", "data": "fake", "seed": seed}
    settings = hwbmpq.training.resolve_settings(
        {**_DEVICE, **row.device, **given, "budgets": row.budget, "calibrate": row.calibrate}
    )
    start = time.process_time()
    result = hwbmpq.pipeline.compress(network, data, settings)
    widths = result.decisions[-1].after
    weights = {layer.name: layer.parameters for layer in result.plan.layers}
    return {
        "row": name,
        "seed": seed,
        "accuracy": result.evaluation.value,
        "float": result.progress.float_accuracy,
        "samples": result.evaluation.images,
        "stored_bytes": int(result.plan.costs["memory"].total) // 8,
        "average_bits": sum(weights[n] * widths[n].weight_bits for n in weights) / sum(weights.values()),
        "widths": {layer: str(width) for layer, width in widths.items()},
        "cpu_seconds": round(time.process_time() - start, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", help="by default all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/mlperf_tiny.json"))
    args = parser.parse_args()
    done = json.loads(args.output.read_text())["runs"] if args.output.exists() else []
    for name in args.rows or ROWS:
        for seed in args.seeds:
            if any((one["row"], one["seed"]) == (name, seed) for one in done):
                continue
            done.append(run(name, seed))
            print({key: value for key, value in done[-1].items() if key != "widths"}, flush=True)
            facts = {
                "machine": machine_facts(),
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
            }
            args.output.write_text(json.dumps({**facts, "runs": done}, indent=1) + "\n")


if __name__ == "__main__":
    main()
