"""The sources of images by name; each is registered by the module that opens it."""

from collections.abc import Callable
from dataclasses import dataclass

from hwbmpq.data.dataset import Size
from hwbmpq.data.source import DataParts, Request
from hwbmpq.errors import UnknownNameError
from hwbmpq.registry import DATA_SOURCES as DATA_SOURCES


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


def register(
    form: str, description: str, *, augment: str = "flip-crop", input_size: Size | None = None
) -> Callable[[Callable[[Request], DataParts]], Callable[[Request], DataParts]]:
    """Function decorator: make a source of images known by what stands before the colon of ``form``."""

    def add(opener: Callable[[Request], DataParts]) -> Callable[[Request], DataParts]:
        source = DataSource(
            form=form, description=description, open=opener, augment=augment, input_size=input_size
        )
        DATA_SOURCES.add(source.kind, source)
        return opener

    return add


def parse_data(spec: str) -> tuple[DataSource, str]:
    """The source that a specification names, and what follows its colon."""
    kind, colon, detail = spec.partition(":")
    source = DATA_SOURCES.get(kind) if kind in DATA_SOURCES else None
    if source is None or (":" in source.form) != bool(detail) or (colon and not detail):
        known = [entry.form for entry in DATA_SOURCES.values()]
        raise UnknownNameError("data", spec, known, hint=f"use {', '.join(known)}")
    return source, detail
