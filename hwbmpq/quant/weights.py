"""Weights that are quantized without a layer module around them: ``prepare`` makes each a ``QuantizedWeight``.

The module that holds such a parameter stays the same object, and so does the parameter, in ``named_parameters``,
state_dict and optimizers. Only reading the attribute, as forward passes do, gives the quantized weight. To change
the values from outside, take the parameter: ``dict(model.named_parameters())["embedding.weight"]``.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn

from hwbmpq.quant.layers import HELD_MARK, HasPrecision, MadeClass, QuantizedLayer, made_class
from hwbmpq.quant.quantizers import LoadsFloatCheckpoints, WeightQuantizer
from hwbmpq.values import FLOAT_BITS, Precision

HELD = "quantized_weights"
_SUFFIX = "_quantized"  # a parameter may be called "values", an entry of a ModuleDict may not


class QuantizedWeight(HasPrecision, LoadsFloatCheckpoints):
    """A layer of which only the weight is quantized."""

    added_entries = ("_extra_state",)
    may_compute_weight = False

    def __init__(self, *, layer_name: str, owner: nn.Module, entry: str, quantizer: WeightQuantizer) -> None:
        super().__init__()
        self.layer_name = layer_name
        self.entry = entry
        """The parameter's name in its module."""
        self.activation_bits = FLOAT_BITS
        self.weight_quantizer = quantizer
        self._owner = (owner,)  # in a tuple, or the owner would become a child of its own child

    @property
    def owner(self) -> nn.Module:
        """The module that holds the parameter."""
        return self._owner[0]

    @property
    def weight(self) -> nn.Parameter:
        """The parameter, in float."""
        return cast(nn.Parameter, self.owner._parameters[self.entry])

    @property
    def float_class(self) -> type[nn.Module]:
        return cast(MadeClass, self.owner).float_class

    def set_precision(self, precision: Precision) -> None:
        """Switch the width of the weight; what is multiplied with it stays in float whatever is asked for."""
        self.weight_quantizer.set_bits(precision.weight_bits)

    def forward(self, weight: Tensor) -> Tensor:
        """The weight as the network multiplies with it."""
        return self.weight_quantizer(weight)  # type: ignore[no-any-return]

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.weight_bits, FLOAT_BITS])

    def set_extra_state(self, state: Tensor) -> None:
        self.weight_quantizer.set_bits(state.tolist()[0])

    def extra_repr(self) -> str:
        return f"{self.entry}, weight_bits={self.weight_bits}"


class HoldsWeights(MadeClass):
    """Mixed into the class of a module that holds such weights: reading one gives it quantized."""

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        held = self._held(name)
        if held is None or value is None:
            return value
        quantized = held(value)
        if isinstance(self, QuantizedLayer) and quantized is not value:
            for tensor in (quantized, quantized._base):  # the base is what its views know
                if tensor is not None:
                    setattr(tensor, HELD_MARK, True)
        return quantized

    def _held(self, name: str) -> QuantizedWeight | None:
        modules = self.__dict__.get("_modules", {})
        return modules[HELD]._modules.get(name + _SUFFIX) if HELD in modules else None

    def __setattr__(self, name: str, value: Any) -> None:
        # torch.nn.DataParallel gives its copies of a module plain tensors instead of parameters.
        if "_is_replica" in self.__dict__ and isinstance(value, Tensor) and self._held(name) is not None:
            self._parameters[name] = cast(nn.Parameter, value)
        else:
            super().__setattr__(name, value)


class _HoldsGates(HoldsWeights):
    """Mixed into ``nn.RNN``, ``nn.GRU`` and ``nn.LSTM``, which keep a list of their parameters to compute with."""

    _flat_weights: list[Tensor | None]
    _flat_weights_names: list[str]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        parameters = self._flat_weights
        self._flat_weights = [getattr(self, name, None) for name in self._flat_weights_names]
        try:
            return super().forward(*args, **kwargs)
        finally:
            self._flat_weights = parameters

    def _init_flat_weights(self) -> None:
        """What torch calls when it may have replaced the parameters, after ``to(...)`` for example."""
        held, self._modules[HELD] = self._modules[HELD], nn.ModuleDict()
        super()._init_flat_weights()  # type: ignore[misc]
        self._modules[HELD] = held

    def _update_flat_weights(self) -> None:
        """Nothing has changed: the list holds the parameters, except in ``forward``."""


def hold_weight(layer_name: str, owner: nn.Module, entry: str, quantizer: WeightQuantizer) -> None:
    """Change ``owner`` in place: reading its parameter ``entry`` gives what ``quantizer`` makes of it."""
    if not isinstance(owner, HoldsWeights):
        mixin = _HoldsGates if isinstance(owner, nn.RNNBase) else HoldsWeights
        mixins = type(owner).__bases__[:-1] if isinstance(owner, MadeClass) else ()
        float_class = owner.float_class if isinstance(owner, MadeClass) else type(owner)
        owner.__class__ = made_class(mixin, *mixins, float_class)
        owner.add_module(HELD, nn.ModuleDict())
    weight = QuantizedWeight(layer_name=layer_name, owner=owner, entry=entry, quantizer=quantizer)
    cast(nn.ModuleDict, owner._modules[HELD])[entry + _SUFFIX] = weight.train(owner.training)


def can_hold(module: nn.Module) -> bool:
    """Containers run all modules in them, and scripted modules have no attributes that could be replaced."""
    return not isinstance(module, (nn.Sequential, nn.ModuleList, nn.ModuleDict, torch.jit.ScriptModule))


def find_weight(model: nn.Module, layer: str) -> tuple[nn.Module, str]:
    """The module that holds a layer's weight, and the weight's name there.

    A layer has the name of a module, or the path of a parameter.
    """
    if is_parameter(model, layer):
        owner, _, entry = layer.rpartition(".")
        return model.get_submodule(owner), entry
    return model.get_submodule(layer), "weight"


def is_parameter(model: nn.Module, layer: str) -> bool:
    """Whether a layer has the path of its parameter, not that of a module."""
    owner, _, entry = layer.rpartition(".")
    return entry in model.get_submodule(owner)._parameters


def weight_of(model: nn.Module, layer: str) -> Tensor:
    """A layer's weight in float: its parameter, or what a parametrization makes of others."""
    module, entry = find_weight(model, layer)
    found = module._parameters.get(entry)
    return cast(Tensor, getattr(module, entry) if found is None else found)


def join(path: str, entry: str) -> str:
    """The name of an entry of the module at ``path``, which is "" for the network itself."""
    return f"{path}.{entry}" if path else entry
