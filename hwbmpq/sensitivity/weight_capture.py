"""The weights that enter the quantizers of a network.

Those, not the parameters, are what gets rounded: some layers (timm's ``StdConv2d``) compute them in the forward pass.
"""

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from hwbmpq.quant import quantized_layers
from hwbmpq.quant.layers import QuantizedLayer
from hwbmpq.quant.weight_quantizer import keep_weights
from hwbmpq.values import Layer


def capture_weights(network: nn.Module, layers: Iterable[Layer]) -> dict[str, list[Tensor]]:
    """Change ``network`` in place: weights on their way into a quantizer become leaves of autograd's graph.

    Returns, by layer, the list that each forward pass adds them to. A leaf has a gradient even if the user froze the
    parameter. A layer that runs twice adds a leaf for each run; two layers that hold one parameter add one each.
    """
    quantized = dict(quantized_layers(network))
    leaves: dict[str, list[Tensor]] = {layer.name: [] for layer in layers}
    for name, found in leaves.items():

        def keep(_: nn.Module, args: tuple[Tensor], found: list[Tensor] = found) -> tuple[Tensor]:
            found.append(args[0].detach().requires_grad_())
            return (found[-1],)

        quantized[name].weight_quantizer.register_forward_pre_hook(keep)
    return leaves


@torch.no_grad()
def weight_without_data(layer: QuantizedLayer, input_shape: tuple[int, ...]) -> Tensor:
    """The weight that enters the quantizer when the layer runs by itself, without hooks that expect images."""
    seen: list[Tensor] = []
    like = cast(Tensor, layer.weight)
    with keep_weights(layer.weight_quantizer, seen):
        layer.forward(torch.zeros(input_shape, dtype=like.dtype, device=like.device))
    return seen[0].detach()
