"""Quantization without training: clipping points and rounding that a few hundred images suffice for."""

from collections.abc import Iterable, Sequence

from torch import Tensor

Batches = Iterable[Tensor | Sequence[Tensor]]
"""Images, or tuples that begin with them; labels are not looked at."""
