"""Exported programs become networks that can be described, quantized and trained."""

import copy
import io
import os
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hwbmpq
from hwbmpq.errors import ModelLoadError
from hwbmpq.models import load_model


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(4, eps=0.1, momentum=0.3)
        self.block = nn.Sequential(nn.Conv2d(4, 4, 3, padding="same", dilation=2, groups=2), nn.ReLU())
        self.dropout = nn.Dropout(0.9)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x)))
        x = self.block(self.block(x))  # twice
        return self.head(self.dropout(x.mean((2, 3))))


@pytest.fixture
def network() -> nn.Module:
    network = Small()
    network.norm.running_mean.normal_()
    network.norm.running_var.uniform_(0.5, 2)
    return network


def save(network: nn.Module, path: Path, batch: int = 2) -> None:
    example = torch.randn(batch, 3, 8, 8)
    dynamic = {"x": {0: torch.export.Dim("batch")}}
    torch.export.save(torch.export.export(network, (example,), dynamic_shapes=dynamic), path)


@pytest.mark.parametrize("training", [False, True])
def test_the_program_computes_the_same_and_its_layers_are_found(
    network: nn.Module, training: bool, tmp_path: Path
) -> None:
    save(copy.deepcopy(network).train(training), tmp_path / "m.pt2")
    model = load_model(f"file:{tmp_path}/m.pt2")
    assert model.input_size == (3, 8, 8)
    images = torch.randn(5, 3, 8, 8)
    torch.testing.assert_close(model.network.eval()(images), network.eval()(images))
    graph = hwbmpq.describe(model.network, model.example_input())
    original = hwbmpq.describe(network, images)
    assert [(la.name, la.weight_shape, la.macs, la.calls, la.input_signed) for la in graph] == [
        (la.name, la.weight_shape, la.macs, la.calls, la.input_signed) for la in original
    ]
    assert graph.parameters == original.parameters


def test_it_trains_and_quantizes_like_any_network(network: nn.Module, tmp_path: Path) -> None:
    save(network.eval(), tmp_path / "m.pt2")
    loaded = load_model(f"file:{tmp_path}/m.pt2").network
    hwbmpq.quant.prepare(loaded, hwbmpq.describe(loaded, torch.randn(1, 3, 8, 8)))
    loaded.train()
    mean = loaded.norm.running_mean.clone()
    loaded(torch.randn(4, 3, 8, 8)).sum().backward()
    assert loaded.conv.weight.grad is not None
    assert not torch.equal(loaded.norm.running_mean, mean)
    assert (loaded.norm.eps, loaded.norm.momentum) == (0.1, 0.3)
    assert [module.p for module in loaded.modules() if isinstance(module, nn.Dropout)] == [0.9]
    first, second = loaded(torch.ones(2, 3, 8, 8)), loaded(torch.ones(2, 3, 8, 8))
    assert not torch.equal(first, second)  # dropout is live


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04" + b"\x00" * 40])
def test_garbage_is_one_clear_sentence(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.pt2").write_bytes(content)
    with pytest.raises(ModelLoadError, match=r"m\.pt2 is not a program that torch\.export saved"):
        load_model(f"file:{tmp_path}/m.pt2")


def test_truncated_programs_are_refused(network: nn.Module, tmp_path: Path) -> None:
    save(network.eval(), tmp_path / "m.pt2")
    whole = (tmp_path / "m.pt2").read_bytes()
    (tmp_path / "m.pt2").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelLoadError):
        load_model(f"file:{tmp_path}/m.pt2")


class Evil:
    """Unpickled, it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return Path.write_text, (self.path, "ran")


def test_code_in_a_program_never_runs(network: nn.Module, tmp_path: Path) -> None:
    save(network.eval(), tmp_path / "good.pt2")
    evil = io.BytesIO()
    torch.save(Evil(tmp_path / "proof"), evil)
    with zipfile.ZipFile(tmp_path / "good.pt2") as good, zipfile.ZipFile(tmp_path / "m.pt2", "w") as bad:
        for name in good.namelist():
            is_pickle = "sample_inputs" in name
            bad.writestr(name, evil.getvalue() if is_pickle else good.read(name))
    before = os.environ.get("TORCH_FORCE_WEIGHTS_ONLY_LOAD")
    with pytest.raises(ModelLoadError):
        load_model(f"file:{tmp_path}/m.pt2")
    assert not (tmp_path / "proof").exists()
    assert os.environ.get("TORCH_FORCE_WEIGHTS_ONLY_LOAD") == before


@pytest.mark.parametrize("kind", ["opaque_obj", "custom_obj"])
def test_pickled_objects_are_refused_unread(network: nn.Module, kind: str, tmp_path: Path) -> None:
    save(network.eval(), tmp_path / "m.pt2")
    with zipfile.ZipFile(tmp_path / "m.pt2", "a") as archive:
        archive.writestr(f"m/data/constants/{kind}_0", b"cos\nsystem\n(S'echo ran'\ntR.")
    with pytest.raises(ModelLoadError, match="carries pickled objects"):
        load_model(f"file:{tmp_path}/m.pt2")


def test_a_class_count_cannot_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="class count of an exported program is fixed"):
        load_model(f"file:{tmp_path}/m.pt2", num_classes=3)


class Tied(nn.Module):
    """Two convolutions with one weight but their own stride and bias, and a transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 3, 3, padding=1)
        self.second = nn.Conv2d(3, 3, 3, padding=1, stride=2)
        self.second.weight = self.first.weight
        self.up = nn.ConvTranspose2d(3, 4, 2, stride=2, output_padding=1, groups=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(F.relu(self.second(F.relu(self.first(x)))))


def test_layers_that_share_a_weight_stay_two_layers(tmp_path: Path) -> None:
    network = Tied().eval()
    save(network, tmp_path / "m.pt2")
    loaded = load_model(f"file:{tmp_path}/m.pt2").network
    images = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(loaded(images), network(images))
    graph = hwbmpq.describe(loaded, images)
    assert [layer.kind for layer in graph] == ["conv2d", "conv2d", "conv_transpose2d"]
    assert graph.parameters == sum(p.numel() for p in network.parameters())
    assert len(graph.ties) == 1


def test_attention_in_a_program_is_counted(tmp_path: Path) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(8)
            self.qkv = nn.Linear(8, 24)
            self.head = nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:  # (B, 3, 8, 8), rows as tokens
            q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
            return self.head(F.scaled_dot_product_attention(q, k, v))

    save(Attention().eval(), tmp_path / "m.pt2")
    model = load_model(f"file:{tmp_path}/m.pt2")
    graph = hwbmpq.describe(model.network, model.example_input())
    assert graph.macs - graph.layer_macs == 2 * 3 * 8 * 8 * 8
    assert {entry.reason for entry in graph.uncovered} == {"norm", "bias", "activation product"}


def test_a_layer_with_a_bias_that_is_computed_stays_a_call(tmp_path: Path) -> None:
    """As in Swin V2 and EVA-02, where the keys have no bias."""

    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 4, bias=False)
            self.part = nn.Parameter(torch.randn(2))

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.linear.weight, torch.cat([self.part, torch.zeros(2)]))

    network = Joined().eval()
    save(network, tmp_path / "m.pt2")
    images = torch.randn(1, 3, 8, 8)
    torch.testing.assert_close(load_model(f"file:{tmp_path}/m.pt2").network(images), network(images))
