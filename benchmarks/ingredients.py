"""What each part of training from given weights is worth: one changed at a time, everything else as by default.

    HWBMPQ_DATA=data python benchmarks/ingredients.py

ResNet-20 on CIFAR-10 at 2.5 bits per weight and 8-bit activations (``mpic``, widths {2, 4, 8}), two epochs of 5,000 images.
Measured on the 1,000 images that ``trained.py`` compares epochs on, since parts are chosen by these figures: the divergence
from the float network's answers, which varies less than accuracy from run to run, and both networks' cross entropy.
"""

import argparse
import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from trained import resnet20_settings, split_test_images

import hwbmpq
from hwbmpq.measure.kit_runner import machine_facts

VARIANTS: dict[str, dict[str, Any]] = {
    "all of them": {},
    "probabilities compared, not scores": {"distill_loss": "kl"},
    "labels, no teacher": {"distill": 0.0},
    "norms learn statistics": {"norms": "train"},
    "SGD": {"optimizer": "sgd"},
    "the paper's quantizers": {"quantizer": "paper"},
    "gradients not clipped": {"clip_norm": 1e9},
    "weight decay 1e-4": {"weight_decay": 1e-4},
    "one scale per tensor": {"per_channel": False},
    "widths stay as calibrated": {"settle": 0.99},
    "calibrated best before": {"calibrate": "best"},
}


def run(variant: dict[str, Any], seed: int) -> dict[str, Any]:
    given = {
        "target": "mpic",
        "bits": (2, 4, 8),
        "activation_bits": 8,
        "budgets": {"weight_memory": "2.5b/weight"},
        "epochs": 2,
        "train_images": 5_000,
        "seed": seed,
    }
    settings = resnet20_settings(**{**given, **variant})
    data = hwbmpq.data.open_data(settings.data).sized((3, 32, 32), train_limit=settings.train_images, seed=0)
    data = split_test_images(data)
    assert data.validation is not None
    data = replace(data, test=data.validation)  # the test images have no part in this
    network = hwbmpq.models.load_model(settings.model, num_classes=10, weights=settings.weights).network
    float_network = copy.deepcopy(network)
    end = LastEpoch(float_network, data)
    hwbmpq.pipeline.compress(network, data, settings, hooks=[end])
    return {"seed": seed, "calibrated": end.calibrated, "trained": end.trained}


class LastEpoch(hwbmpq.training.TrainingHook):
    """Measures what training begins and ends with, even if the run goes back to the calibrated network."""

    def __init__(self, float_network: nn.Module, data: Any) -> None:
        self._float, self._data = float_network, data
        self.calibrated: dict[str, float] = {}
        self.trained: dict[str, float] = {}

    def on_start(self, trainer: Any) -> None:
        self._model = trainer.model
        self.calibrated = compared(self._model, self._float, self._data)

    def after_epoch(self, record: Any, decision: Any) -> None:
        self.trained = compared(self._model, self._float, self._data)


@torch.no_grad()
def compared(network: nn.Module, float_network: nn.Module, data: Any) -> dict[str, float]:
    images, labels = next(iter(data.test.batches(len(data.test))))
    scores, wanted = network.eval()(images), float_network.eval()(images)
    return {
        "divergence": float(
            F.kl_div(scores.log_softmax(1), wanted.log_softmax(1), reduction="batchmean", log_target=True)
        ),
        "cross_entropy": float(F.cross_entropy(scores, labels)),
        "cross_entropy_float": float(F.cross_entropy(wanted, labels)),
        "accuracy": float((scores.argmax(1) == labels).float().mean()),
        "accuracy_float": float((wanted.argmax(1) == labels).float().mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("variants", nargs="*", metavar="NAME", help="by default all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/ingredients.json"))
    args = parser.parse_args()
    done = json.loads(args.output.read_text())["runs"] if args.output.exists() else []
    for seed in args.seeds:
        for name in args.variants or VARIANTS:
            if any((one["changed"], one["seed"]) == (name, seed) for one in done):
                continue
            done.append({"changed": name, **run(VARIANTS[name], seed)})
            print(done[-1], flush=True)
            facts = {
                "machine": machine_facts(),
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
            }
            args.output.write_text(json.dumps({**facts, "runs": done}, indent=1) + "\n")


if __name__ == "__main__":
    main()
