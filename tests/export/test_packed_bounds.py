"""Packed files that ask for memory or time: refused by what they hold, before anything is built on their word."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hwbmpq
from hwbmpq.errors import ModelLoadError
from hwbmpq.export import PackedFileError
from hwbmpq.export.packed import load
from hwbmpq.export.packed.container import write_container
from hwbmpq.graph.operations import WEIGHTED_MODULES
from hwbmpq.models import load_model
from hwbmpq.models.bounded import bytes_to_build

LIMITED = """
import resource, sys, time, torch, hwbmpq, hwbmpq.export.packed.load
from hwbmpq.data.torchvision_import import import_timm
import_timm()
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (256 << 20),) * 2)
for path in sys.argv[1:]:
    start = time.process_time()
    try:
        hwbmpq.load(path)
    except hwbmpq.export.PackedFileError as error:
        assert time.process_time() - start < 5, time.process_time() - start
        print(error)
"""
QUANTIZER = {"name": "q", "signed": True, "trainable": False, "batches": 0, "has_range": False}


def metadata(**entries: object) -> str:
    content = {
        "schema": "hwbmpq/packed/v1",
        "hwbmpq": "1",
        "layers": [],
        "quantizers": [QUANTIZER],
        **entries,
    }
    return json.dumps(content, separators=(",", ":"))


def weightless(spec: str, path: Path, **settings: object) -> Path:
    """A file that describes every layer of a network, and holds everything but their weights."""
    model = load_model(spec, device="meta", num_classes=10, seed=0).network
    modules = {name: module for name, module in model.named_modules() if isinstance(module, WEIGHTED_MODULES)}
    layers = [
        {"name": name, "shape": list(module.weight.shape), "quantizer": 0, **settings}
        for name, module in modules.items()
    ]
    weights = {f"{name}.weight" for name in modules}
    tensors = {
        name: torch.zeros(value.shape, dtype=torch.float16 if value.is_floating_point() else value.dtype)
        for name, value in model.state_dict().items()
        if name not in weights
    }
    tensors["hwbmpq:inputs"] = torch.ones(1, 2)
    write_container(path, tensors, metadata(origin={"model": spec, "num_classes": 10}, layers=layers))
    return path


def run_limited(*paths: Path) -> list[str]:
    """What hwbmpq.load says, with 256 MiB to spare and five seconds for each file."""
    found = subprocess.run([sys.executable, "-c", LIMITED, *map(str, paths)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return found.stdout.splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
def test_a_network_whose_weights_are_not_in_the_file_is_not_built(tmp_path: Path) -> None:
    """25 KiB that describe a network of half a gigabyte."""
    widths = {"weight_bits": 32, "activation_bits": 32, "is_computed": True, "is_packed": False}
    path = weightless("torchvision:vgg16", tmp_path / "m.safetensors", **widths)
    assert path.stat().st_size < 40_000
    (message,) = run_limited(path)
    assert "a weight that is computed has to be packed" in message


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
def test_headers_of_millions_of_values_are_not_read(tmp_path: Path) -> None:
    lists = metadata(origin={"x": 0}).replace("0", "[" + "[]," * 5_000_000 + "[]]", 1)
    layer = {"shape": [1], "weight_bits": 2, "activation_bits": 2, "quantizer": 0}
    layers = metadata(layers=[{"name": f"{number:x}", **layer} for number in range(120_000)])
    tensors: dict[str, dict[str, Tensor]] = {
        lists: {},
        layers: {},
        metadata(): {f"{number:x}": torch.zeros(0) for number in range(120_000)},
    }
    paths = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hwbmpq.export.packed.container._MOST_VALUES", 10**9)
        for number, (text, content) in enumerate(tensors.items()):
            paths.append(tmp_path / f"{number}.safetensors")
            write_container(paths[-1], content, text)
    messages = run_limited(*paths)
    assert len(messages) == 3
    assert all("it has more than 400000 values" in message for message in messages)


def test_such_a_header_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(hwbmpq.errors.HwbmpqError, match="more than 400000 values"):
        write_container(tmp_path / "m", {}, "[" + "1," * 400_000 + "1]")


def test_an_empty_tensor_does_not_vouch_for_classes(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    tensors = {"fc.bias": torch.zeros(10**9, 0), "hwbmpq:inputs": torch.ones(0, 2)}
    origin = {"model": "hwbmpq:resnet8", "num_classes": 10**9}
    write_container(path, tensors, metadata(origin=origin, quantizers=[]))
    with pytest.raises(PackedFileError, match="no tensor has 1000000000 classes"):
        hwbmpq.load(path)


def test_what_cannot_be_built_without_memory_is_built_within_what_the_file_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some networks look at their initial values, and fail on the meta device."""
    path = tmp_path / "m.safetensors"
    tensors = {"any": torch.zeros(10), "hwbmpq:inputs": torch.ones(0, 2)}
    origin = {"model": "torchvision:vgg16", "num_classes": 10}
    write_container(path, tensors, metadata(origin=origin, quantizers=[]))

    def without_meta(spec: str, *, device: str, **options: object) -> object:
        if device == "meta":
            raise ModelLoadError("it looks at values")
        return load_model(spec, device=device, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(load, "load_model", without_meta)
    with pytest.raises(PackedFileError, match="it would take more than 64 MiB to build"):
        hwbmpq.load(path)


@pytest.mark.parametrize(
    "spec", ["hwbmpq:resnet8", "torchvision:vgg11", "timm:resnet18", "timm:swin_tiny_patch4_window7_224"]
)
def test_the_bound_is_enough_for_the_network_that_was_saved(spec: str) -> None:
    values = sum(
        value.numel() for value in load_model(spec, device="meta", seed=0).network.state_dict().values()
    )
    network = load_model(spec, seed=0, most_bytes=bytes_to_build(values)).network
    assert isinstance(network, nn.Module)
    assert all(
        torch.equal(value, other)
        for value, other in zip(
            network.state_dict().values(), load_model(spec, seed=0).network.state_dict().values(), strict=True
        )
    )


def test_code_of_ones_own_is_not_bound(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("from torch import nn\ndef make(): return nn.Linear(10, 10)\n")
    assert load_model(f"file:{tmp_path}/net.py:make", input_size=(10,), most_bytes=1).network
