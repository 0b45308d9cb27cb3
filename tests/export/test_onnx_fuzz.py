"""Damaged and hostile ONNX files: one clear error, bounded memory, and nothing read or written elsewhere."""

import random
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from hwbmpq.errors import HwbmpqError
from hwbmpq.export import OnnxNetwork

Change = Callable[[onnx.ModelProto, random.Random], object]
MEBIBYTES = 1024  # of what the system counts in KiB


@pytest.fixture(scope="module")
def good(exported: Callable[..., Any]) -> bytes:
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    build = lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.Flatten())  # noqa: E731
    content: bytes = exported(build, images, widths={"2": (2, 4)}).graph.content
    return content


def run(content: bytes, folder: Path) -> None:
    path = folder / "model.onnx"
    path.write_bytes(content)
    OnnxNetwork(path, threads=1)(np.zeros((1, 3, 8, 8), np.float32))


def test_the_file_itself_runs(good: bytes, tmp_path: Path) -> None:
    run(good, tmp_path)
    assert OnnxNetwork(good).has_checksum


def test_every_truncation_is_noticed(good: bytes, tmp_path: Path) -> None:
    for length in range(0, len(good), 7):
        with pytest.raises(HwbmpqError, match=r"ONNX Runtime cannot load|damaged"):
            run(good[:length], tmp_path)


def test_every_flipped_byte_is_noticed_or_takes_the_checksum_away(good: bytes, tmp_path: Path) -> None:
    """What is left then is a file of somebody else's, and said to be one."""
    draw = random.Random(0)
    unsealed = 0
    for place in range(len(good)):
        broken = bytearray(good)
        broken[place] ^= 1 << draw.randrange(8)
        try:
            network = OnnxNetwork(bytes(broken), threads=1)
        except HwbmpqError:
            continue
        assert not network.has_checksum
        unsealed += 1
    assert unsealed <= len("hwbmpq.checksum") + 2  # the checksum's name, and what stands before its value


def huge(model: onnx.ModelProto, draw: random.Random) -> None:
    tensor = draw.choice(model.graph.initializer)
    tensor.dims[:] = [2**40]


def negative(model: onnx.ModelProto, draw: random.Random) -> None:
    tensor = draw.choice([tensor for tensor in model.graph.initializer if tensor.dims])
    tensor.dims[0] = -5


def short(model: onnx.ModelProto, draw: random.Random) -> None:
    tensor = draw.choice([tensor for tensor in model.graph.initializer if len(tensor.raw_data) > 1])
    tensor.raw_data = tensor.raw_data[: len(tensor.raw_data) // 2]


def elsewhere(model: onnx.ModelProto, draw: random.Random) -> None:
    tensor = draw.choice(model.graph.initializer)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=draw.choice(["../secret", "/etc/passwd", "secret"]))


def unknown_operator(model: onnx.ModelProto, draw: random.Random) -> None:
    draw.choice(model.graph.node).op_type = "Nothing"


def unknown_input(model: onnx.ModelProto, draw: random.Random) -> None:
    draw.choice(model.graph.node).input[0] = "nothing"


def unknown_type(model: onnx.ModelProto, draw: random.Random) -> None:
    draw.choice(model.graph.initializer).data_type = 99


HOSTILE: dict[str, Change] = {
    change.__name__: change
    for change in (huge, negative, short, elsewhere, unknown_operator, unknown_input, unknown_type)
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_file_without_checksum_says_is_not_believed(
    name: str, seed: int, good: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = onnx.load_from_string(good)
    del model.metadata_props[:]
    HOSTILE[name](model, random.Random(seed))
    (tmp_path / "secret").write_bytes(bytes(10_000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(HwbmpqError, match=r"ONNX Runtime (cannot load .*model\.onnx|failed)"):
        run(model.SerializeToString(), tmp_path)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 256 * MEBIBYTES
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "secret"]
    assert capfd.readouterr() == ("", "")  # the error says it all


def test_random_bytes(tmp_path: Path) -> None:
    for seed in range(50):
        with pytest.raises(HwbmpqError, match="ONNX Runtime cannot load"):
            run(random.Random(seed).randbytes(1 + 37 * seed), tmp_path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "model.onnx").open("wb") as file:
        file.truncate(2**31)  # takes no room on the disk
    with pytest.raises(HwbmpqError, match="it has 2147483648 bytes, more than 2147483647"):
        OnnxNetwork(tmp_path / "model.onnx")
