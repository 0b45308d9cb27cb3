"""``model.safetensors``: a quantized network whose weights take the bits that they were given."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hwbmpq.export.packed.container import write_container
from hwbmpq.export.packed.content import content_of
from hwbmpq.export.packed.size import SizeAccount, account_for

FILE_NAME = "model.safetensors"
"""In a run directory."""


def save_packed(
    model: nn.Module, path: str | Path, *, example_input: Tensor, origin: Mapping[str, Any] | None = None
) -> SizeAccount:
    """Write a quantized network, for ``hwbmpq.load`` to read; the file is whole or not there.

    ``origin`` is what the network came from: ``model`` (a specification such as ``timm:resnet18``), ``num_classes``,
    ``input_size``, ``target``, and whatever else JSON can hold. Without ``model``, loading needs the network as well.
    ``example_input`` is looked at only if layers compute their weights on the way. The network stays as it is.
    """
    content = content_of(model, example_input, origin or {})
    header = write_container(Path(path), content.entries, content.metadata.to_json())
    return account_for(model, content, header)
