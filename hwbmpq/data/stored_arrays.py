"""Arrays of any rank that are not images, as a data set stores them, and where their channels are."""

from dataclasses import dataclass, replace

from torch import Tensor

from hwbmpq.errors import HwbmpqError

Shape = tuple[int, ...]
LAYOUTS = ("auto", "channels-first", "channels-last")
_COLOURS = (1, 3)
"""Channels of pictures."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredArrays:
    """Arrays of one shape, all in memory."""

    values: Tensor
    """(N, …): float32, uint8 (pixels from 0 to 255) or int64 (token ids)."""

    @property
    def size(self) -> Shape:
        """Of one array, as it is stored."""
        return tuple(self.values.shape[1:])

    def __len__(self) -> int:
        return len(self.values)

    def only(self, indices: Tensor) -> "StoredArrays":
        return replace(self, values=self.values.index_select(0, indices))

    def arranged(self, input_size: Shape, layout: str, name: str) -> Tensor:
        """(N, *input_size): channels first, as torch has them."""
        moves = _moves_last_axis(self.size, input_size, layout, name)
        values = self.values.movedim(-1, 1) if moves else self.values
        return values.reshape(len(self), *input_size)


def own_size(shape: Shape, layout: str) -> Shape:
    """The input size of a network for arrays of this shape, if it does not say one itself."""
    return _channels_first(shape) if layout == "channels-last" or is_picture(shape) else shape


def is_picture(shape: Shape) -> bool:
    """Whether the axes can only be height, width and colours."""
    return len(shape) == 3 and shape[-1] in _COLOURS and shape[0] not in _COLOURS


def is_ambiguous(shape: Shape, layout: str) -> bool:
    """Whether channels may be first or last, as far as the shape tells."""
    return layout == "auto" and len(shape) > 1 and shape == _channels_first(shape)


def _channels_first(shape: Shape) -> Shape:
    return (*shape[-1:], *shape[:-1])


def _moves_last_axis(shape: Shape, wanted: Shape, layout: str, name: str) -> bool:
    """Whether the last axis has to come first to make ``wanted`` of ``shape``; an axis of one channel may come or go."""
    stored = {shape, (1, *shape), shape[1:] if shape[:1] == (1,) else shape}
    moved = {_channels_first(shape), shape[:-1] if shape[-1:] == (1,) else _channels_first(shape)}
    if layout != "channels-last" and wanted in stored:
        return False
    if layout != "channels-first" and wanted in moved:
        return True
    held, taken = ("x".join(map(str, size)) or "a single number" for size in (shape, wanted))
    said = "" if layout == "auto" else f" {layout}"
    raise HwbmpqError(
        f"{name}: arrays of {held}{said} do not fit a network that takes {taken}",
        hint="only images are resized: give the network the data's own size, or say where the channels are with --layout",
    )
