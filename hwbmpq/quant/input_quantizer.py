"""The activation quantizer of a layer's input, shared by all layers that read the same tensor."""

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hwbmpq.quant.functional import check_finite, fake_quantize_activation
from hwbmpq.quant.ranges import largest_code
from hwbmpq.values import FLOAT_BITS

OBSERVED_BITS = 16
"""At this width the observed range is used instead of PACT: there is nothing to gain by clipping."""

CALIBRATION_BATCHES = 8
_SAMPLE = 2**14  # elements looked at when α is initialised: enough to place a clipping point
_CLIP_CANDIDATES = 40
_SMALLEST_ALPHA = 1e-6


class InputQuantizer(nn.Module):
    """Clips a tensor at a trainable α and rounds it (PACT); at 16 bits, uses the range seen so far.

    α is initialised from the first batches: the clipping point with the least squared error at the
    width in use. It stays there for the network's own input, which no training moves: a gradient for it
    would cost the first layer a whole backward pass. Readers at the same width get the very same
    tensor, computed once.
    """

    alpha: nn.Parameter
    observed: Tensor

    def __init__(self, *, signed: bool, trainable: bool, name: str, like: Tensor) -> None:
        super().__init__()
        self.signed = signed
        self.trainable = trainable
        self.name = name
        self.alpha = nn.Parameter(torch.ones((), dtype=like.dtype, device=like.device))
        self.register_buffer("observed", torch.zeros((), dtype=like.dtype, device=like.device))
        self.batches_seen = 0
        self.calibrating = True
        self._last: _LastResult | None = None

    def forward(self, values: Tensor, bits: int) -> Tensor:
        if bits == FLOAT_BITS:
            return values
        if torch.compiler.is_compiling():
            return self._quantize(values, bits)  # the compiler merges equal computations itself
        if self._last is not None and (shared := self._last.get(values, bits)) is not None:
            return shared
        check_finite(values, self.name)
        quantized = self._quantize(values, bits)
        self._last = _LastResult(values, bits, quantized)
        return quantized

    def _quantize(self, values: Tensor, bits: int) -> Tensor:
        if bits == OBSERVED_BITS:
            return self._quantize_in_observed_range(values)
        if self.calibrating:
            self._calibrate(values.detach(), bits)
        return fake_quantize_activation(values, _positive(self.alpha), bits, signed=self.signed)

    def _quantize_in_observed_range(self, values: Tensor) -> Tensor:
        if (self.training or self.calibrating) and values.numel():
            self.observed.copy_(torch.maximum(self.observed, values.detach().abs().amax()))
        if self.calibrating:
            self._count_batch(values)
        return fake_quantize_activation(values, _positive(self.observed), OBSERVED_BITS, signed=self.signed)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _calibrate(self, values: Tensor, bits: int) -> None:
        """Move α to the mean of the best clipping points of the batches so far."""
        if not values.numel():
            return
        best = best_clip(values, bits, signed=self.signed)
        with torch.no_grad():
            self.alpha.add_((best - self.alpha) / (self.batches_seen + 1))
        self._count_batch(values)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _count_batch(self, values: Tensor) -> None:
        self.batches_seen += values.numel() > 0
        self.calibrating = self.batches_seen < CALIBRATION_BATCHES

    def set_widths(self, widths: Iterable[int]) -> None:
        """Train α only while a reader's width makes use of it: DDP wants a gradient for all that trains."""
        self.alpha.requires_grad_(self.trainable and any(bits < OBSERVED_BITS for bits in widths))

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.batches_seen)

    def set_extra_state(self, state: Tensor) -> None:
        self.batches_seen = int(state)
        self.calibrating = self.batches_seen < CALIBRATION_BATCHES

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        *others: Any,
    ) -> None:
        """As usual, except that a float checkpoint, which knows no quantizers, is complete without them."""
        missing: list[str] = []
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, *others)
        if any(key.startswith(prefix) for key in state_dict):
            missing_keys.extend(missing)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}  # weak references can be neither copied nor pickled

    def extra_repr(self) -> str:
        return f"signed={self.signed}"


class _LastResult:
    """The last quantized tensor, as long as somebody else keeps it alive."""

    def __init__(self, values: Tensor, bits: int, quantized: Tensor) -> None:
        self._key = (bits, values._version, torch.is_grad_enabled())
        self._values = weakref.ref(values)
        self._quantized = weakref.ref(quantized)

    def get(self, values: Tensor, bits: int) -> Tensor | None:
        same = self._values() is values and self._key == (bits, values._version, torch.is_grad_enabled())
        return self._quantized() if same else None


def _positive(alpha: Tensor) -> Tensor:
    """α kept above zero; its gradient passes, so that it can recover from a step too far."""
    return alpha + (alpha.detach().clamp_min(_SMALLEST_ALPHA) - alpha.detach())


def best_clip(values: Tensor, bits: int, *, signed: bool) -> Tensor:
    """The clipping point with the least squared quantization error on a sample of ``values``."""
    sample = values.flatten()
    sample = sample[:: max(1, sample.numel() // _SAMPLE)].float()
    if not signed:
        sample = sample.clamp_min(0)
    peak = values.abs().amax() if signed else values.amax()
    peak = peak.float().clamp_min(_SMALLEST_ALPHA)
    candidates = peak * torch.linspace(1 / _CLIP_CANDIDATES, 1, _CLIP_CANDIDATES, device=values.device)
    steps = largest_code(bits, signed=signed)
    unit = (sample / candidates[:, None]).clamp_(-1, 1)  # (candidates, sample)
    errors = (unit.mul_(steps).round_().mul_(candidates[:, None] / steps) - sample).square_().sum(1)
    return candidates[errors.argmin()].to(values.dtype)
