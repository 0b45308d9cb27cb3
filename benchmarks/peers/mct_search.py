"""Sony MCT: activations with one layer lowered at a time, an integer program, greedy refinement."""

from collections.abc import Iterator, Sequence
from typing import Any

import model_compression_toolkit as mct
from found import Found, Meter, Searched
from model_compression_toolkit.target_platform_capabilities.tpc_models.imx500_tpc.v1_0 import tpc
from task import WIDTHS, accuracy, calibration_images, test_images, trained_network, weight_sizes


def search(budgets: Sequence[float], activation_bits: int | None) -> Searched:
    network, test = trained_network(), test_images()
    sizes, images = weight_sizes(network), calibration_images()[0]

    def representative() -> Iterator[list[Any]]:
        for batch in images.split(64):
            yield [batch.numpy()]

    results, costs = [], []
    for bits in budgets:
        meter = Meter()
        quantized, _ = mct.ptq.pytorch_post_training_quantization(
            network,
            representative,
            target_resource_utilization=mct.core.ResourceUtilization(
                weights_memory=bits * sum(sizes.values()) / 8
            ),
            core_config=mct.core.CoreConfig(
                mixed_precision_config=mct.core.MixedPrecisionQuantizationConfig()
            ),
            target_platform_capabilities=platform_of(WIDTHS, activation_bits),
        )
        costs.append(meter.read())
        found = [
            module.weights_quantizers["weight"].num_bits
            for module in quantized.modules()
            if "weight" in getattr(module, "weights_quantizers", {})
        ]
        widths = dict(zip(sizes, found, strict=True))  # norms are folded and names changed; the order stays
        results.append(Found(average_bits=bits, widths=widths, accuracy=accuracy(quantized, test)))
    return Searched(results=results, cost=costs[0])


def platform_of(widths: Sequence[int], activation_bits: int | None) -> Any:
    """The IMX500's with these weight widths; activations of 8 bits, or not quantized at all."""
    _, mixed, default = tpc.get_op_quantization_configs()
    edits = {} if activation_bits else {"enable_activation_quantization": False}
    default = default.clone_and_edit(**edits)
    by_width = {8: mixed[0], 4: mixed[1], 2: mixed[2]}
    chosen = [by_width[width].clone_and_edit(**edits) for width in sorted(widths, reverse=True)]
    return tpc.generate_tpc(
        default_config=default, base_config=chosen[0], mixed_precision_cfg_list=chosen, name="peers"
    )
