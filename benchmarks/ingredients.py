"""What each part of training from given weights is worth: one changed at a time, everything else as by default.

Parts that are not in hwbmpq, since they gain nothing here, are added by hooks: an average of the weights over steps, statistics of
norms re-estimated at the end, weights drawn towards their codes against oscillation, weight decay by width, widths that step
down from 8 bits.

    HWBMPQ_DATA=data python benchmarks/ingredients.py

ResNet-20 on CIFAR-10 at 2.5 bits per weight and 8-bit activations (``mpic``, widths {2, 4, 8}), two epochs of 5,000 images.
Measured on the 1,000 images that ``trained.py`` compares epochs on, since parts are chosen by these figures: the divergence
from the float network's answers, which varies less than accuracy from run to run, and both networks' cross entropy.
"""

import argparse
import copy
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from trained import resnet20_settings, split_test_images

import hwbmpq
from hwbmpq.measure.kit_runner import machine_facts
from hwbmpq.quant import assign, quantized_layers
from hwbmpq.quant.functional import largest_code
from hwbmpq.training.optimizers import half_cosine

VARIANTS: dict[str, dict[str, Any]] = {
    "all of them": {},
    "probabilities compared, not scores": {"distill_loss": "kl"},
    "probabilities at temperature 4": {"distill_loss": "kl", "temperature": 4.0},
    "labels, no teacher": {"distill": 0.0},
    "labels and teacher, half and half": {"distill": 0.5},
    "norms learn statistics": {"norms": "train"},
    "SGD": {"optimizer": "sgd"},
    "batches of 32": {"batch_size": 32},
    "three times the rate": {"lr": 0.0015},
    "a third of the rate": {"lr": 0.00017},
    "the paper's quantizers": {"quantizer": "paper"},
    "gradients not clipped": {"clip_norm": 1e9},
    "weight decay 1e-4": {"weight_decay": 1e-4},
    "one scale per tensor": {"per_channel": False},
    "widths stay as calibrated": {"settle": 0.99},
    "calibrated best before": {"calibrate": "best"},
}
ADDED: dict[str, Callable[[], "Part"]] = {
    "average of weights": lambda: Average(),
    "statistics of norms at the end": lambda: Statistics(),
    "weights drawn to their codes": lambda: Damping(),
    "weight decay by width": lambda: DecayByWidth(),
    "widths step down from 8 bits": lambda: StepDown(),
}


class Part(hwbmpq.training.TrainingHook):
    """Something done beside training."""

    def on_start(self, trainer: Any) -> None:
        self.trainer, self.model = trainer, trainer.model
        self.layers = [layer for _, layer in quantized_layers(trainer.model)]

    @property
    def progress(self) -> float:
        settings, done = self.trainer.settings, self.trainer.progress
        steps = self.trainer.steps_per_epoch
        return (done.epoch * steps + done.batch) / (settings.epochs * steps)

    def finished(self) -> None:
        """Training has ended, and the network is about to be measured."""


class Average(Part):
    def on_start(self, trainer: Any) -> None:
        super().on_start(trainer)
        self.mean: list[Tensor] = []

    @torch.no_grad()
    def after_step(self, report: Any) -> None:
        own = list(self.model.parameters())
        if self.progress < 0.5:  # until widths are settled
            return
        if not self.mean:
            self.mean = [parameter.clone() for parameter in own]
        torch._foreach_lerp_(self.mean, own, 0.02)

    @torch.no_grad()
    def finished(self) -> None:
        for parameter, mean in zip(self.model.parameters(), self.mean, strict=True):
            parameter.copy_(mean)


class Statistics(Part):
    @torch.no_grad()
    def finished(self) -> None:
        norms = [m for m in self.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        self.model.eval()
        for norm in norms:
            norm.train().reset_running_stats()
            norm.momentum = None  # the plain mean
        for images, _ in islice(self.trainer._batches.epoch(0), 32):
            self.model(images)
        self.model.eval()


class Damping(Part):
    SHARE = 0.02

    @torch.no_grad()
    def after_step(self, report: Any) -> None:
        share = self.SHARE * (1 - half_cosine(self.progress))
        for layer in self.layers:
            codes, scale = layer.weight_quantizer.codes_and_scale(layer.weight)
            top = largest_code(layer.weight_bits, signed=True)
            layer.weight.sub_(share * ((layer.weight / scale).clamp(-top, top) - codes) * scale)


class DecayByWidth(Part):
    DECAY = 5e-4

    @torch.no_grad()
    def after_step(self, report: Any) -> None:
        for layer in self.layers:
            decay = self.DECAY * layer.weight_bits / 8
            layer.weight.mul_(1 - self.trainer.progress.learning_rate * decay)


class StepDown(Part):
    """8 bits in the first eighth of the run, at least 4 in the second, then the widths of the last decision."""

    def on_start(self, trainer: Any) -> None:
        super().on_start(trainer)
        self.least = 0
        self._narrow(8)

    def after_step(self, report: Any) -> None:
        self._narrow(8 if self.progress < 1 / 8 else 4 if self.progress < 1 / 4 else 0)

    def _narrow(self, least: int) -> None:
        if least == self.least:
            return
        self.least = least
        bits = self.trainer.allocator.bits
        wider = {n: replace(p, weight_bits=max(least, p.weight_bits)) for n, p in bits.items()}
        assign(self.model, wider)


def run(name: str, seed: int) -> dict[str, Any]:
    variant, part = VARIANTS.get(name, {}), ADDED.get(name, Part)()
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
    end = LastEpoch(float_network, data, part)
    hwbmpq.pipeline.compress(network, data, settings, hooks=[part, end])
    return {"seed": seed, "calibrated": end.calibrated, "trained": end.trained}


class LastEpoch(hwbmpq.training.TrainingHook):
    """Measures what training begins and ends with, even if the run goes back to the calibrated network."""

    def __init__(self, float_network: nn.Module, data: Any, part: Part) -> None:
        self._float, self._data, self._part = float_network, data, part
        self.calibrated: dict[str, float] = {}
        self.trained: dict[str, float] = {}

    def on_start(self, trainer: Any) -> None:
        self._model, self._epochs = trainer.model, trainer.settings.epochs
        self.calibrated = compared(self._model, self._float, self._data)

    def after_epoch(self, record: Any, decision: Any) -> None:
        if record["epoch"] < self._epochs:
            return
        self._part.finished()
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
        for name in args.variants or [*VARIANTS, *ADDED]:
            if any((one["changed"], one["seed"]) == (name, seed) for one in done):
                continue
            done.append({"changed": name, **run(name, seed)})
            print(done[-1], flush=True)
            facts = {
                "machine": machine_facts(),
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
            }
            args.output.write_text(json.dumps({**facts, "runs": done}, indent=1) + "\n")


if __name__ == "__main__":
    main()
