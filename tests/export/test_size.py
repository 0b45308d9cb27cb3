"""The size of a packed file: predicted from the network and its widths, and accounted for byte by byte."""

import copy
import random
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hwbmpq
from hwbmpq.export import SizeAccount, predicted_size, save_packed
from hwbmpq.models import load_model
from hwbmpq.quant import assign, prepare, quantized_layers


def lines(account: SizeAccount) -> dict[str, tuple[int, int | None]]:
    return {line.label: (line.predicted_bytes, line.actual_bytes) for line in account.lines}


@pytest.mark.parametrize("per_channel", [False, True])
def test_resnet18_is_as_large_as_predicted(per_channel: bool, tmp_path: Path) -> None:
    spec, size = "timm:resnet18", (3, 32, 32)
    skeleton = load_model(spec, num_classes=1000, device="meta").network
    network = load_model(spec, num_classes=1000, input_size=size, seed=0).network
    graph = hwbmpq.describe(network, torch.zeros(1, *size))
    choose = random.Random(0)
    widths = {layer.name: 16 if layer.is_end else choose.choice([2, 4]) for layer in graph}
    predicted = predicted_size(skeleton, graph, widths, per_channel=per_channel)
    model = assign(prepare(network, graph, per_channel=per_channel), widths)
    path = tmp_path / "m.safetensors"
    account = save_packed(model, path, example_input=torch.zeros(1), origin={"model": spec})
    actual = path.stat().st_size
    assert abs(actual - predicted.predicted_bytes) < 0.001 * actual  # far below 1 % and 16 KiB
    assert account.actual_bytes == actual
    assert account.predicted_bytes == predicted.predicted_bytes
    weights, found = lines(account)["packed weights"]
    assert weights == found == sum(-(-layer.parameters * widths[layer.name] // 8) for layer in graph)
    assert account.on_device.predicted_bytes == account.on_device.actual_bytes
    assert actual - found < 0.03 * actual


def test_every_byte_has_its_line(tiny_cnn: nn.Module, images: Tensor, tmp_path: Path) -> None:
    graph = hwbmpq.describe(tiny_cnn, images)
    model = prepare(tiny_cnn, graph, precision=3, per_channel=True)
    assign(model, {"6": 32})
    widths = {name: layer.precision for name, layer in quantized_layers(model)}
    path = tmp_path / "m.safetensors"
    account = save_packed(model, path, example_input=images)
    found = lines(account)
    header = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    assert found["file header"][1] == header
    del found["file header"]
    assert found == {
        "packed weights": ((108 * 16 + 216 * 3 + 60 * 16) // 8, 216 + 81 + 120),
        "scales": (4 * (4 + 6 + 5), 4 * (4 + 6 + 5)),
        "clipping points": (8 * 4, 8 * 4),
        "biases": (4 * (4 + 12 + 5), 4 * (4 + 12 + 5)),
        "norms": (4 * 4 * 4 + 8, 4 * 4 * 4 + 8),
        "other tensors in float": (4 * 96 * 12, 4 * 96 * 12),
    }
    assert account.actual_bytes == path.stat().st_size
    predicted = predicted_size(model, graph, widths, per_channel=True)
    assert predicted.predicted_bytes == account.predicted_bytes
    assert predicted.actual_bytes is None
    assert all(line.actual_bytes is None for line in predicted.lines)


def test_padding_bytes_are_predicted(images: Tensor, tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Conv2d(3, 3, 1, bias=False) for _ in range(4)))
    prepare(model, hwbmpq.describe(model, images), precision=3, first_last_precision=None)
    account = save_packed(model, tmp_path / "m", example_input=images)
    assert lines(account)["packed weights"] == (16, 16)  # 4 times 27 bits, each in 4 bytes


def test_shared_weights_count_once(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    model[2].weight = model[0].weight
    graph = hwbmpq.describe(model, torch.ones(1, 6))
    widths = dict.fromkeys("024", 4)
    predicted = predicted_size(copy.deepcopy(model), graph, widths)
    assign(prepare(model, graph), widths)
    account = save_packed(model, tmp_path / "m", example_input=torch.ones(1, 6))
    assert lines(account)["packed weights"] == (18 + 6, 18 + 6)
    assert lines(account)["scales"] == (8, 8)
    assert predicted.predicted_bytes == account.predicted_bytes


def test_the_account_as_plain_data(tiny_cnn: nn.Module, images: Tensor, tmp_path: Path) -> None:
    model = prepare(tiny_cnn, hwbmpq.describe(tiny_cnn, images))
    account = save_packed(model, tmp_path / "m", example_input=images)
    content = account.to_dict()
    assert content["actual_bytes"] == sum(line["actual_bytes"] for line in content["lines"])
    assert content["predicted_bytes"] == account.predicted_bytes
    assert content["lines"][0]["label"] == "packed weights"
