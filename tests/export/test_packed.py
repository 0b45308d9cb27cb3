"""Saving a quantized network and loading it again: the same outputs, bit for bit, and the same file."""

import copy
import io
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune

import hwbmpq
from hwbmpq.errors import HwbmpqError
from hwbmpq.export import PackedFileError, read_packed, save_packed
from hwbmpq.export.packed.file import INPUTS, SCALES
from hwbmpq.models import load_model
from hwbmpq.quant import assign, prepare, quantized_layers


def prepared(model: nn.Module, images: Tensor, **options: object) -> nn.Module:
    return prepare(model, hwbmpq.describe(model, images[:1]), **options)  # type: ignore[arg-type]


def trained(model: nn.Module, images: Tensor) -> nn.Module:
    """Through two batches: α calibrated, norms and weights moved."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        model(images).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def save(model: nn.Module, path: Path, images: Tensor, /, **origin: object) -> Path:
    save_packed(model, path, example_input=images[:1], origin=origin)
    return path


def check_round_trip(model: nn.Module, fresh: nn.Module, images: Tensor, folder: Path) -> nn.Module:
    """Save, load into ``fresh``, compare, save again."""
    with torch.no_grad():
        expected = model(images)
        loaded = hwbmpq.load(save(model, folder / "a.safetensors", images), fresh)
        assert torch.equal(loaded(images), expected)
    again = save(loaded, folder / "b.safetensors", images)
    assert again.read_bytes() == (folder / "a.safetensors").read_bytes()
    assert not loaded.training
    return loaded


class Kinds(nn.Module):
    """Each kind of layer: grouped, depthwise, strided and transposed convolutions, 1-D ones, linear; a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=4, bias=False)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2, groups=2)
        self.line = nn.Conv1d(6, 5, 3)
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = x + self.depthwise(F.silu(self.grouped(x)))
        x = self.line(self.up(x).flatten(2))
        return self.head(x.mean(2))


@pytest.mark.parametrize("per_channel", [False, True], ids=["per_tensor", "per_channel"])
@pytest.mark.parametrize("bits", range(2, 17))
def test_every_width_and_kind_of_layer(bits: int, per_channel: bool, images: Tensor, tmp_path: Path) -> None:
    fresh = Kinds()
    model = prepared(
        copy.deepcopy(fresh), images, precision=bits, first_last_precision=None, per_channel=per_channel
    )
    trained(model, images)
    torch.manual_seed(1)
    check_round_trip(model, Kinds(), images, tmp_path)


def test_mixed_widths_float_layers_and_ends(images: Tensor, tmp_path: Path) -> None:
    model = prepared(Kinds(), images, per_channel=True)
    assign(model, {"grouped": (2, 8), "depthwise": (32, 4), "up": (5, 32), "line": 32})
    trained(model, images)
    loaded = check_round_trip(model, Kinds(), images, tmp_path)
    before, after = dict(quantized_layers(model)), dict(quantized_layers(loaded))
    assert {n: str(layer.precision) for n, layer in after.items()} == {
        n: str(layer.precision) for n, layer in before.items()
    }
    for name, layer in before.items():
        quantizer, twin = layer.input_quantizer, after[name].input_quantizer
        assert (twin.signed, twin.trainable, twin.name) == (
            quantizer.signed,
            quantizer.trainable,
            quantizer.name,
        )
        assert torch.equal(twin.alpha, quantizer.alpha)
        assert torch.equal(twin.observed, quantizer.observed)
        assert vars(twin.calibration) == vars(quantizer.calibration)
        assert twin.alpha.requires_grad == quantizer.alpha.requires_grad


@pytest.mark.parametrize("bits", [2, 4, 16])
def test_channels_of_zeros(bits: int, tiny_cnn: nn.Module, images: Tensor, tmp_path: Path) -> None:
    fresh = copy.deepcopy(tiny_cnn)
    model = prepared(tiny_cnn, images, precision=bits, per_channel=True)
    with torch.no_grad():
        model[3].weight[1] = 0
        model[6].weight.zero_()
    check_round_trip(model.eval(), fresh, images, tmp_path)


def test_a_network_that_never_saw_data_calibrates_after_loading_as_it_would_have(
    tiny_cnn: nn.Module, images: Tensor, tmp_path: Path
) -> None:
    fresh = copy.deepcopy(tiny_cnn)
    model = prepared(tiny_cnn, images).eval()
    loaded = hwbmpq.load(save(model, tmp_path / "m.safetensors", images), fresh)
    assert loaded[3].input_quantizer.calibration.batches == 0
    assert torch.equal(loaded(images), model(images))


TIMM = {
    "resnet18": 32,
    "mobilenetv2_100": 32,
    "vit_tiny_patch16_224": 224,
    "resnetv2_50x1_bit": 32,  # StdConv2d: computed weights
    "nf_resnet26": 32,  # ScaledStdConv2d
    "tf_mobilenetv3_small_minimal_100": 32,  # Conv2dSame: pads on the way, multiplies with its parameter
}
"""With sizes of the image."""


@pytest.mark.parametrize("name", TIMM)
def test_networks_of_timm_are_rebuilt_from_their_name(name: str, tmp_path: Path) -> None:
    size = (3, TIMM[name], TIMM[name])
    origin = {"model": f"timm:{name}", "num_classes": 7, "input_size": size, "target": "mpic", "seed": 3}
    network = load_model(origin["model"], num_classes=7, input_size=size, seed=1).network.eval()
    images = torch.randn(2, *size)
    model = prepared(network, images, precision=(3, 4))
    assign(model, {layer: (2, 8) for layer, _ in list(quantized_layers(model))[2:-1:3]})
    with torch.no_grad():
        expected = model(images)
        path = save(model, tmp_path / "model.safetensors", images, **origin)
        state = torch.get_rng_state()
        loaded = hwbmpq.load(tmp_path)  # as a run directory
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(loaded(images), expected)
    again = save(loaded, tmp_path / "again.safetensors", images, **origin)
    assert again.read_bytes() == path.read_bytes()
    computed = [layer.name for layer in read_packed(path).metadata.layers if layer.is_computed]
    assert bool(computed) == (name in ("resnetv2_50x1_bit", "nf_resnet26"))


class Standardised(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        weight = (self.weight - self.weight.mean()) / self.weight.std()
        return self._conv_forward(x, weight, self.bias)


def computing() -> nn.Module:
    return nn.Sequential(
        Standardised(3, 8, 3), nn.ReLU(), Standardised(8, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)
    )


@pytest.fixture
def frozen(images: Tensor, tmp_path: Path) -> nn.Module:
    """Loaded; its first two layers have frozen weights."""
    model = trained(prepared(computing(), images, precision=3), images)
    loaded = check_round_trip(model, computing(), images, tmp_path)
    assert [name for name, _ in loaded.named_buffers() if "frozen" in name] == [
        "0.frozen_weight",
        "2.frozen_weight",
    ]
    return loaded


def test_frozen_weights_survive_copies_pickles_and_state_dicts(frozen: nn.Module, images: Tensor) -> None:
    expected = frozen(images)
    buffer = io.BytesIO()
    torch.save(frozen, buffer)
    buffer.seek(0)
    other = prepared(computing(), images, precision=3).eval()
    other.load_state_dict(frozen.state_dict())
    for twin in (copy.deepcopy(frozen), torch.load(buffer, weights_only=False), other):
        assert torch.equal(twin(images), expected)


def test_frozen_weights_do_not_train_and_the_rest_does(frozen: nn.Module, images: Tensor) -> None:
    frozen.train()(images).square().sum().backward()
    assert frozen[0].weight.grad is None
    assert not frozen[0].weight.requires_grad
    assert frozen[0].bias.grad is not None
    assert frozen[4].weight.grad.any()


def test_a_checkpoint_of_ordinary_weights_thaws_frozen_ones(frozen: nn.Module, images: Tensor) -> None:
    ordinary = trained(prepared(computing(), images, precision=3), images)
    frozen.load_state_dict(ordinary.state_dict())
    assert torch.equal(frozen(images), ordinary(images))
    assert frozen[0].weight.requires_grad


def test_frozen_weights_take_other_widths(frozen: nn.Module, images: Tensor) -> None:
    before = frozen(images)
    assign(frozen, {"0": 2, "2": 2})
    assert not torch.equal(frozen(images), before)
    assert frozen[2].quantize_weight(frozen[2].weight).unique().numel() <= 3
    assign(frozen, {"0": 16, "2": 3})
    assert torch.equal(frozen(images), before)


def test_frozen_weights_are_not_stored_in_float(frozen: nn.Module, images: Tensor, tmp_path: Path) -> None:
    """The layer would compute from them once more."""
    assign(frozen, {"2": (32, 3)})
    with pytest.raises(HwbmpqError, match="layer '2' has a frozen weight, which cannot be stored in float"):
        save(frozen, tmp_path / "c.safetensors", images)


def test_a_pruned_network_loads_into_one_that_is_not(
    tiny_cnn: nn.Module, images: Tensor, tmp_path: Path
) -> None:
    fresh = copy.deepcopy(tiny_cnn)
    model = trained(prepared(tiny_cnn, images), images)
    prune.l1_unstructured(model[6], "weight", amount=0.5)
    check_round_trip(model, fresh, images, tmp_path)
    assert "6.weight_mask" not in read_packed(tmp_path / "a.safetensors").container.tensors


class Tied(nn.Module):
    """Two layers with one weight, a module under two names, and an embedding whose table is the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 6)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.twice = nn.Linear(6, 6)
        self.alias = self.twice
        self.head = nn.Linear(6, 9, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.table.weight[3]
        return self.head(F.relu(self.twice(F.relu(self.second(F.relu(self.first(x)))))))


def test_shared_tensors_are_stored_once(tmp_path: Path) -> None:
    values = torch.randn(5, 6)
    model = trained(prepared(Tied(), values, precision=4, first_last_precision=4), values)
    loaded = check_round_trip(model, Tied(), values, tmp_path)
    assert loaded.second.weight is loaded.first.weight
    assert loaded.head.weight is loaded.table.weight
    file = read_packed(tmp_path / "a.safetensors")
    weights = [name for name in file.container.tensors if name.endswith("weight")]
    assert sorted(weights) == ["first.weight", "table.weight", "twice.weight"]
    assert file.container.tensors["first.weight"].dtype == torch.uint8
    assert file.container.tensors["table.weight"].dtype == torch.float32  # the embedding needs it so


def test_a_weight_shared_at_two_widths_is_stored_in_float(tmp_path: Path) -> None:
    values = torch.randn(5, 6)
    model = prepared(Tied(), values, precision=4)
    assign(model, {"first": 4, "second": 8})
    check_round_trip(trained(model, values), Tied(), values, tmp_path)
    assert read_packed(tmp_path / "a.safetensors").container.tensors["first.weight"].dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("bits", [2, 5, 12, 16])
def test_other_precisions(
    dtype: torch.dtype, bits: int, tiny_cnn: nn.Module, images: Tensor, tmp_path: Path
) -> None:
    fresh = copy.deepcopy(tiny_cnn)
    model = trained(prepared(tiny_cnn, images, precision=bits), images).to(dtype)
    loaded = check_round_trip(model, fresh, images.to(dtype), tmp_path)
    assert {value.dtype for value in loaded.parameters()} == {dtype}


def test_the_layout_in_memory_is_kept(images: Tensor, tmp_path: Path) -> None:
    model = trained(prepared(Kinds(), images), images).to(memory_format=torch.channels_last)
    loaded = check_round_trip(model, Kinds(), images, tmp_path)
    assert loaded.stem.weight.is_contiguous(memory_format=torch.channels_last)
    back = hwbmpq.load(
        save(model.to(memory_format=torch.contiguous_format), tmp_path / "c.safetensors", images),
        Kinds().to(memory_format=torch.channels_last),
    )
    assert back.stem.weight.is_contiguous()


def test_a_network_that_is_one_layer(tmp_path: Path) -> None:
    values = torch.randn(3, 4)
    model = prepared(nn.Linear(4, 2), values, precision=4, first_last_precision=None)
    check_round_trip(trained(model, values), nn.Linear(4, 2), values, tmp_path)


def test_a_loaded_network_trains_as_the_saved_one(
    tiny_cnn: nn.Module, images: Tensor, tmp_path: Path
) -> None:
    fresh = copy.deepcopy(tiny_cnn)
    model = trained(prepared(tiny_cnn, images, precision=4), images)
    loaded = hwbmpq.load(save(model, tmp_path / "m.safetensors", images), fresh)
    for network in (model, loaded):
        network.train()(images).square().sum().backward()
    names = {name for name, value in model.named_parameters() if value.requires_grad}
    assert names == {name for name, value in loaded.named_parameters() if value.requires_grad}
    gradients = {name: value.grad for name, value in loaded.named_parameters() if value.requires_grad}
    for name, value in model.named_parameters():
        if name in names:
            assert torch.equal(gradients[name], value.grad), name


def test_a_loaded_network_goes_through_state_dicts_and_other_widths(
    tiny_cnn: nn.Module, images: Tensor, tmp_path: Path
) -> None:
    fresh = copy.deepcopy(tiny_cnn)
    twin = prepared(copy.deepcopy(tiny_cnn), images)
    model = trained(prepared(tiny_cnn, images, precision=(3, 4)), images)
    loaded = hwbmpq.load(save(model, tmp_path / "m.safetensors", images), fresh)
    twin.load_state_dict(loaded.state_dict())
    assert torch.equal(twin.eval()(images), model(images))
    assign(loaded, {"3": (16, 4)})
    assert torch.equal(loaded(images), model(images))  # the weights are on the coarser grid already
    assign(loaded, {"3": (2, 4)})
    assert loaded[3].quantize_weight(loaded[3].weight).unique().numel() <= 3


# the file


def test_any_safetensors_reader_reads_the_file(tiny_cnn: nn.Module, images: Tensor, tmp_path: Path) -> None:
    path = save(prepared(tiny_cnn, images), tmp_path / "m.safetensors", images, model="mine")
    with safe_open(path, "pt") as file:
        assert set(file.keys()) == {*"0.weight 3.weight 6.weight 8.weight 0.bias 6.bias 8.bias".split()} | {
            SCALES,
            INPUTS,
            *(f"1.{name}" for name in "weight bias running_mean running_var num_batches_tracked".split()),
        }
        assert torch.equal(file.get_tensor("6.bias"), tiny_cnn[6].bias)
        assert file.get_tensor("3.weight").dtype == torch.uint8
        metadata = json.loads(file.metadata()["hwbmpq"])
    assert metadata["schema"] == "hwbmpq/packed/v1"
    assert metadata["origin"] == {"model": "mine"}
    assert [layer["name"] for layer in metadata["layers"]] == ["0", "3", "6", "8"]


def test_saving_changes_nothing(images: Tensor, tmp_path: Path) -> None:
    model = prepared(computing(), images).train()
    before = copy.deepcopy(model.state_dict())
    save(model, tmp_path / "m.safetensors", images)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_file_that_cannot_be_written_leaves_the_old_one(
    tiny_cnn: nn.Module, images: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = prepared(tiny_cnn, images)
    path = save(model, tmp_path / "m.safetensors", images)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(HwbmpqError, match=r"m.safetensors cannot be written: No space left.*untouched"):
        save(model, path, images)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.safetensors"]


# what is refused


def test_float_networks_and_wrapped_ones_are_not_saved(
    tiny_cnn: nn.Module, images: Tensor, tmp_path: Path
) -> None:
    with pytest.raises(HwbmpqError, match="no quantized layers"):
        save(tiny_cnn, tmp_path / "m", images)
    with pytest.raises(HwbmpqError, match="layer '0' is not at this place") as caught:
        save(nn.Sequential(prepared(tiny_cnn, images)), tmp_path / "m", images)
    assert "model.module" in caught.value.hint


@pytest.mark.parametrize(
    ("origin", "field"),
    [
        ({"num_classes": "ten"}, "num_classes"),
        ({"num_classes": 0}, "num_classes"),
        ({"input_size": (3, -1)}, "input_size.1"),
        ({"mine": object()}, "mine"),
    ],
)
def test_an_origin_that_cannot_be_stored(
    origin: dict[str, object], field: str, tiny_cnn: nn.Module, images: Tensor, tmp_path: Path
) -> None:
    with pytest.raises(HwbmpqError, match=f"origin: {field}"):
        save_packed(prepared(tiny_cnn, images), tmp_path / "m", example_input=images, origin=origin)


@pytest.mark.parametrize("spec", [None, "file:network.py:make", "file:network.pt2", "nowhere:resnet18"])
def test_own_networks_have_to_be_given(
    spec: str | None, tiny_cnn: nn.Module, images: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "network.py").write_text("raise AssertionError('this must not run')")
    path = save(prepared(tiny_cnn, images), tmp_path / "m.safetensors", images, model=spec)
    with pytest.raises(HwbmpqError, match="load does not build by itself") as caught:
        hwbmpq.load(path)
    assert "model=network" in str(caught.value)


def test_a_network_that_is_not_the_saved_one(tiny_cnn: nn.Module, images: Tensor, tmp_path: Path) -> None:
    def other(place: int, layer: nn.Module) -> nn.Module:
        network = copy.deepcopy(tiny_cnn)
        network[place] = layer
        return network

    odd, sharing = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
    odd.weight = nn.Parameter(torch.ones(4, 1, 1))
    sharing.bias = sharing.weight
    cases = {
        "layer '8' has a weight of shape .5, 12., the network's has .7, 12.": other(8, nn.Linear(12, 7)),
        "layer '6': the network has a Identity there": other(6, nn.Identity()),
        "layer '8': the network has no such layer": tiny_cnn[:8],
        "the network has no '8.bias'": other(8, nn.Linear(12, 5, bias=False)),
        "'7.weight' of the network is missing": other(7, nn.PReLU()),
        "'1.weight' is F32 .4,., the network's is torch.float32 .4, 1, 1.": other(1, odd),
        "the network shares other tensors": other(1, sharing),
    }
    path = save(prepared(copy.deepcopy(tiny_cnn), images), tmp_path / "m.safetensors", images)
    for message, network in cases.items():
        before = copy.deepcopy(network.state_dict())
        with pytest.raises(PackedFileError, match=message):
            hwbmpq.load(path, network)
        assert not list(quantized_layers(network))
        assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    with pytest.raises(PackedFileError, match="quantized already"):
        hwbmpq.load(path, prepared(tiny_cnn, images))


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(PackedFileError, match=r"nothing.safetensors cannot be read: No such file"):
        hwbmpq.load(tmp_path / "nothing.safetensors")
    with pytest.raises(PackedFileError, match=r"model.safetensors cannot be read: No such file"):
        hwbmpq.load(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PackedFileError, match="pipe cannot be read: it is not a regular file"):
        hwbmpq.load(tmp_path / "pipe")
