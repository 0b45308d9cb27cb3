"""Labelled arrays of any rank that are not images: features, signals, token ids."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hwbmpq.data.images import LabelledImages


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledArrays(LabelledImages):
    """Arrays as a network takes them; what would be pixels are values (N, *input_size)."""

    def normalised(self, pixels: Tensor) -> Tensor:
        """Float32, or int64 as it is if there is no mean to subtract."""
        if not self.mean:
            return pixels
        values = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels.float()
        axes = (-1, *(1 for _ in self.input_size[1:]))
        return (values - torch.tensor(self.mean).view(axes)) / torch.tensor(self.std).view(axes)

    @property
    def inputs(self) -> str:
        dtype = self.pixels.take(torch.tensor([0])).dtype
        if not self.mean:
            return "integers as they are (int64); --normalise 0/1 makes floats of them"
        if not self.normalisation.is_identity:
            return f"arrays normalised with {self.normalisation.described()}; --normalise none feeds them as they are"
        what = "bytes as 0 to 1" if dtype == torch.uint8 else "arrays as they are"
        return f"{what}, not normalised; --normalise data or MEAN/STD changes that"
