"""Damaged and hostile packed files: one kind of error, which names the file, and no memory taken on their word."""

import copy
import json
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hwbmpq
from hwbmpq.export import PackedFile, PackedFileError, read_packed, save_packed
from hwbmpq.quant import assign, prepare

CHECKSUM = "0" * 64
MOST_MEMORY = 8 << 20
"""The files here have some kilobytes; reading the best of them takes less."""


def network() -> nn.Module:
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3),
        nn.Flatten(),
        nn.Linear(96, 5),
        nn.Linear(5, 5),
    )
    model[6].bias = model[5].bias
    return model


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    model = network()
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    prepare(model, hwbmpq.describe(model, images[:1]), precision=3, per_channel=True)
    assign(model, {"5": (32, 4)})
    model(images)
    path = tmp_path_factory.mktemp("good") / "m.safetensors"
    save_packed(model, path, example_input=images[:1], origin={"model": "hwbmpq:resnet8", "num_classes": 5})
    hwbmpq.load(path, network())
    return path.read_bytes()


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def joined(header: dict[str, Any] | str, body: bytes) -> bytes:
    """A file with a right checksum, whatever it says."""
    if not isinstance(header, str):
        if isinstance(header.get("__metadata__"), dict) and "blake2b" in header["__metadata__"]:
            header["__metadata__"]["blake2b"] = CHECKSUM
        header = json.dumps(header, separators=(",", ":"))
    text = header.encode()
    data = len(text).to_bytes(8, "little") + text + body
    return data.replace(CHECKSUM.encode(), blake2b(data, digest_size=32).hexdigest().encode(), 1)


def refused(data: bytes, folder: Path, match: str | None = None) -> PackedFileError:
    """Loading ends in our error, with little memory, and leaves the network alone."""
    path = folder / "bad.safetensors"
    path.write_bytes(data)
    model = network()
    before = copy.deepcopy(model.state_dict())
    tracemalloc.start()
    try:
        with pytest.raises(PackedFileError, match=match) as caught:
            hwbmpq.load(path, model)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "bad.safetensors" in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert peak < MOST_MEMORY
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    return caught.value


def test_the_helpers_make_good_files(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(joined(*parts(good)))
    hwbmpq.load(path, network())


# damage


def test_every_truncation_is_found(good: bytes, tmp_path: Path) -> None:
    lengths = {0, 1, 7, 8, 9, len(good) - 1, *range(0, len(good), max(1, len(good) // 60))}
    for length in sorted(lengths):
        refused(good[:length], tmp_path, "cut short|cannot be read|checksum")


def test_bytes_at_the_end_are_found(good: bytes, tmp_path: Path) -> None:
    refused(good + b"\0", tmp_path, "checksum is wrong")


def test_flipped_bits_are_found_wherever_they_are(good: bytes, tmp_path: Path) -> None:
    chance = random.Random(0)
    header = 8 + int.from_bytes(good[:8], "little")
    places = [*range(8), *chance.sample(range(8, header), 120), *chance.sample(range(header, len(good)), 120)]
    for place in places:
        damaged = bytearray(good)
        damaged[place] ^= 1 << chance.randrange(8)
        refused(bytes(damaged), tmp_path)


def test_overwritten_stretches_are_found(good: bytes, tmp_path: Path) -> None:
    chance = random.Random(1)
    for _ in range(60):
        start, length = chance.randrange(len(good)), chance.randrange(1, 200)
        damaged = good[:start] + chance.randbytes(length) + good[start + length :]
        refused(damaged, tmp_path)


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes(seed: int, tmp_path: Path) -> None:
    refused(random.Random(seed).randbytes(2000), tmp_path)


# headers that lie, with a right checksum

UNREADABLE = "the tensors cannot be read: "
"""What the safetensors package refuses, in its own words."""
HEADERS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a huge shape": (lambda h: h["1.bias"].update(shape=[1 << 40]), UNREADABLE),
    "a shape beyond all": (
        lambda h: h["1.bias"].update(shape=[10**30]),
        UNREADABLE,
    ),
    "many axes": (lambda h: h["1.bias"].update(shape=[1] * 100), UNREADABLE),
    "a negative axis": (lambda h: h["1.bias"].update(shape=[-4]), UNREADABLE),
    "a shape of floats": (lambda h: h["1.bias"].update(shape=[4.0]), UNREADABLE),
    "a shape of booleans": (lambda h: h["1.bias"].update(shape=[True]), UNREADABLE),
    "no list": (lambda h: h["1.bias"].update(shape="4"), UNREADABLE),
    "huge offsets": (
        lambda h: h["1.bias"].update(data_offsets=[0, 1 << 45], shape=[1 << 43]),
        UNREADABLE,
    ),
    "offsets that overlap": (
        lambda h: h["1.bias"].update(data_offsets=h["1.weight"]["data_offsets"]),
        UNREADABLE,
    ),
    "three offsets": (
        lambda h: h["1.bias"].update(data_offsets=[0, 8, 16]),
        UNREADABLE,
    ),
    "another type": (lambda h: h["1.bias"].update(dtype="C64"), "'1.bias': the type 'C64' is not one of F64"),
    "a type that is none": (lambda h: h["1.bias"].update(dtype=["F32"]), "'1.bias': the type"),
    "integers for floats": (lambda h: h["1.bias"].update(dtype="I32"), "'1.bias' is I32 .4,."),
    "something more": (
        lambda h: h["1.bias"].update(code="print()"),
        "'1.bias' must say dtype, shape and data_offsets",
    ),
    "no entry": (lambda h: h.update({"1.bias": 3}), "'1.bias' must say"),
    "a missing tensor": (lambda h: h.pop("3.weight"), UNREADABLE),
    "an unknown name": (
        lambda h: h.update({"1.bios": h.pop("1.bias")}),
        "'1.bias' of the network is missing",
    ),
    "swapped names": (
        lambda h: h.update({"0.weight": h["3.weight"], "3.weight": h["0.weight"]}),
        "'0.weight' is U8 .*, not U8",
    ),
    "scales by another name": (
        lambda h: h.update({"x": h.pop("hwbmpq:scales")}),
        "'hwbmpq:scales' is missing",
    ),
    "not clipping points": (lambda h: h.update({"x": h.pop("hwbmpq:inputs")}), "'hwbmpq:inputs' is missing"),
    "no metadata": (lambda h: h.pop("__metadata__"), "not written by hwbmpq"),
    "metadata of others": (lambda h: h.update(__metadata__={"format": "pt"}), "not written by hwbmpq"),
    "more metadata": (lambda h: h["__metadata__"].update(more="x"), "must hold two texts"),
    "metadata that are no text": (lambda h: h["__metadata__"].update(hwbmpq=[1]), "must hold two texts"),
    "a huge name": (
        lambda h: h.update({"n" * 100_000: h.pop("1.bias")}),
        "'1.bias' of the network is missing",
    ),
    "half a character": (
        lambda h: h.update({"\ud800": h.pop("1.bias")}),
        UNREADABLE,
    ),
}


@pytest.mark.parametrize("case", HEADERS)
def test_headers_that_lie(case: str, good: bytes, tmp_path: Path) -> None:
    edit, message = HEADERS[case]
    header, body = parts(good)
    edit(header)
    refused(joined(header, body), tmp_path, message)


METADATA: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another schema": (lambda m: m.update(schema="hwbmpq/packed/v2"), "has the schema 'hwbmpq/packed/v2'"),
    "no schema": (lambda m: m.pop("schema"), "has the schema None"),
    "an unknown field": (lambda m: m.update(code="x"), "code: Extra inputs"),
    "no layers": (lambda m: m.pop("layers"), "layers: Field required"),
    "a width of 1": (lambda m: m["layers"][1].update(weight_bits=1), "1 or 3 is not a width"),
    "a width of text": (lambda m: m["layers"][1].update(weight_bits="3"), "layers.1.weight_bits: "),
    "a packed width of 32": (
        lambda m: m["layers"][1].update(weight_bits=32),
        "layer '3': weights of 32 bits",
    ),
    "another width": (lambda m: m["layers"][1].update(weight_bits=4), "'3.weight' is U8 .*, not U8"),
    "an activation width of 99": (lambda m: m["layers"][1].update(activation_bits=99), "99 is not a width"),
    "a huge shape": (
        lambda m: m["layers"][1].update(shape=[1 << 40, 1 << 40]),
        "'3.weight' is U8 .*, not U8",
    ),
    "an axis of zero": (lambda m: m["layers"][1].update(shape=[0, 4, 3, 3]), "layers.1.shape.0"),
    "another shape": (
        lambda m: m["layers"][1].update(shape=[4, 6, 3, 3], channel_axis=1),
        "layer '3' has a weight of shape",
    ),
    "an axis too far": (lambda m: m["layers"][1].update(channel_axis=4), "there is no axis 4"),
    "another axis": (lambda m: m["layers"][1].update(channel_axis=1), "'hwbmpq:scales' is F32"),
    "one scale for all": (lambda m: m["layers"][1].pop("channel_axis"), "'hwbmpq:scales' is F32"),
    "an unknown layer": (lambda m: m["layers"][1].update(name="9"), "'9.weight' is missing"),
    "a layer twice": (lambda m: m["layers"].append(m["layers"][1]), "two layers have the same name"),
    "a quantizer too far": (lambda m: m["layers"][1].update(quantizer=7), "the layers use the quantizers"),
    "an unused quantizer": (
        lambda m: m["quantizers"].append(m["quantizers"][0]),
        "the layers use the quantizers",
    ),
    "a float layer as packed": (
        lambda m: m["layers"][2].update(is_packed=True, weight_bits=4),
        "'5.weight' is F32",
    ),
    "a packed layer as float": (lambda m: m["layers"][1].update(is_packed=False), "'hwbmpq:scales' is F32"),
    "a parameter as computed": (lambda m: m["layers"][1].update(is_computed="yes"), "layers.1.is_computed"),
    "endless calibration": (lambda m: m["quantizers"][0].update(batches=10**9), "quantizers.0.batches"),
    "no sign": (lambda m: m["quantizers"][0].pop("signed"), "quantizers.0.signed: Field required"),
    "another type": (lambda m: m["layers"][1].update(dtype="I8"), "layers.1.dtype"),
    "a name for nothing": (lambda m: m["shared"].update({"6.bias": "nothing"}), "'nothing' is missing"),
    "a name for itself": (
        lambda m: m["shared"].update({"5.bias": "5.bias"}),
        "a further name of one tensor is the name of another",
    ),
    "a name for what is stored": (
        lambda m: m["shared"].update({"1.bias": "1.weight"}),
        "'1.bias' is stored, but also listed as a name",
    ),
    "a name that is not shared": (lambda m: m["shared"].clear(), "'6.bias' of the network is missing"),
    "negative classes": (lambda m: m["origin"].update(num_classes=-1), "origin.num_classes"),
    "a long input size": (lambda m: m["origin"].update(input_size=[1] * 99), "origin.input_size"),
}


@pytest.mark.parametrize("case", METADATA)
def test_metadata_that_lie(case: str, good: bytes, tmp_path: Path) -> None:
    edit, message = METADATA[case]
    header, body = parts(good)
    metadata = json.loads(header["__metadata__"]["hwbmpq"])
    edit(metadata)
    header["__metadata__"]["hwbmpq"] = json.dumps(metadata)
    refused(joined(header, body), tmp_path, message)


def changed(good: bytes, name: str, values: bytes) -> bytes:
    header, body = parts(good)
    start, _ = header[name]["data_offsets"]
    return joined(header, body[:start] + values + body[start + len(values) :])


FLOATS = {"infinite": float("inf"), "NaN": float("nan"), "zero": 0.0, "negative": -1.0}


@pytest.mark.parametrize("value", FLOATS)
def test_scales_that_are_none(value: str, good: bytes, tmp_path: Path) -> None:
    values = torch.tensor([FLOATS[value]]).numpy().tobytes()
    refused(
        changed(good, "hwbmpq:scales", values), tmp_path, "hwbmpq:scales holds values that are not scales"
    )


@pytest.mark.parametrize("value", ["infinite", "NaN"])
def test_clipping_points_that_are_none(value: str, good: bytes, tmp_path: Path) -> None:
    values = torch.tensor([FLOATS[value]]).numpy().tobytes()
    refused(changed(good, "hwbmpq:inputs", values), tmp_path, "not clipping points")


def test_codes_that_are_none(good: bytes, tmp_path: Path) -> None:
    refused(changed(good, "3.weight", b"\xff"), tmp_path, r"3\.weight: a code is outside of ±3")


def test_codes_that_do_not_reach_the_end_of_their_range_keep_the_stored_scale(
    good: bytes, tmp_path: Path
) -> None:
    """The paper's quantizer would find another scale for them; learned ones need not use the whole range."""
    header, _ = parts(good)
    size = header["3.weight"]["shape"][0]
    ones = sum(4 << 3 * place for place in range(size * 8 // 3)).to_bytes(size, "little")
    path = tmp_path / "model.safetensors"
    path.write_bytes(changed(good, "3.weight", ones))
    weight = read_packed(path).weights()["3"]
    assert bool((weight.codes == 1).all())
    assert torch.equal(weight.scale, read_packed_bytes(good, tmp_path).weights()["3"].scale)


def read_packed_bytes(data: bytes, folder: Path) -> PackedFile:
    path = folder / "unchanged.safetensors"
    path.write_bytes(data)
    return read_packed(path)


# JSON


def test_deep_json(good: bytes, tmp_path: Path) -> None:
    _, body = parts(good)
    refused(joined("[" * 100_000, body), tmp_path, "header cannot be read")
    header, body = parts(good)
    header["__metadata__"]["hwbmpq"] = '{"schema":' + "[" * 100_000
    refused(joined(header, body), tmp_path, "metadata cannot be read")


def test_names_that_stand_twice(good: bytes, tmp_path: Path) -> None:
    header, body = parts(good)
    entry = json.dumps(header["1.bias"])
    header["__metadata__"]["blake2b"] = CHECKSUM
    text = json.dumps(header)[:-1] + f', "1.bias": {entry}}}'
    refused(joined(text, body), tmp_path, "'1.bias' appears twice")
    metadata = header["__metadata__"]
    metadata["hwbmpq"] = metadata["hwbmpq"][:-1] + ', "hwbmpq": "2"}'
    refused(joined(header, body), tmp_path, "metadata cannot be read: 'hwbmpq' appears twice")


@pytest.mark.parametrize(
    "text", ["", "3", "null", "[]", "NaN", '{"a": NaN}', "{" + '"a":' + "1" * 5000 + "}", "\ufeff{}"]
)
def test_headers_that_are_none(text: str, good: bytes, tmp_path: Path) -> None:
    refused(joined(text, parts(good)[1]), tmp_path)


def test_bytes_at_the_end_are_found_even_with_a_right_checksum(good: bytes, tmp_path: Path) -> None:
    header, body = parts(good)
    refused(joined(header, body + b"\0"), tmp_path, UNREADABLE)


def test_a_checksum_that_hides(good: bytes, tmp_path: Path) -> None:
    header, body = parts(good)
    text = json.dumps(
        {**header, "__metadata__": {**header["__metadata__"], "blake2b": CHECKSUM}}
    )  # with spaces
    refused(joined(text, body), tmp_path, "the checksum is not where it belongs")


# memory


@pytest.mark.parametrize("length", [1 << 25, 1 << 40, (1 << 64) - 1])
def test_a_header_said_to_be_huge(length: int, good: bytes, tmp_path: Path) -> None:
    refused(length.to_bytes(8, "little") + good[8:], tmp_path, "cut short")


LIMITED = """
import resource, sys, torch, hwbmpq, hwbmpq.export.packed.load
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (512 << 20),) * 2)
for path in sys.argv[1:]:
    try:
        hwbmpq.load(path)
    except hwbmpq.export.PackedFileError as error:
        print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
def test_networks_said_to_be_huge_are_not_built(good: bytes, tmp_path: Path) -> None:
    """In a process that could not build them: a billion classes, a network of gigabytes, a file full of holes."""
    paths = []
    for number, origin in enumerate(
        [
            {"model": "hwbmpq:resnet8", "num_classes": 10**9},
            {"model": "torchvision:vit_h_14", "num_classes": 5},
            {"model": "torchvision:no_such_net", "num_classes": 5},
        ]
    ):
        header, body = parts(good)
        metadata = json.loads(header["__metadata__"]["hwbmpq"])
        metadata["origin"] = origin
        header["__metadata__"]["hwbmpq"] = json.dumps(metadata)
        paths.append(tmp_path / f"{number}.safetensors")
        paths[-1].write_bytes(joined(header, body))
    paths.append(tmp_path / "holes.safetensors")
    with paths[-1].open("wb") as file:
        file.write((1 << 34).to_bytes(8, "little"))
        file.truncate(1 << 35)
    found = subprocess.run([sys.executable, "-c", LIMITED, *map(str, paths)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    messages = found.stdout.splitlines()
    assert "origin: no tensor has 1000000000 classes" in messages[0]
    assert "1.safetensors: layer '0': the network has no such layer" in messages[1]
    assert "origin: no torchvision classifier named 'no_such_net'" in messages[2]
    assert "almost all of it is holes" in messages[3]
