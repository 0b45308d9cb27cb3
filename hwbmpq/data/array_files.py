"""Arrays in files of their own: ``.npy``, one for each sample."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from hwbmpq.data.contents import Samples as Values
from hwbmpq.data.contents import recognise
from hwbmpq.data.dataset import StoredPart
from hwbmpq.data.numpy_files import read_array
from hwbmpq.data.registry import DataParts, Request, parts_in_memory
from hwbmpq.errors import HwbmpqError

ARRAY_FILE = ".npy"
Samples = list[tuple[str, int]]
"""Paths and labels."""


def array_parts(request: Request, train: Samples, test: Samples | None, remarks: Sequence[str]) -> DataParts:
    """All arrays in memory; they must have one shape and one type."""
    found = [(_read(part), part) for part in (train, test) if part is not None]
    places = {str(Path(part[0][0]).parent.parent): values for values, part in found}
    contents = recognise(places, layout=request.layout)
    parts = [
        StoredPart(images=contents.stored(values), labels=torch.tensor([label for _, label in part]))
        for values, part in found
    ]
    return parts_in_memory(request, parts[0], parts[1] if test else None, (*contents.remarks, *remarks))


def _read(samples: Samples) -> Values:
    arrays = [read_array(path, hint="save it with np.save") for path, _ in samples]
    first = arrays[0]
    for array, (path, _) in zip(arrays, samples, strict=True):
        if (array.shape, array.dtype) != (first.shape, first.dtype):
            raise HwbmpqError(
                f"{path}: {array.dtype} of shape {array.shape}, but {samples[0][0]} holds {first.dtype} of "
                f"shape {first.shape}",
                hint="give all samples one shape and one type",
            )
    return np.stack(arrays)
