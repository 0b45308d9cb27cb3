"""The weights that enter the quantizers of a network, within reach of autograd."""

from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import Tensor, nn

from hwbmpq.errors import HwbmpqError
from hwbmpq.quant import quantized_layers
from hwbmpq.values import Layer


class WeightCapture:
    """Changes ``network`` in place: keeps each weight on its way into a quantizer as a leaf of the graph.

    That tensor, not the parameter, is what gets rounded: some layers (timm's ``StdConv2d``) compute it on
    the way. A leaf has a gradient even if the user froze the parameter. A layer that runs twice has a leaf
    for each run; two layers that hold one parameter have one each, for their own use of it.
    """

    def __init__(self, network: nn.Module, layers: Iterable[Layer]) -> None:
        self._network = network
        quantized = dict(quantized_layers(network))
        layers = list(layers)
        self.layers = {layer.name: quantized[layer.name] for layer in layers}
        self._input_shapes = {layer.name: layer.input_shape for layer in layers}
        self._leaves: dict[str, list[Tensor]] = {name: [] for name in self.layers}
        for name, layer in self.layers.items():
            layer.quantize_weight = self._tapped(name, layer.quantize_weight)  # type: ignore[method-assign, assignment]

    def _tapped(self, name: str, quantize: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def keep(weight: Tensor) -> Tensor:
            leaf = weight.detach().requires_grad_()
            self._leaves[name].append(leaf)
            return quantize(leaf)

        return keep

    def run(self, images: Tensor) -> tuple[object, dict[str, list[Tensor]]]:
        """What the network returns, and the leaves that went into it, one for each run of a layer."""
        for leaves in self._leaves.values():
            leaves.clear()
        output = self._network(images)
        silent = [name for name, leaves in self._leaves.items() if not leaves]
        if silent:
            raise HwbmpqError(
                f"layer {silent[0]!r} does not run on this data",
                hint="describe the network with an input that takes the same path as the data",
            )
        return output, {name: list(leaves) for name, leaves in self._leaves.items()}

    def weights_alone(self) -> dict[str, Tensor]:
        """The weight that enters each quantizer, found without data."""
        return {name: self._weight_alone(name) for name in self.layers}

    def _weight_alone(self, name: str) -> Tensor:
        """Run the layer by itself on zeros, without its hooks: they are the user's, who expects images."""
        layer, leaves = self.layers[name], self._leaves[name]
        leaves.clear()
        like = cast(Tensor, layer.weight)
        layer.forward(torch.zeros(self._input_shapes[name], dtype=like.dtype, device=like.device))
        return leaves[0].detach()
