"""Widths from anybody, judged by the same quantizers."""

from task import accuracy, calibration_images, test_images, trained_network

import hwbmpq
from hwbmpq.quant import assign, prepare
from hwbmpq.training.ptq.run import post_training
from hwbmpq.values import FLOAT_BITS, Precision


def judge(widths: dict[str, int]) -> dict[str, float]:
    """Accuracy with weights rounded to nearest, and with the rounding that makes up for errors.

    One scale per channel in both, activations in float.
    """
    images = calibration_images()[0].split(64)
    found = {}
    for name in ("nearest", "compensated"):
        network = trained_network()
        prepare(network, hwbmpq.describe(network, images[0][:1]), per_channel=True)
        assign(
            network,
            {
                layer: Precision(weight_bits=width, activation_bits=FLOAT_BITS)
                for layer, width in widths.items()
            },
        )
        if name == "compensated":
            post_training(network, images)
        found[name] = accuracy(network, test_images())
    return found
