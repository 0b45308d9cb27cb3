"""Running a model over images without leaving a trace."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from hwbmpq.errors import HwbmpqError

Batches = Iterable[Tensor | Sequence[Tensor]]
"""Images, or tuples that begin with them: labels are not looked at."""


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Inside, ``model`` is in evaluation mode; afterwards every module is in the mode it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def images_of(model: nn.Module, batches: Batches) -> list[Tensor]:
    """The images of all batches, as the model takes them."""
    like = next((p for p in model.parameters() if p.is_floating_point()), None)
    found = []
    for number, batch in enumerate(batches):
        images = batch if isinstance(batch, Tensor) else batch[0]
        if not isinstance(images, Tensor):
            raise HwbmpqError(f"batch {number} holds no tensor of images")
        if like is not None:
            images = images.to(like.device, like.dtype if images.is_floating_point() else images.dtype)
        found.append(images)
    if not found:
        raise HwbmpqError("there are no images to calibrate on", hint="give at least one batch")
    return found
