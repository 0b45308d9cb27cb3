"""The quantizers of weights and inputs.

``prepare`` chooses weight quantizers by name; each is a child of the layer whose weight it rounds. To see or replace a
weight, register ordinary torch hooks on it: a forward pre-hook gets the weight that enters (a parameter, or computed by
the layer), a forward hook gets what the layer multiplies with. An input quantizer is shared by all layers that read the
same tensor.
"""

import weakref
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, distributed, nn
from torch.utils.hooks import RemovableHandle

from hwbmpq.distributed import is_distributed
from hwbmpq.errors import HwbmpqError
from hwbmpq.quant.functional import (
    CodeRange,
    check_finite,
    fake_quantize_activation,
    input_codes,
    max_scale_codes,
    quantize_weight,
    straight_through,
)
from hwbmpq.quant.scales import best_clip, best_steps_below
from hwbmpq.registry import QUANTIZERS
from hwbmpq.values import FLOAT_BITS


class LoadsFloatCheckpoints(nn.Module):
    """A module that adds entries to the state_dict which a float checkpoint does not have."""

    added_entries: ClassVar[tuple[str, ...]]
    """Either all of them are in a checkpoint, or none."""

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        *others: Any,
    ) -> None:
        missing: list[str] = []
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, *others)
        added = [prefix + entry for entry in self.added_entries]
        if not any(key in state_dict for key in added):
            missing = [key for key in missing if key not in added]
        missing_keys.extend(missing)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


class WeightQuantizer(LoadsFloatCheckpoints):
    """Rounds the weight of one layer to ``bits``; at 32 bits it returns the weight itself.

    A subclass defines in ``codes_and_scale`` how a weight is stored; packing, ONNX and sizes use it. One that learns
    has parameters of its own, names them in ``added_entries`` and gives them a gradient in ``forward``;
    after ``set_bits`` it initialises them from the next weight it sees. ``parameter_groups`` finds the parameters.

    Hooks belong to this network only: they are neither copied nor pickled.
    """

    added_entries: ClassVar[tuple[str, ...]] = ()
    learns_inputs: ClassVar[bool] = False
    """Whether the clipping points of inputs are trained by LSQ's gradient, not by PACT's."""

    def __init__(self, *, channel_axis: int | None, name: str, like: Tensor) -> None:
        """``like`` is the layer's weight: its shape, dtype and device are those of what will be rounded."""
        super().__init__()
        self.bits = FLOAT_BITS
        self.channel_axis = channel_axis
        """The axis with a scale for each index; None for a single scale."""
        self.name = name

    @abstractmethod
    def codes_and_scale(self, weight: Tensor, bits: int | None = None) -> tuple[Tensor, Tensor]:
        """Integers (as floats) and the scale that they are multiplied with, at ``bits`` or the present width.

        The scale has the weight's number of axes, all of length 1 but ``channel_axis``. Half precision is computed in
        float32. The same weight always gives the same codes.
        """

    def set_bits(self, bits: int) -> None:
        """Switch the width."""
        self.bits = bits

    def take_scale(self, scale: Tensor) -> None:
        """Be told the scale that the weight was just rounded with. Quantizers that derive it from the weight ignore it."""

    def forward(self, weight: Tensor) -> Tensor:
        """The weight as the layer multiplies with it; the gradient passes straight through."""
        if self.bits == FLOAT_BITS:
            return weight
        with torch.no_grad():
            codes, scale = self._checked(weight, self.codes_and_scale(weight))
        return straight_through(weight, codes, scale, self.name)

    def rounding_error(self, weight: Tensor, bits: int) -> Tensor:
        """``W - Q(W)`` at a width."""
        if bits == FLOAT_BITS:
            return torch.zeros_like(weight)
        with torch.no_grad():
            found = self._checked(weight, self.codes_and_scale(weight, bits))
            return weight - straight_through(weight, *found, self.name)

    def _checked(self, weight: Tensor, found: object) -> tuple[Tensor, Tensor]:
        """What ``codes_and_scale`` returned, which may be a plug-in's."""
        expected = (
            f"codes of the weight's shape {tuple(weight.shape)} and a scale with as many axes, as tensors"
        )
        match found:
            case (Tensor() as codes, Tensor() as scale):
                shapes = f"shapes {tuple(codes.shape)} and {tuple(scale.shape)}"
                if codes.shape == weight.shape and scale.ndim == weight.ndim:
                    return codes, scale
            case _:
                shapes = type(found).__name__
        raise HwbmpqError(
            f"{self.name}: the weight quantizer {type(self).__name__} returned {shapes}; expected {expected}"
        )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {name: OrderedDict() for name in _HOOKS}

    def extra_repr(self) -> str:
        return f"bits={self.bits}, channel_axis={self.channel_axis}"


def keep_weights(quantizer: WeightQuantizer, weights: list[Tensor]) -> RemovableHandle:
    """Append the weights that enter a quantizer to ``weights``, until the hook is removed."""

    def keep(_: nn.Module, args: tuple[Tensor]) -> None:
        weights.append(args[0])

    return quantizer.register_forward_pre_hook(keep)


@QUANTIZERS.register("paper")
class PaperQuantizer(WeightQuantizer):
    """The scale of the largest magnitude; at 2 bits TWN's ternary weights."""

    def codes_and_scale(self, weight: Tensor, bits: int | None = None) -> tuple[Tensor, Tensor]:
        return quantize_weight(weight, bits or self.bits, channel_axis=self.channel_axis)


@QUANTIZERS.register("symmetric")
class SymmetricQuantizer(WeightQuantizer):
    """The scale of the largest magnitude at every width."""

    def codes_and_scale(self, weight: Tensor, bits: int | None = None) -> tuple[Tensor, Tensor]:
        return max_scale_codes(weight, bits or self.bits, channel_axis=self.channel_axis)


OBSERVED_BITS = 16
"""At this width the observed range is used instead of PACT: there is nothing to gain by clipping."""

CALIBRATION_BATCHES = 8
_RESTARTED = -1
"""Instead of a number of batches in a stored state: α is there, and will be placed anew."""


_UNSEEN = -1
"""Instead of a number of steps: the batch was all zero."""


class _Calibration:
    """How far initialisation has come; one object for a quantizer and its data-parallel replicas.

    Compiled code reads the flags only: a counter would trigger recompilation at each value.
    """

    def __init__(self) -> None:
        self.batches = 0  # that α is the mean of
        self.has_alpha = False
        self.has_range = False
        self.is_complete = False
        self.steps_below = 0

    def restart(self) -> None:
        """Place α anew by the next training batches; until then the present one is used."""
        self.batches, self.is_complete = 0, False

    def count_batch(self) -> None:
        self.batches += 1
        self.has_alpha = True
        self.is_complete = self.batches >= CALIBRATION_BATCHES


class InputQuantizer(LoadsFloatCheckpoints):
    """Clips a tensor at a trainable α and rounds it (PACT, or LSQ if it ``learns_step``); at 16 bits, uses the range
    seen in training.

    If it ``learns_step``, signed values that are mostly positive get fewer codes below zero than above.

    α is initialised from the first training batches: the clipping point with the least squared error at the
    width in use. For the network's own input it stays there, since training does not change that input and
    the gradient would cost the first layer a whole backward pass. In evaluation mode nothing is learned,
    except from the first batch if there was no training. Readers at the same width get the same tensor.
    """

    added_entries = ("alpha", "observed", "_extra_state")

    alpha: nn.Parameter
    observed: Tensor

    def __init__(
        self, *, signed: bool, trainable: bool, name: str, like: Tensor, learns_step: bool = False
    ) -> None:
        super().__init__()
        self.signed = signed
        self.learns_step = learns_step
        self.trainable = trainable
        self.name = name
        self.alpha = nn.Parameter(torch.ones((), dtype=like.dtype, device=like.device))
        self.register_buffer("observed", torch.zeros((), dtype=like.dtype, device=like.device))
        self.calibration = _Calibration()
        self._widths: dict[str, int] = {}
        self._last: _LastResult | None = None
        self._calibrated: tuple[weakref.ref[Tensor], int] | None = None

    def forward(self, values: Tensor, bits: int) -> Tensor:
        if bits == FLOAT_BITS:
            return values
        if torch.compiler.is_compiling() or values.is_inference():
            return self._quantize(values, bits)  # the compiler merges equal computations itself
        if self._last is not None and (shared := self._last.get(self, values, bits)) is not None:
            return shared
        check_finite(values, self.name)
        quantized = self._quantize(values, bits)
        self._last = _LastResult(self, values, bits, quantized)
        return quantized

    def _quantize(self, values: Tensor, bits: int) -> Tensor:
        known = self.calibration
        if bits == OBSERVED_BITS:
            if self.training or not known.has_range:
                self._observe(values.detach())
            return fake_quantize_activation(values, self.observed, bits, signed=self.signed)
        if not known.is_complete and (self.training or not known.has_alpha):
            self._calibrate(values, bits)
        return fake_quantize_activation(
            values,
            self.alpha,
            bits,
            signed=self.signed,
            learns_step=self.learns_step,
            codes=self.codes_at(bits),
        )

    @property
    def steps_below(self) -> int:
        """Of 255 steps, those below zero; 0: half of them, or none if unsigned."""
        return self.calibration.steps_below

    def codes_at(self, bits: int) -> CodeRange:
        """The smallest and the largest code at a width; α is the value of the largest."""
        below = 0 if bits == OBSERVED_BITS else self.steps_below
        return input_codes(bits, signed=self.signed, below=below)

    def _observe(self, values: Tensor) -> None:
        """Widen the range to the largest magnitude seen."""
        if values.numel():
            peak = values.abs().amax().to(self.observed.dtype)
            if self.training and is_distributed():
                distributed.all_reduce(peak, distributed.ReduceOp.MAX)  # or ranks would round differently
            self.observed.copy_(torch.maximum(self.observed, peak))
            self.calibration.has_range = True

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _calibrate(self, values: Tensor, bits: int) -> None:
        """Move α to the mean of the best clipping points of the batches so far."""
        last = self._calibrated
        if last is not None and last[0]() is not None and last[1] == values.data_ptr():
            return  # another reader, at another width, has calibrated on this very data
        if torch._C._current_graph_task_id() != -1:
            return  # inside backward: activation checkpointing runs the forward pass again, with the same α
        self._calibrated = weakref.ref(values), values.data_ptr()
        values = values.detach()
        has_values = bool(values.any())
        if self.learns_step and self.signed and not self.calibration.batches:
            self._place_zero(values if has_values else None, bits)
        best = best_clip(values, bits, signed=self.signed, below=self.steps_below) if has_values else None
        if self.training and is_distributed():
            best = _mean_over_ranks(best, self.alpha)
        self._observe(values)
        if best is None:
            return  # all zero: nothing to learn from
        with torch.no_grad():
            self.alpha.add_((best - self.alpha) / (self.calibration.batches + 1))
        self.calibration.count_batch()

    def _place_zero(self, values: Tensor | None, bits: int) -> None:
        """Choose how many codes are below zero, by the first batch that is not all zero on every rank."""
        below = _UNSEEN if values is None else best_steps_below(values, bits)
        if self.training and is_distributed():
            found = torch.tensor(below, device=self.alpha.device)
            distributed.all_reduce(found, distributed.ReduceOp.MAX)  # or ranks would round differently
            below = int(found)
        if below != _UNSEEN:
            self.calibration.steps_below = below

    def set_width(self, reader: str, bits: int) -> None:
        """Note a reader's width. α trains only while a reader uses it: DDP expects a gradient for every trainable parameter."""
        is_new = self._widths.get(reader, bits) != bits
        self._widths[reader] = bits
        if is_new and self.learns_step and bits < OBSERVED_BITS:
            # A clipping point that suits 4 bits is too wide for 2: start again from the next batches.
            self.calibration.restart()
        is_used = any(width < OBSERVED_BITS for width in self._widths.values())
        self.alpha.requires_grad_(self.trainable and is_used)

    def get_extra_state(self) -> Tensor:
        known = self.calibration
        batches = _RESTARTED if known.has_alpha and not known.batches else known.batches
        lopsided = [self.steps_below] if self.steps_below else []
        return torch.tensor([batches, known.has_range, *lopsided])

    def set_extra_state(self, state: Tensor) -> None:
        batches, has_range, *lopsided = state.tolist()
        self.calibration = _Calibration()
        self.calibration.steps_below = lopsided[0] if lopsided else 0
        self.calibration.has_range = bool(has_range)
        self.calibration.has_alpha = batches == _RESTARTED
        for _ in range(batches):
            self.calibration.count_batch()

    def __getstate__(self) -> dict[str, Any]:
        """Weak references can be neither copied nor pickled."""
        return self.__dict__ | {"_last": None, "_calibrated": None}

    def extra_repr(self) -> str:
        return f"signed={self.signed}"


class _LastResult:
    """The last quantized tensor, as long as something else keeps it alive."""

    def __init__(self, quantizer: InputQuantizer, values: Tensor, bits: int, quantized: Tensor) -> None:
        self._key = self._key_of(quantizer, values, bits)
        self._values = weakref.ref(values)
        self._quantized = weakref.ref(quantized)

    @staticmethod
    def _key_of(quantizer: InputQuantizer, values: Tensor, bits: int) -> tuple[object, ...]:
        versions = (values._version, quantizer.alpha._version, quantizer.observed._version)
        return (bits, versions, torch.is_grad_enabled())

    def get(self, quantizer: InputQuantizer, values: Tensor, bits: int) -> Tensor | None:
        same = self._values() is values and self._key == self._key_of(quantizer, values, bits)
        return self._quantized() if same else None


def _mean_over_ranks(best: Tensor | None, like: Tensor) -> Tensor | None:
    """The mean clipping point of the ranks that have one, so that all continue with the same α."""
    point = like.new_zeros(()) if best is None else best.to(like.dtype)
    total = torch.stack([point, like.new_tensor(float(best is not None))])
    distributed.all_reduce(total)
    return total[0] / total[1] if bool(total[1]) else None
