"""Small images, and npz files of them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from hwbmpq.data import LabelledImages


def saved(folder: Path, **arrays: Any) -> str:
    np.savez(folder / "data.npz", **arrays)
    return f"npz:{folder / 'data.npz'}"


def pixels(*shape: int) -> Any:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def labels(count: int) -> Any:
    return np.arange(count) % 3


def all_pixels(images: LabelledImages) -> torch.Tensor:
    """(N, H, W, C), as they are stored."""
    return images.pixels.take(torch.arange(len(images)))
