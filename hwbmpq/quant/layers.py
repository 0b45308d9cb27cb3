"""Layers that quantize their weight and their input, and are otherwise unchanged."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from hwbmpq.quant.quantizers import InputQuantizer, LoadsFloatCheckpoints, WeightQuantizer
from hwbmpq.values import FLOAT_BITS, Precision

FROZEN = "frozen_weight"
HELD_MARK = "hwbmpq_held"
"""An attribute of tensors that another quantizer of the same module has made."""


class MadeClass(nn.Module):
    """Mixed into the class of a module that stays the same object; the mixed class is made on demand."""

    @property
    def float_class(self) -> type[nn.Module]:
        """What the module was before."""
        return type(self).__bases__[-1]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle by the float class's name."""
        state = self.__getstate__()  # type: ignore[no-untyped-call]
        return _rebuild, (self.float_class, *type(self).__bases__[:-1]), state


class HasPrecision(nn.Module):
    """What a quantized layer and a quantized weight without one have in common."""

    activation_bits: int
    weight_quantizer: WeightQuantizer
    undecided: tuple[Precision, str] | None = None
    """During an allocator's warm-up: the widths of the warm-up, and what to know about them."""

    @property
    def weight_bits(self) -> int:
        return self.weight_quantizer.bits

    @property
    def channel_axis(self) -> int | None:
        return self.weight_quantizer.channel_axis

    @property
    def precision(self) -> Precision:
        return Precision(weight_bits=self.weight_bits, activation_bits=self.activation_bits)


class QuantizedLayer(MadeClass, HasPrecision, LoadsFloatCheckpoints):
    """Mixed into a layer's class by ``quantized_class``; the layer object itself stays the same."""

    added_entries = ("_extra_state",)

    layer_name: str
    input_quantizer: InputQuantizer
    """Shared by all layers that read one tensor."""
    on_input: Callable[[Tensor, Tensor], Tensor] | None = None
    """Called with the input and what it was rounded to; what it returns is multiplied with. For measurements."""

    def set_precision(self, precision: Precision) -> None:
        self.weight_quantizer.set_bits(precision.weight_bits)
        self.activation_bits = precision.activation_bits
        self.input_quantizer.set_width(self.layer_name, precision.activation_bits)

    @property
    def may_compute_weight(self) -> bool:
        """Whether it may multiply with something other than its parameter; torch's own classes never do."""
        is_torchs = self.float_class.__module__.startswith("torch.nn.modules.")
        return FROZEN in self._buffers or not (is_torchs and "weight" in self._parameters)

    def freeze_weight(self, weight: Tensor) -> None:
        """From now on multiply with ``weight``, whatever the layer would compute from its parameters.

        For layers that compute their weight in the forward pass, when only the result is known. Neither the frozen weight
        nor the parameters behind it train. It is a buffer, ``frozen_weight``, quantized as the parameter would be.
        """
        self.register_buffer(FROZEN, weight.detach())
        self._train_weight(False)

    def _train_weight(self, trains: bool) -> None:
        for name, parameter in self.named_parameters():
            if name.partition(".")[0] not in (
                "bias",
                "input_quantizer",
                "weight_quantizer",
                "quantized_weights",
            ):
                parameter.requires_grad_(trains)

    def quantize_weight(self, weight: Tensor) -> Tensor:
        """The weight as the layer multiplies with it."""
        frozen = self._buffers.get(FROZEN)
        return self.weight_quantizer(weight if frozen is None else frozen)  # type: ignore[no-any-return]

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # named as in torch.nn
        values = self.input_quantizer(input, self.activation_bits)
        if not torch.compiler.is_compiling() and self.on_input is not None:
            values = self.on_input(input, values)
        return self.multiply(values, *args, **kwargs)

    def multiply(self, values: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The layer's own forward, its product taken with the quantized weight.

        Works for any class, also one that pads or standardises first (timm's ``Conv2dSame`` and
        ``StdConv2d``); the plain classes below call the product directly.
        """
        with _WeightSwap(self):
            return super().forward(values, *args, **kwargs)  # type: ignore[no-any-return]

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.weight_bits, self.activation_bits])

    def set_extra_state(self, state: Tensor) -> None:
        weight_bits, activation_bits = state.tolist()
        self.set_precision(Precision(weight_bits=weight_bits, activation_bits=activation_bits))

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *others: Any) -> None:
        """Freeze or unfreeze the weight as the loaded entries require."""
        stored, is_frozen = state_dict.get(prefix + FROZEN), FROZEN in self._buffers
        if stored is not None and not is_frozen:
            self.freeze_weight(torch.empty_like(stored, device=self.weight.device))  # type: ignore[arg-type]
        elif (
            stored is None and is_frozen and any(prefix + name in state_dict for name in weight_entries(self))
        ):
            del self._buffers[FROZEN]
            self._train_weight(True)
        super()._load_from_state_dict(state_dict, prefix, *others)

    def extra_repr(self) -> str:
        return (
            f"{super().extra_repr()}, weight_bits={self.weight_bits}, activation_bits={self.activation_bits}"
        )


def weight_entries(module: nn.Module, entry: str = "weight") -> list[str]:
    """Entries of a module's state_dict that are a weight, or that parametrizations and the like make it from."""
    if entry in module._parameters:
        return [entry]
    names = (name for name in module.state_dict() if not name.startswith("weight_quantizer."))
    return [
        name
        for name in names
        if name == entry or name.startswith((f"{entry}_", f"parametrizations.{entry}."))
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
        source = weight if weight._base is None else weight._base
        is_parameter = isinstance(source, nn.Parameter) and source is not self._layer.weight
        return weight if is_parameter or hasattr(source, HELD_MARK) else self._layer.quantize_weight(weight)


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


_MADE: dict[tuple[type[nn.Module], ...], type[MadeClass]] = {}


def made_class(*bases: type[nn.Module]) -> type[MadeClass]:
    """The subclass of mixins and, last, a float class; always the same one."""
    if bases not in _MADE:
        _MADE[bases] = type(f"Quantized{bases[-1].__name__}", bases, {"__module__": __name__})
    return _MADE[bases]


def quantized_class(float_class: type[nn.Module]) -> type[QuantizedLayer]:
    """The quantized subclass of a layer class; always the same one."""
    return made_class(_PLAIN.get(float_class, QuantizedLayer), float_class)  # type: ignore[return-value]


def as_float(model: nn.Module) -> AbstractContextManager[None]:
    """Inside, the quantized layers of ``model`` are the float layers they were."""
    modules = [module for module in model.modules() if isinstance(module, MadeClass)]
    return _temporarily("__class__", {module: module.float_class for module in modules})


def _rebuild(float_class: type[nn.Module], *mixins: type[nn.Module]) -> nn.Module:
    cls = made_class(*mixins, float_class) if mixins else quantized_class(float_class)
    return cls.__new__(cls)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Inside, ``model`` is in evaluation mode; afterwards every module is back in its own mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def float_weights(layers: Iterable[Any]) -> AbstractContextManager[None]:
    """Inside, the weights of ``layers`` are not rounded; their quantizers are still called."""
    return _temporarily("bits", {layer.weight_quantizer: FLOAT_BITS for layer in layers})


def float_inputs(layers: Iterable[nn.Module]) -> AbstractContextManager[None]:
    """Inside, the inputs of ``layers`` are not rounded, and no input quantizer learns from them."""
    return _temporarily("activation_bits", dict.fromkeys(layers, FLOAT_BITS))


@contextmanager
def _temporarily(attribute: str, values: Mapping[nn.Module, object]) -> Iterator[None]:
    before = {module: getattr(module, attribute) for module in values}
    for module, value in values.items():
        setattr(module, attribute, value)
    try:
        yield
    finally:
        for module, value in before.items():
            setattr(module, attribute, value)
