"""NVIDIA ModelOpt's AutoQuantize: squared products of output gradients and output errors, an integer program."""

import copy
from collections.abc import Sequence
from typing import Any

import modelopt.torch.quantization as mtq
from found import Found, Meter, Searched
from task import WIDTHS, accuracy, calibration_images, test_images, trained_network, weight_sizes
from torch.nn.functional import cross_entropy

_NOT_QUANTIZED = 16
"""What ModelOpt counts for a layer that it leaves alone, which is always a choice."""


def search(budgets: Sequence[float], activation_bits: int | None) -> Searched:
    network, test = trained_network(), test_images()
    images, labels = calibration_images()
    loader = list(zip(images.split(64), labels.split(64), strict=True))
    results, costs = [], []
    for bits in budgets:
        meter = Meter()
        quantized, _ = mtq.auto_quantize(
            copy.deepcopy(network),
            constraints={"effective_bits": bits},
            quantization_formats=[modelopt_config(width, activation_bits) for width in WIDTHS],
            data_loader=loader,
            forward_step=lambda model, batch: model(batch[0]),
            loss_func=lambda output, batch: cross_entropy(output, batch[1]),
            num_calib_steps=len(loader),
            num_score_steps=len(loader),
        )
        costs.append(meter.read())
        widths = {
            name: quantizer.num_bits if quantizer.is_enabled else _NOT_QUANTIZED
            for name in weight_sizes(network)
            for quantizer in [quantized.get_submodule(name).weight_quantizer]
        }
        results.append(Found(average_bits=bits, widths=widths, accuracy=accuracy(quantized, test)))
    return Searched(results=results, cost=costs[0])


def modelopt_config(weight_bits: int, activation_bits: int | None) -> dict[str, Any]:
    inputs: dict[str, Any] = {"quantizer_name": "*input_quantizer"}
    if activation_bits is None:
        inputs["enable"] = False
    else:
        inputs["cfg"] = {"num_bits": activation_bits, "axis": None}
    weights = {"quantizer_name": "*weight_quantizer", "cfg": {"num_bits": weight_bits, "axis": 0}}
    return {"quant_cfg": [weights, inputs], "algorithm": "max"}
