"""The activation quantizer of a layer's input, shared by all layers that read the same tensor."""

import weakref
from typing import Any

import torch
from torch import Tensor, distributed, nn

from hwbmpq.distributed import is_distributed
from hwbmpq.quant.functional import SMALLEST_ALPHA, check_finite, fake_quantize_activation, largest_code
from hwbmpq.quant.loading import LoadsFloatCheckpoints
from hwbmpq.values import FLOAT_BITS

OBSERVED_BITS = 16
"""At this width the observed range is used instead of PACT: there is nothing to gain by clipping."""

CALIBRATION_BATCHES = 8
_SAMPLE = 2**14  # elements looked at when α is initialised: enough to place a clipping point
_CLIP_CANDIDATES = 40


class _Calibration:
    """How far the initialisation has come; one object for a quantizer and its data-parallel replicas.

    Compiled code looks at the flags only: a counter would be compiled anew at each value.
    """

    def __init__(self) -> None:
        self.batches = 0  # that α is the mean of
        self.has_alpha = False
        self.has_range = False
        self.is_complete = False

    def count_batch(self) -> None:
        self.batches += 1
        self.has_alpha = True
        self.is_complete = self.batches >= CALIBRATION_BATCHES


class InputQuantizer(LoadsFloatCheckpoints):
    """Clips a tensor at a trainable α and rounds it (PACT); at 16 bits, uses the range seen in training.

    α is initialised from the first training batches: the clipping point with the least squared error at the
    width in use. It stays there for the network's own input, which no training moves: a gradient for it
    would cost the first layer a whole backward pass. In evaluation mode nothing is learned, except from
    the very first batch if there was no training. Readers at the same width get the very same tensor.
    """

    added_entries = ("alpha", "observed", "_extra_state")

    alpha: nn.Parameter
    observed: Tensor

    def __init__(self, *, signed: bool, trainable: bool, name: str, like: Tensor) -> None:
        super().__init__()
        self.signed = signed
        self.trainable = trainable
        self.name = name
        self.alpha = nn.Parameter(torch.ones((), dtype=like.dtype, device=like.device))
        self.register_buffer("observed", torch.zeros((), dtype=like.dtype, device=like.device))
        self.calibration = _Calibration()
        self._widths: dict[str, int] = {}
        self._last: _LastResult | None = None
        self._calibrated: _Data | None = None

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
        return fake_quantize_activation(values, self.alpha, bits, signed=self.signed)

    def _observe(self, values: Tensor) -> None:
        """Widen the range to the largest magnitude seen."""
        if values.numel():
            peak = values.abs().amax().to(self.observed.dtype)
            if self.training and is_distributed():
                distributed.all_reduce(peak, distributed.ReduceOp.MAX)  # or they would round differently
            self.observed.copy_(torch.maximum(self.observed, peak))
            self.calibration.has_range = True

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _calibrate(self, values: Tensor, bits: int) -> None:
        """Move α to the mean of the best clipping points of the batches so far."""
        seen_already = self._calibrated is not None and self._calibrated.is_of(values)
        if seen_already or _inside_backward():
            return  # another reader at another width; a recomputed forward pass
        self._calibrated = _Data(values)
        values = values.detach()
        best = best_clip(values, bits, signed=self.signed) if bool(values.any()) else None
        if self.training and is_distributed():
            best = _mean_over_ranks(best, self.alpha)
        self._observe(values)
        if best is None:
            return  # all zero: nothing to learn from
        with torch.no_grad():
            self.alpha.add_((best - self.alpha) / (self.calibration.batches + 1))
        self.calibration.count_batch()

    def set_width(self, reader: str, bits: int) -> None:
        """Note a reader's width. α trains only while one makes use of it: DDP wants a gradient for all that trains."""
        self._widths[reader] = bits
        is_used = any(width < OBSERVED_BITS for width in self._widths.values())
        self.alpha.requires_grad_(self.trainable and is_used)

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.calibration.batches, self.calibration.has_range])

    def set_extra_state(self, state: Tensor) -> None:
        batches, has_range = state.tolist()
        self.calibration = _Calibration()
        self.calibration.has_range = bool(has_range)
        for _ in range(batches):
            self.calibration.count_batch()

    def __getstate__(self) -> dict[str, Any]:
        """Weak references can be neither copied nor pickled."""
        return self.__dict__ | {"_last": None, "_calibrated": None}

    def extra_repr(self) -> str:
        return f"signed={self.signed}"


class _Data:
    """Which tensor it was, as long as somebody else keeps it alive."""

    def __init__(self, values: Tensor) -> None:
        self._values = weakref.ref(values)
        self._storage = values.data_ptr()

    def is_of(self, values: Tensor) -> bool:
        """Whether it was this very data."""
        return self._values() is not None and self._storage == values.data_ptr()


class _LastResult:
    """The last quantized tensor, as long as somebody else keeps it alive."""

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
    """The mean clipping point of the ranks that have one, so that all go on with the same α."""
    point = like.new_zeros(()) if best is None else best.to(like.dtype)
    total = torch.stack([point, like.new_tensor(float(best is not None))])
    distributed.all_reduce(total)
    return total[0] / total[1] if bool(total[1]) else None


def _inside_backward() -> bool:
    """Activation checkpointing runs the forward pass again during backward: it must see the same α."""
    return bool(torch._C._current_graph_task_id() != -1)


def best_clip(values: Tensor, bits: int, *, signed: bool) -> Tensor:
    """The clipping point with the least squared quantization error on a sample of ``values``."""
    sample = values.flatten()
    sample = sample[:: max(1, sample.numel() // _SAMPLE)].float()
    if not signed:
        sample = sample.clamp_min(0)
    peak = values.abs().amax() if signed else values.amax()
    peak = peak.float().clamp_min(SMALLEST_ALPHA)
    candidates = peak * torch.linspace(1 / _CLIP_CANDIDATES, 1, _CLIP_CANDIDATES, device=values.device)
    steps = largest_code(bits, signed=signed)
    unit = (sample / candidates[:, None]).clamp_(-1, 1)  # (candidates, sample)
    errors = (unit.mul_(steps).round_().mul_(candidates[:, None] / steps) - sample).square_().sum(1)
    return candidates[errors.argmin()].to(values.dtype)
