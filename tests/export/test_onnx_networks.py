"""Whole networks: ONNX Runtime gives the answers of timm's architectures with random widths, and of a trained one.

A few small ones run every time. ``-m slow`` runs a dozen at their full depth, several draws of widths each; with
HWBMPQ_RESULTS naming a folder, what was found is written there as ``onnx_networks.json``.

Where a value lies at a boundary, float arithmetic in another order rounds it to another code, and at few bits one code
changes all that follows. So the median over inputs is what is bounded. Some draws let most inputs meet a boundary somewhere:
there the network differs from itself just as much (in double precision, one input at a time, in another memory layout, with
inputs or what layers give moved by a millionth), and that is the bound.
"""

import copy
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import hwbmpq
from hwbmpq.data.torchvision_import import import_timm
from hwbmpq.export import Agreement, OnnxGraph, OnnxNetwork, compare, onnx_graph, save_packed
from hwbmpq.models import load_model
from hwbmpq.quant import assign, prepare, quantized_layers

WIDTHS = (2, 3, 4, 5, 6, 7, 8, 16)
CLOSE = 1e-4
"""Of the range of the outputs."""
INPUTS = 16

QUICK: dict[str, dict[str, Any]] = {
    "resnet10t": {},
    "vit_tiny_patch16_224": {"img_size": 32, "depth": 3},
    "convnext_atto": {"depths": (1, 1, 2, 1)},
    "lcnet_050": {},
}
"""With the options that make them small."""

FULL: dict[str, dict[str, Any]] = {
    "resnet18": {},
    "mobilenetv2_100": {},
    "vit_tiny_patch16_224": {"img_size": 32},
    "efficientnet_b0": {},
    "convnext_atto": {},
    "nf_resnet26": {},  # standardised weights
    "regnetx_002": {},
    "mobilenetv3_small_100": {},
    "repvgg_a0": {},
    "ghostnet_050": {},
    "densenet121": {},
    "resnetv2_50x1_bit": {},
}


def awake(name: str, seed: int, **options: Any) -> tuple[nn.Module, Tensor]:
    """A network of timm's with live residual branches and norms that have seen data, and images for it.

    timm starts the last norm of a block, or what scales it, at zero.
    """
    torch.manual_seed(seed)
    network = import_timm().create_model(name, num_classes=10, **options)
    images = torch.randn(INPUTS, 3, 32, 32)
    for path, parameter in network.named_parameters():
        if path.endswith((".gamma", ".skipinit_gain")):
            nn.init.uniform_(parameter, 0.5, 1.0)
    for module in network.modules():
        if isinstance(module, (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
            module.momentum = 1.0
    with torch.no_grad():
        network.train()(images)
    return network.eval(), images


def quantize_at_random(network: nn.Module, images: Tensor, seed: int) -> None:
    """Change the network: every layer gets widths of its own, and α is calibrated."""
    layers = hwbmpq.describe(network, images[:1])
    prepare(network, layers, per_channel=seed % 2 == 0)
    draw = random.Random(seed)
    assign(network, {layer.name: (draw.choice(WIDTHS), draw.choice(WIDTHS)) for layer in layers})
    with torch.no_grad():
        network(images)


@pytest.fixture(scope="module")
def record() -> Iterator[dict[str, dict[str, Any]]]:
    rows: dict[str, dict[str, Any]] = {}
    yield rows
    if folder := os.environ.get("HWBMPQ_RESULTS"):
        content = {
            "timm": import_timm().__version__,
            "torch": torch.__version__,
            "onnxruntime": onnxruntime.__version__,
            "inputs_of_each": INPUTS,
            "networks": rows,
        }
        Path(folder, "onnx_networks.json").write_text(json.dumps(content, indent=1) + "\n")


def export_and_compare(
    name: str, seed: int, record: dict[str, dict[str, Any]], **options: Any
) -> tuple[OnnxGraph, Agreement, float]:
    """The graph, how it agrees with the network, and the median by which the network differs from itself."""
    network, images = awake(name, seed, **options)
    quantize_at_random(network, images, seed)
    graph = onnx_graph(network, images[:1])
    found = compare(network, OnnxNetwork(graph.content, threads=1), [images])
    own = own_differences(network, images)
    record[f"{name} {seed}"] = {
        "layers": len(list(quantized_layers(network))),
        "opset": graph.opset,
        "folded_norms": graph.folded_norms,
        "bytes": len(graph.content),
        "median_difference": found.median_difference,
        "largest_difference": found.largest_difference,
        "top1_agreement": found.top1_agreement,
        "own_median_difference": float(np.median(own)),
        "unstable_inputs": float((own > CLOSE).mean()),
    }
    return graph, found, float(np.median(own))


@torch.no_grad()
def own_differences(network: nn.Module, images: Tensor) -> NDArray[np.float32]:
    """For each input: how far the network's output moves, relative to the outputs' range, by what should not matter."""
    expected = network(images)
    exact, laid_out = (
        copy.deepcopy(network).double(),
        copy.deepcopy(network).to(memory_format=torch.channels_last),
    )
    others = [
        exact(images.double()).float(),
        torch.cat([network(image[None]) for image in images]),
        laid_out(images.contiguous(memory_format=torch.channels_last)),
        network(images * (1 + 1e-6)),
        network(images * (1 - 1e-6)),
        *(disturbed(network, images) for _ in range(3)),
    ]
    moved = torch.stack([(other - expected).abs().flatten(1).amax(1) for other in others]).amax(0)
    found: NDArray[np.float32] = (moved / (expected.max() - expected.min())).numpy()
    return found


@pytest.mark.parametrize("name", QUICK)
def test_small_networks_with_random_widths(name: str, record: dict[str, dict[str, Any]]) -> None:
    graph, found, _ = export_and_compare(name, 0, record, **QUICK[name])
    assert found.median_difference <= CLOSE
    assert found.inputs == INPUTS
    assert graph.has_dynamic_batch
    norms = [node for node in onnx.load_from_string(graph.content).graph.node if "BatchNorm" in node.op_type]
    assert not norms


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", FULL)
def test_full_networks_with_random_widths(name: str, seed: int, record: dict[str, dict[str, Any]]) -> None:
    graph, found, own = export_and_compare(name, seed, record, **FULL[name])
    assert found.median_difference <= max(CLOSE, 3 * own)
    assert graph.has_dynamic_batch


@pytest.mark.slow
def test_ten_architectures_agree_without_allowance(record: dict[str, dict[str, Any]]) -> None:
    """Runs after the test above, on what it found."""
    close = {key.split()[0] for key, row in record.items() if row["median_difference"] <= CLOSE}
    assert len(close & set(FULL)) >= 10
    assert "vit_tiny_patch16_224" in close


def disturbed(network: nn.Module, images: Tensor) -> Tensor:
    """The output if what every layer and norm gives is off by a millionth, as after other kernels."""

    def move(_: nn.Module, __: Any, output: Any) -> Any:
        return output * (1 + 1e-6 * torch.randn_like(output)) if isinstance(output, Tensor) else output

    kinds = (nn.Conv2d, nn.Linear, nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)
    hooks = [m.register_forward_hook(move) for m in network.modules() if isinstance(m, kinds)]
    try:
        found: Tensor = network(images)
        return found
    finally:
        for hook in hooks:
            hook.remove()


# A trained network.


def cifar_images(folder: Path, part: str, count: int) -> Tensor:
    with np.load(folder / "cifar10.npz") as arrays:
        pixels = torch.from_numpy(arrays[part][:count]).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return (pixels - mean) / std


@pytest.fixture(scope="module")
def trained_calibration(data_folder: Path) -> Tensor:
    return cifar_images(data_folder, "x_train", 128)


@pytest.fixture(scope="module")
def trained(data_folder: Path, trained_calibration: Tensor) -> tuple[nn.Module, Tensor]:
    """A ResNet-20 with random widths, calibrated on training images, and 500 test images."""
    weights = data_folder.parent / "weights" / "cifar10_resnet20.pt"
    network = load_model("hwbmpq:resnet20", weights=weights).network.eval()
    quantize_at_random(network, trained_calibration, 0)
    return network, cifar_images(data_folder, "x_test", 500)


@pytest.fixture(scope="module")
def trained_graph(trained: tuple[nn.Module, Tensor]) -> OnnxGraph:
    network, images = trained
    return onnx_graph(network, images[:1])


def test_a_trained_network_gives_the_same_answers(
    trained: tuple[nn.Module, Tensor], trained_graph: OnnxGraph
) -> None:
    network, images = trained
    found = compare(network, OnnxNetwork(trained_graph.content, threads=1), images.split(100))
    assert found.inputs == 500
    assert found.top1_agreement is not None
    assert found.top1_agreement >= 0.99
    assert found.median_difference <= CLOSE


def test_a_trained_network_packed_and_loaded_gives_the_same_answers(
    trained: tuple[nn.Module, Tensor], trained_graph: OnnxGraph, tmp_path: Path
) -> None:
    network, images = trained
    save_packed(
        network,
        tmp_path / "model.safetensors",
        example_input=images[:1],
        origin={"model": "hwbmpq:resnet20", "num_classes": 10, "input_size": (3, 32, 32)},
    )
    loaded = hwbmpq.load(tmp_path / "model.safetensors")
    with torch.no_grad():
        assert torch.equal(loaded(images), network(images))
    found = compare(loaded, OnnxNetwork(trained_graph.content, threads=1), images.split(100))
    assert found.top1_agreement is not None
    assert found.top1_agreement >= 0.99


def test_integer_kernels_hardly_change_what_a_trained_network_answers(
    trained: tuple[nn.Module, Tensor], trained_calibration: Tensor
) -> None:
    network, images = copy.deepcopy(trained[0]), trained[1]
    assign(network, {name: (6, 8) for name, _ in quantized_layers(network)})
    with torch.no_grad():
        network(trained_calibration)  # what had 16 bits has no α yet
    graph = onnx_graph(network, images[:1], form="int8", calibration=[trained_calibration.numpy()])
    assert len(graph.integer_layers) == 20
    found = compare(network, OnnxNetwork(graph.content, threads=1), images.split(100))
    assert found.top1_agreement is not None
    assert found.top1_agreement >= 0.97
