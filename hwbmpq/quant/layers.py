"""Layers that quantize their weight and their input, and are otherwise what they were."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from hwbmpq.quant.functional import fake_quantize_weight
from hwbmpq.quant.input_quantizer import InputQuantizer
from hwbmpq.quant.loading import LoadsFloatCheckpoints
from hwbmpq.values import FLOAT_BITS, Precision

FROZEN = "frozen_weight"


class QuantizedLayer(LoadsFloatCheckpoints):
    """Mixed into a layer's class by ``quantized_class``; the layer object itself stays the same."""

    added_entries = ("_extra_state",)

    layer_name: str
    weight_bits: int
    activation_bits: int
    channel_axis: int | None
    input_quantizer: InputQuantizer
    weight_watch: Callable[[Tensor], None] | None = None
    """Shown the weight where the layer computes it on the way (timm's ``StdConv2d``); not copied, not pickled."""

    @property
    def precision(self) -> Precision:
        return Precision(weight_bits=self.weight_bits, activation_bits=self.activation_bits)

    def set_precision(self, precision: Precision) -> None:
        self.weight_bits, self.activation_bits = precision.weight_bits, precision.activation_bits
        self.input_quantizer.set_width(self.layer_name, precision.activation_bits)

    def freeze_weight(self, weight: Tensor) -> None:
        """From now on multiply with ``weight``, whatever the layer would compute from its parameters.

        For layers that compute their weight on the way, when only the result is known. Neither it nor what it would
        be computed from trains. It is a buffer, ``frozen_weight``, and quantized as the parameter would be.
        """
        self.register_buffer(FROZEN, weight.detach())
        self._train_weight(False)

    def _thaw_weight(self) -> None:
        del self._buffers[FROZEN]
        self._train_weight(True)

    def _train_weight(self, trains: bool) -> None:
        for name, parameter in self.named_parameters():
            if name != "bias" and not name.startswith("input_quantizer."):
                parameter.requires_grad_(trains)

    def quantize_weight(self, weight: Tensor) -> Tensor:
        """The weight as the layer multiplies with it."""
        frozen = self._buffers.get(FROZEN)
        weight = weight if frozen is None else frozen
        if self.weight_watch is not None and weight is not self.weight:
            self.weight_watch(weight)
        if self.weight_bits == FLOAT_BITS:
            return weight
        return fake_quantize_weight(
            weight, self.weight_bits, channel_axis=self.channel_axis, name=f"layer '{self.layer_name}'"
        )

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # named as in torch.nn
        return self.multiply(self.input_quantizer(input, self.activation_bits), *args, **kwargs)

    def multiply(self, values: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The layer's own forward, its product taken with the quantized weight.

        Serves any class, also one that pads or standardises on the way (timm's ``Conv2dSame`` and
        ``StdConv2d``); the plain classes below save the detour.
        """
        with _WeightSwap(self):
            return super().forward(values, *args, **kwargs)  # type: ignore[no-any-return]

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.weight_bits, self.activation_bits])

    def set_extra_state(self, state: Tensor) -> None:
        weight_bits, activation_bits = state.tolist()
        self.set_precision(Precision(weight_bits=weight_bits, activation_bits=activation_bits))

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *others: Any) -> None:
        """What is loaded decides whether the weight is frozen."""
        stored, is_frozen = state_dict.get(prefix + FROZEN), FROZEN in self._buffers
        if stored is not None and not is_frozen:
            self.freeze_weight(torch.empty_like(stored, device=self.weight.device))  # type: ignore[arg-type]
        elif (
            stored is None and is_frozen and any(prefix + name in state_dict for name in weight_entries(self))
        ):
            self._thaw_weight()
        super()._load_from_state_dict(state_dict, prefix, *others)

    def extra_repr(self) -> str:
        return (
            f"{super().extra_repr()}, weight_bits={self.weight_bits}, activation_bits={self.activation_bits}"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "weight_watch"}

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle by the float class's name: the quantized class is made on demand."""
        return _rebuild, (type(self).__bases__[1],), self.__getstate__()


def weight_entries(layer: nn.Module) -> list[str]:
    """Entries of a layer's state_dict that are its weight, or that parametrizations and the like make it from."""
    names = [*layer.state_dict()]
    return [
        name for name in names if name == "weight" or name.startswith(("weight_", "parametrizations.weight."))
    ]


class _WeightSwap(TorchFunctionMode):
    """While active, the product of a layer takes its weight quantized."""

    def __init__(self, layer: QuantizedLayer) -> None:
        super().__init__()
        self._layer = layer

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _PRODUCTS:
            if len(args) > 1:
                args = (args[0], self._swap(args[1]), *args[2:])
            else:
                kwargs["weight"] = self._swap(kwargs["weight"])
        return func(*args, **kwargs)

    def _swap(self, weight: Tensor) -> Tensor:
        """Quantize the layer's weight or what was computed from it, but no other parameter (an adapter's)."""
        is_foreign = isinstance(weight, nn.Parameter) and weight is not self._layer.weight
        return weight if is_foreign else self._layer.quantize_weight(weight)


_PRODUCTS = frozenset(
    {F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d, F.linear}
)


class _PlainConvolution(QuantizedLayer):
    bias: Tensor | None

    def multiply(self, values: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self._conv_forward(values, self.quantize_weight(self.weight), self.bias)  # type: ignore[no-any-return, operator, arg-type]


class _PlainLinear(QuantizedLayer):
    bias: Tensor | None

    def multiply(self, values: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return F.linear(values, self.quantize_weight(self.weight), self.bias)  # type: ignore[arg-type]


_PLAIN: Mapping[type[nn.Module], type[QuantizedLayer]] = {
    nn.Conv1d: _PlainConvolution,
    nn.Conv2d: _PlainConvolution,
    nn.Conv3d: _PlainConvolution,
    nn.Linear: _PlainLinear,
}


_MADE: dict[type[nn.Module], type[QuantizedLayer]] = {}


def quantized_class(float_class: type[nn.Module]) -> type[QuantizedLayer]:
    """The quantized sibling of a layer class, a subclass of it; always the same one."""
    if float_class not in _MADE:
        _MADE[float_class] = _make_class(float_class)
    return _MADE[float_class]


def _make_class(float_class: type[nn.Module]) -> type[QuantizedLayer]:
    mixin = _PLAIN.get(float_class, QuantizedLayer)
    return type(f"Quantized{float_class.__name__}", (mixin, float_class), {"__module__": __name__})


@contextmanager
def as_float(model: nn.Module) -> Iterator[None]:
    """Inside, the quantized layers of ``model`` are the float layers they were."""
    layers = [module for module in model.modules() if isinstance(module, QuantizedLayer)]
    classes = [type(layer) for layer in layers]
    for layer in layers:
        layer.__class__ = type(layer).__bases__[1]
    try:
        yield
    finally:
        for layer, quantized in zip(layers, classes, strict=True):
            layer.__class__ = quantized


def _rebuild(float_class: type[nn.Module]) -> QuantizedLayer:
    cls = quantized_class(float_class)
    return cls.__new__(cls)
