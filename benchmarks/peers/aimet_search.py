"""AIMET's AMP: accuracy with each quantizer group lowered, then a walk along the sorted list.

It takes an accuracy drop, not a budget. Without one it walks to the end, and every step is a point of its curve: a budget gets the
first point that fits it. Float activations are not among its candidates: 16 bits stand for them.
"""

import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from aimet_torch.batch_norm_fold import fold_all_batch_norms
from aimet_torch.common.amp.utils import AMPSearchAlgo
from aimet_torch.common.defs import CallbackFunc, QuantizationDataType
from aimet_torch.mixed_precision import choose_mixed_precision
from aimet_torch.model_preparer import prepare_model
from aimet_torch.quantsim import QuantizationSimModel
from found import Found, Meter, SearchCost, Searched
from task import WIDTHS, accuracy, calibration_images, test_images, trained_network, weight_sizes
from torch import nn

_IMAGES_A_LOOK = 250
"""Of the calibration images, for the accuracy of each group at each width."""


class _Walk:
    """Looks at every point of the walk, and keeps the first that fits each budget."""

    def __init__(self, budgets: Sequence[float], sizes: dict[str, int]) -> None:
        self.left = sorted(budgets, reverse=True)
        self.results: list[Found] = []
        self.sizes, self.test = sizes, test_images()

    def keep_what_fits(self, model: nn.Module) -> None:
        widths = {name: _width(model.get_submodule(name)) for name in self.sizes}
        memory = sum(self.sizes[name] * width for name, width in widths.items())
        while self.left and memory <= self.left[0] * sum(self.sizes.values()):
            found = accuracy(model, self.test)
            self.results.append(Found(average_bits=self.left.pop(0), widths=widths, accuracy=found))


def _width(module: nn.Module) -> int:
    quantizer = module.param_quantizers["weight"]  # type: ignore[index]
    return 32 if quantizer is None else int(quantizer.bitwidth)


def search(budgets: Sequence[float], activation_bits: int | None) -> Searched:
    network = trained_network()
    walk = _Walk(budgets, weight_sizes(network))
    images, labels = calibration_images()
    wide = activation_bits or 16
    meter = Meter()
    looks: list[SearchCost] = []

    def look(model: nn.Module, _: Any) -> float:
        found = accuracy(model, (images[:_IMAGES_A_LOOK], labels[:_IMAGES_A_LOOK]))
        looks.append(meter.read())
        return found

    def step(model: nn.Module, _: Any) -> float:
        if looks:  # before the first phase it looks at uniform widths, which are no part of its walk
            walk.keep_what_fits(model)
        return accuracy(model, (images[:_IMAGES_A_LOOK], labels[:_IMAGES_A_LOOK]))

    @torch.no_grad()
    def calibrate(model: nn.Module, _: Any = None) -> None:
        for batch in images.split(64):
            model(batch)

    prepared = prepare_model(network)
    fold_all_batch_norms(prepared, tuple(images[:1].shape))
    simulation = QuantizationSimModel(prepared, images[:1], default_output_bw=wide, default_param_bw=8)
    simulation.compute_encodings(calibrate)
    number = QuantizationDataType.int
    with tempfile.TemporaryDirectory() as folder:
        choose_mixed_precision(
            simulation,
            images[:1],
            [((wide, number), (width, number)) for width in sorted(WIDTHS, reverse=True)],
            CallbackFunc(look, None),
            CallbackFunc(step, None),
            None,
            folder,
            clean_start=True,
            forward_pass_callback=CallbackFunc(calibrate, None),
            use_all_amp_candidates=True,
            amp_search_algo=AMPSearchAlgo.BruteForce,
        )
    # The walk itself is not counted: its looks are at test images, which a user would not have.
    return Searched(results=walk.results, cost=looks[-1])
