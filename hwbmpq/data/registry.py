"""The forms in which images can be named."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hwbmpq.data.bundled import open_digits, open_fake
from hwbmpq.data.dataset import Size
from hwbmpq.data.folder import open_folder, open_tinyimagenet
from hwbmpq.data.npz import open_npz
from hwbmpq.data.source import DataParts, Request
from hwbmpq.data.torchvision_sets import open_cifar, open_fashion_mnist
from hwbmpq.errors import UnknownNameError


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """One way to name images."""

    form: str
    """As it is written; capitals stand for what the user fills in."""
    description: str
    open: Callable[[Request], DataParts]
    augment: str = "flip-crop"
    input_size: Size | None = None
    """What a network should take if nobody says; None if its own size will do."""

    @property
    def kind(self) -> str:
        return self.form.partition(":")[0]


_FORMS = (
    DataSource(
        form="digits",
        description="1,797 handwritten digits of 8x8 that come with scikit-learn; nothing to download",
        open=open_digits,
        augment="crop",
        input_size=(3, 32, 32),
    ),
    DataSource(
        form="cifar10", description="CIFAR-10, as cifar-10-batches-py below the data root", open=open_cifar
    ),
    DataSource(
        form="cifar100", description="CIFAR-100, as cifar-100-python below the data root", open=open_cifar
    ),
    DataSource(
        form="tinyimagenet",
        description="Tiny ImageNet (200 classes), as tiny-imagenet-200 below the data root",
        open=open_tinyimagenet,
    ),
    DataSource(
        form="fashion-mnist",
        description="Fashion-MNIST's IDX files below the data root, or Debian's dataset-fashion-mnist",
        open=open_fashion_mnist,
    ),
    DataSource(
        form="folder:PATH",
        description="image files: PATH/train/CLASS/IMAGE and PATH/val/CLASS/IMAGE (or test)",
        open=open_folder,
    ),
    DataSource(
        form="npz:PATH",
        description="arrays x_train, y_train, x_test, y_test in a file of numpy's, as Keras has them",
        open=open_npz,
    ),
    DataSource(form="fake", description="noise, for trying things out", open=open_fake, augment="none"),
)
DATA_SOURCES: Mapping[str, DataSource] = MappingProxyType({entry.kind: entry for entry in _FORMS})
"""By what stands before the colon."""


def parse_data(spec: str) -> tuple[DataSource, str]:
    """The form of a specification, and what follows its colon."""
    kind, colon, detail = spec.partition(":")
    form = DATA_SOURCES.get(kind)
    if form is None or (":" in form.form) != bool(detail) or (colon and not detail):
        known = [entry.form for entry in DATA_SOURCES.values()]
        raise UnknownNameError("data", spec, known, hint=f"use {', '.join(known)}")
    return form, detail
