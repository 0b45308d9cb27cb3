"""Model specifications, good and bad."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import hwbmpq
from hwbmpq.data.torchvision_import import import_timm
from hwbmpq.errors import HwbmpqError, ModelLoadError, UnknownNameError
from hwbmpq.models import load_model, parse_input_size

NET = """
import torch
from helper import WIDTH

def make_net(num_classes=4):
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(WIDTH, num_classes))
    net.input_size = (1, 2, 2)
    return net

def no_size():
    return torch.nn.Linear(4, 4)

def not_a_network():
    return 3

def broken():
    raise RuntimeError("no such layer")
"""


@pytest.fixture
def net_file(tmp_path: Path) -> Path:
    (tmp_path / "helper.py").write_text("WIDTH = 4\n")
    (tmp_path / "net.py").write_text(NET)
    return tmp_path / "net.py"


@pytest.mark.parametrize(
    ("name", "layers", "weights"),
    [
        # Worked out from He et al. 2016 and the BMPQ paper's Table 1.
        ("resnet8", 8, 74_800),
        ("resnet8_b", 10, 77_360),
        ("resnet18", 21, 11_164_352),
        ("resnet20", 20, 268_336),
        ("resnet20_b", 22, 270_896),
        ("resnet56", 56, 848_944),
        ("resnet56_b", 58, 851_504),
        ("vgg16", 16, 15_239_872),
    ],
)
def test_our_networks_have_the_published_sizes(name: str, layers: int, weights: int) -> None:
    model = load_model(f"hwbmpq:{name}", device="meta")
    graph = hwbmpq.describe(model.network, model.example_input())
    assert (len(graph), graph.weights, graph.traced_by) == (layers, weights, "fx")
    assert model.input_size == (3, 32, 32)


@pytest.mark.parametrize(
    ("spec", "classes", "size"),
    [
        ("timm:resnet18", 1000, (3, 224, 224)),
        ("torchvision:resnet18", 1000, (3, 224, 224)),
        ("torchvision:inception_v3", 1000, (3, 299, 299)),
        ("hwbmpq:resnet8", 10, (3, 32, 32)),
    ],
)
def test_zoo_networks_run_at_their_own_size(spec: str, classes: int, size: tuple[int, ...]) -> None:
    for wanted in (None, 7):
        model = load_model(spec, num_classes=wanted)
        assert model.input_size == size
        with torch.no_grad():
            assert model.network.eval()(model.example_input()).shape == (1, wanted or classes)


def test_input_size_can_be_given() -> None:
    assert load_model("timm:resnet18", input_size=(3, 64, 64), device="meta").input_size == (3, 64, 64)
    assert parse_input_size("3x224x224") == (3, 224, 224)
    assert (parse_input_size("224"), parse_input_size("1X28X28")) == ((224,), (1, 28, 28))
    for text in ("", "3x", "x3", "3x-1x2", "0x2x2", "3,224,224", "axbxc", "3x224x224x", "1" * 9):
        with pytest.raises(HwbmpqError, match="cannot read the input size"):
            parse_input_size(text)


def test_a_users_factory_gets_its_classes_and_says_its_size(net_file: Path) -> None:
    model = load_model(f"file:{net_file}:make_net", num_classes=6)
    assert model.input_size == (1, 2, 2)
    assert model.network(model.example_input()).shape == (1, 6)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("resnet18", "cannot read the model specification 'resnet18'"),
        ("timm:", "cannot read the model specification 'timm:'"),
        ("onnx:x", "cannot read the model specification"),
        ("timm:resnt18", r"no timm model named 'resnt18': did you mean resnet18"),
        ("torchvision:resnet19", r"no torchvision classifier named 'resnet19': did you mean resnet18"),
        ("hwbmpq:resnet21", r"no hwbmpq network named 'resnet21': did you mean resnet20"),
        ("hwbmpq:zzz", "known: resnet18, resnet20"),
        ("file:{folder}/net.py", "cannot read file:"),
        ("file:{folder}/nothing.py:make_net", r"no file .*nothing\.py"),
        ("file:{folder}/nothing.pt2", r"no file .*nothing\.pt2"),
        (
            "file:{folder}/net.py:missing",
            r"no function or class in .*net\.py named 'missing': known: broken, make_net",
        ),
        ("file:{folder}/net.py:no_size", "does not say which input it takes"),
        ("file:{folder}/net.py:not_a_network", "returned int, not torch.nn.Module"),
        ("file:{folder}/net.py:broken", "raised RuntimeError: no such layer"),
    ],
)
def test_bad_specifications_are_one_clear_sentence(net_file: Path, spec: str, message: str) -> None:
    with pytest.raises(HwbmpqError, match=message):
        load_model(spec.format(folder=net_file.parent))


def test_a_file_that_does_not_import_says_what_it_raised(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(
        ModelLoadError, match="raised ModuleNotFoundError: No module named 'nothing_of_this_name'"
    ):
        load_model(f"file:{tmp_path}/bad.py:f")


def test_a_factory_may_take_any_keyword_and_may_not_exit(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from __future__ import annotations\nimport dataclasses, sys, torch\n"
        "@dataclasses.dataclass\nclass Settings:\n    width: int = 4\n"
        "def make(**options):\n    return torch.nn.Linear(Settings().width, options['num_classes'])\n"
        "def leave():\n    sys.exit(3)\n"
    )
    path_before = list(sys.path)
    model = load_model(f"file:{tmp_path}/net.py:make", num_classes=5, input_size=(4,))
    assert model.network.out_features == 5
    with pytest.raises(ModelLoadError, match=r"leave in .* raised SystemExit: 3"):
        load_model(f"file:{tmp_path}/net.py:leave")
    assert sys.path == path_before


def test_a_failed_download_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no route to host\nand much more")

    monkeypatch.setattr(import_timm(), "create_model", unreachable)
    with pytest.raises(
        ModelLoadError, match=r"could not fetch the pretrained weights of resnet18: no route to host$"
    ):
        load_model("timm:resnet18", pretrained=True)


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("hwbmpq:resnet8", {"pretrained": True}, "come without trained weights"),
        ("hwbmpq:resnet8", {"num_classes": 0}, "cannot have 0 classes"),
        ("file:{folder}/net.py:no_size", {"num_classes": 3}, "takes no num_classes"),
        ("file:{folder}/net.py:make_net", {"pretrained": True}, "no pretrained weights to fetch"),
        ("torchvision:resnet18", {"pretrained": True, "num_classes": 3}, "a head of their own size"),
        ("hwbmpq:resnet8", {"weights": "x.pt", "device": "meta"}, "cannot be loaded on the meta device"),
    ],
)
def test_options_that_contradict_are_refused(
    net_file: Path, spec: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(HwbmpqError, match=message):
        load_model(spec.format(folder=net_file.parent), **options)  # type: ignore[arg-type]


def test_unknown_names_offer_the_close_ones() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_model("timm:mobilenetv2_10")
    assert "mobilenetv2_100" in caught.value.close


def test_trained_weights_classify_real_images(data_folder: Path) -> None:
    weights = data_folder.parent / "weights" / "cifar10_resnet20.pt"
    network = load_model("hwbmpq:resnet20", weights=weights).network.eval()
    with np.load(data_folder / "cifar10.npz") as data:
        images, labels = data["x_test"][:500], torch.from_numpy(data["y_test"][:500])
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    inputs = ((torch.from_numpy(images) / 255 - mean) / deviation).permute(0, 3, 1, 2)
    with torch.no_grad():
        accuracy = (network(inputs).argmax(1) == labels.long().flatten()).float().mean()
    assert accuracy > 0.88


def test_a_network_that_takes_token_ids_is_described_without_data(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "def make():\n"
        "    net = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(24, 3))\n"
        "    net.input_size, net.input_dtype = (6,), torch.int64\n"
        "    return net\n"
    )
    model = load_model(f"file:{tmp_path}/net.py:make")
    assert model.example_input().dtype == torch.int64
    assert hwbmpq.describe(model.network, model.example_input()).macs == 72
