"""Single files that a stranger may send: profiles, sensitivities, images, arrays, weights, programs, graphs."""

import io
import json
import os
import pickle
import re
import shutil
import struct
import zipfile
import zlib

import numpy as np
import torch
from hostile import Place, case
from hostile_folders import DRAWING, _Runs, bomb, copy, doubled_key, set_config
from torch import nn

from hwbmpq.export.packed.container import write_container
from hwbmpq.graph.operations import WEIGHTED_MODULES
from hwbmpq.models import load_model

PLAN = ["plan", "--model", "hwbmpq:resnet8", "--target", "mpic", "--budget", "memory=12x"]
SENSITIVITY = [*PLAN, "--sensitivity", "../sent/scores.json"]
ARRAYS = ["evaluate", "../sent/run", "--data", "npz:../sent/data.npz"]
IMAGES = ["evaluate", "../sent/run", "--data", "folder:../sent/images"]


# profiles


def profile(place: Place, more: str, name: str = "device") -> list[str]:
    (place.sent / f"{name}.yaml").write_text(f"name: {name}\nextends: mpic\n{more}")
    return ["targets", "show", f"../sent/{name}.yaml"]


@case("device.yaml")
def profile_of_aliases(place: Place) -> list[str]:
    return profile(place, bomb())


@case("device.yaml")
def profile_of_long_text_by_aliases(place: Place) -> list[str]:
    more = f"text: &t {'x' * 500}\nnotes: &a0 [{', '.join(['*t'] * 30)}]\nmore: [{', '.join(['*a0'] * 60)}]\n"
    return [*profile(place, more), "--json"]


@case()
def profile_that_draws(place: Place) -> list[str]:
    title = json.dumps(f"Board {DRAWING} [red]red[/red]")
    return profile(place, f"title: {title}\nnotes: [{title}]\n")


@case()
def profile_with_keys_that_draw(place: Place) -> list[str]:
    return profile(place, f"{json.dumps(DRAWING)}: 5\nclock: {json.dumps(DRAWING)}\n")


@case("device.yaml")
def profile_that_reads_other_files(place: Place) -> list[str]:
    return profile(place, "lookup_tables:\n- {id: t, file: ../../../../../../etc/passwd}\n")


@case("device.yaml")
def profile_with_a_table_of_brackets(place: Place) -> list[str]:
    (place.sent / "t.json").write_text("[" * 1_000_000)
    return profile(place, "lookup_tables:\n- {id: t, file: t.json}\n")


@case("settings.yaml")
def settings_file_of_aliases(place: Place) -> list[str]:
    (place.sent / "settings.yaml").write_text(bomb())
    return ["compress", "--config", "../sent/settings.yaml"]


# sensitivities


@case("scores.json")
def sensitivities_that_repeat(place: Place) -> list[str]:
    names = [f'"layer{n}": 1' for n in range(90_000)]
    (place.sent / "scores.json").write_text("{" + ",".join([*names, names[-1]]) + "}")
    return SENSITIVITY


@case("scores.json")
def sensitivities_of_brackets(place: Place) -> list[str]:
    (place.sent / "scores.json").write_text('{"a":' * 200_000)
    return SENSITIVITY


@case("scores.json")
def sensitivities_of_empty_lists(place: Place) -> list[str]:
    (place.sent / "scores.json").write_text("[" + "[]," * 20_000_000 + "[]]")
    return SENSITIVITY


@case()
def sensitivities_that_draw(place: Place) -> list[str]:
    (place.sent / "scores.json").write_text(json.dumps({f"conv1{DRAWING}": 1.0, "[red]": 2.0}))
    return SENSITIVITY


@case("scores.json")
def sensitivities_are_a_pipe(place: Place) -> list[str]:
    os.mkfifo(place.sent / "scores.json")
    return SENSITIVITY


@case("scores.json")
def sensitivities_are_endless(place: Place) -> list[str]:
    (place.sent / "scores.json").symlink_to("/dev/zero")
    return SENSITIVITY


# arrays


def array(header: bytes, body: bytes = b"", *, version: bytes = b"\1\0") -> bytes:
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header + body


def arrays(place: Place, **entries: bytes) -> list[str]:
    copy(place)
    labels = io.BytesIO()
    np.save(labels, np.zeros(4, np.int64))
    with zipfile.ZipFile(place.sent / "data.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {"y_test": labels.getvalue(), "y_train": labels.getvalue(), **entries}.items():
            archive.writestr(f"{name}.npy", content)
    return ARRAYS


_HEADER = "{{'descr': {}, 'fortran_order': False, 'shape': {}, }}\n"


@case("data.npz")
def array_that_claims_a_huge_shape(place: Place) -> list[str]:
    return arrays(place, x_test=array(_HEADER.format("'|u1'", "(4, 100000, 100000, 3)").encode()))


@case("data.npz")
def array_that_claims_an_impossible_shape(place: Place) -> list[str]:
    return arrays(place, x_test=array(_HEADER.format("'|u1'", f"({10**30}, -5)").encode()))


@case("data.npz")
def array_with_a_broken_header(place: Place) -> list[str]:
    return arrays(place, x_test=array(b"{'descr': (((((\n"), x_train=array(b"'''\n"))


@case("data.npz")
def array_of_objects(place: Place) -> list[str]:
    body = pickle.dumps(_Runs(place.evil_code))
    return arrays(place, x_test=array(_HEADER.format("'|O'", "(4,)").encode(), body))


@case("data.npz")
def array_that_unpacks_to_gigabytes(place: Place) -> list[str]:
    return arrays(place, x_test=array(_HEADER.format("'|u1'", "(4, 8192, 8192, 4)").encode(), bytes(1 << 30)))


@case("data.npz")
def arrays_are_a_pipe(place: Place) -> list[str]:
    copy(place)
    os.mkfifo(place.sent / "data.npz")
    return ARRAYS


# images


def images(place: Place, content: bytes, name: str = "a.png") -> list[str]:
    copy(place)
    for part in ("train", "val"):
        for label in range(10):
            folder = place.sent / "images" / part / str(label)
            folder.mkdir(parents=True)
            (folder / os.fsdecode(os.fsencode(name))).write_bytes(content)
    return IMAGES


@case("cannot be decoded")
def postscript_called_png(place: Place) -> list[str]:
    shell = place.here / "gs"  # the first on the path of a careless user
    shell.write_text(f"#!/bin/sh\ntouch {place.marker}\n")
    shell.chmod(0o755)
    text = (
        "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100 100\n%%EndComments\n100 100 scale\nshowpage\n%%EOF\n"
    )
    words = images(place, text.encode())
    code = (
        "import os, sys; os.environ['PATH'] = os.getcwd() + os.pathsep + os.environ['PATH']; "
        f"import hwbmpq.cli.main as m; sys.exit(m.main({words!r}))"
    )
    return ["-c", code]


def _png(width: int, height: int, colour: int = 2) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    row = bytes(1 + width * {0: 1, 2: 3, 6: 4}[colour])
    packer = zlib.compressobj(9)
    body = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    head = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@case("cannot be decoded")
def image_that_unpacks_to_half_a_gigabyte(place: Place) -> list[str]:
    return images(place, _png(13_000, 13_000))


@case("cannot be decoded")
def image_with_transparency_that_unpacks_to_half_a_gigabyte(place: Place) -> list[str]:
    return images(place, _png(9_000, 9_000, colour=6))


@case("cannot be decoded")
def image_that_is_damaged_and_draws(place: Place) -> list[str]:
    return images(place, b"\x89PNG\r\n\x1a\n" + b"\0" * 40, name=f"a\x1b[31m\udcff{DRAWING}.png")


@case()
def image_is_a_pipe(place: Place) -> list[str]:
    words = images(place, _png(8, 8))
    for path in (place.sent / "images").rglob("*.png"):
        path.unlink()
        os.mkfifo(path)
    return words


# weights, programs, graphs


@case("weights.pt")
def weights_run_code(place: Place) -> list[str]:
    torch.save({"conv1.weight": _Runs(place.evil_code)}, place.sent / "weights.pt")
    return [*PLAN, "--weights", "../sent/weights.pt", "--sensitivity", "weight-error"]


@case("weights.pt")
def weights_whose_key_never_hashes(place: Place) -> list[str]:
    (place.sent / "weights.pt").write_bytes(doubled_key())
    return [*PLAN, "--weights", "../sent/weights.pt", "--sensitivity", "weight-error"]


@case("weights.pt")
def weights_with_a_long_name(place: Place) -> list[str]:
    torch.save({DRAWING * 100_000: 5}, place.sent / "weights.pt")
    return [*PLAN, "--weights", "../sent/weights.pt", "--sensitivity", "weight-error"]


@case("weights.pt")
def weights_are_a_pipe(place: Place) -> list[str]:
    os.mkfifo(place.sent / "weights.pt")
    return [*PLAN, "--weights", "../sent/weights.pt", "--sensitivity", "weight-error"]


class _Dynamic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).mean((2, 3))


def program(place: Place, expression: str = "") -> list[str]:
    """A program of torch.export, in which the shapes are expressions of our own."""
    path = place.sent / "net.pt2"
    dynamic = {"x": {0: torch.export.Dim("batch")}}
    torch.export.save(
        torch.export.export(_Dynamic(), (torch.randn(2, 3, 8, 8),), dynamic_shapes=dynamic), path
    )
    shutil.move(path, place.sent / "old.pt2")
    with zipfile.ZipFile(place.sent / "old.pt2") as old, zipfile.ZipFile(path, "w") as new:
        for entry in old.infolist():
            content = old.read(entry)
            if expression and entry.filename.endswith("model.json"):
                new_text = f'"expr_str": {json.dumps(expression)}'
                content = re.sub(
                    r'"expr_str": "[^"]*"', lambda _, text=new_text: text, content.decode()
                ).encode()
            new.writestr(entry.filename, content)
    return ["inspect", "--model", "file:../sent/net.pt2"]


@case()
def program_whose_shapes_run_code(place: Place) -> list[str]:
    return program(place, place.evil_code)


@case("net.pt2")
def program_with_pickled_objects(place: Place) -> list[str]:
    words = program(place)
    with zipfile.ZipFile(place.sent / "net.pt2", "a") as archive:
        archive.writestr("net/data/custom_obj_0", pickle.dumps(_Runs(place.evil_code)))
    return words


_LOAD = """
import hwbmpq
from hwbmpq.errors import HwbmpqError
try:
    hwbmpq.load("../sent/huge.safetensors")
except HwbmpqError as error:
    print("error:", error)
    raise SystemExit(2)
"""


@case()
def packed_file_that_names_a_huge_network(place: Place) -> list[str]:
    """Every layer of VGG-16 is described, and none of its weights is there."""
    network = load_model("torchvision:vgg16", device="meta", num_classes=10, seed=0).network
    modules = {
        name: module for name, module in network.named_modules() if isinstance(module, WEIGHTED_MODULES)
    }
    widths = {"weight_bits": 32, "activation_bits": 32, "is_computed": True, "is_packed": False}
    layers = [
        {"name": name, "shape": list(module.weight.shape), "quantizer": 0, **widths}
        for name, module in modules.items()
    ]
    content = {
        "schema": "hwbmpq/packed/v1",
        "hwbmpq": "1",
        "origin": {"model": "torchvision:vgg16", "num_classes": 10},
        "layers": layers,
        "quantizers": [{"name": "q", "signed": True, "trainable": False, "batches": 0, "has_range": False}],
    }
    tensors = {f"{name}.bias": torch.zeros(module.bias.shape) for name, module in modules.items()}
    tensors["hwbmpq:inputs"] = torch.ones(1, 2)
    write_container(place.sent / "huge.safetensors", tensors, json.dumps(content, separators=(",", ":")))
    return ["-c", _LOAD]


@case()
def graph_that_reads_other_files(place: Place) -> list[str]:
    import onnx
    from onnx import TensorProto, helper

    copy(place)
    weight = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1])
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "/etc/passwd"), ("offset", "0"), ("length", "4")):
        entry = weight.external_data.add()
        entry.key, entry.value = key, value
    node = helper.make_node("Add", ["x", "w"], ["y"])
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([node], "g", [infos[0]], [infos[1]], [weight])
    (place.sent / "net.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    return ["evaluate", "../sent/run", "--runtime", "onnxruntime", "--file", "../sent/net.onnx"]


@case("loops")
def graph_that_never_ends(place: Place) -> list[str]:
    from onnx import TensorProto, helper

    copy(place)
    turn, go, on = (
        helper.make_tensor_value_info(name, kind, [])
        for name, kind in (("i", TensorProto.INT64), ("go", TensorProto.BOOL), ("on", TensorProto.BOOL))
    )
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "abxy"]
    nodes = [helper.make_node("Neg", ["a"], ["b"]), helper.make_node("Identity", ["go"], ["on"])]
    body = helper.make_graph(nodes, "body", [turn, go, infos[0]], [on, infos[1]])
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    count = helper.make_tensor("n", TensorProto.INT64, [], [1 << 62])
    graph = helper.make_graph([loop], "g", [infos[2]], [infos[3]], [count])
    (place.sent / "net.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    return ["evaluate", "../sent/run", "--runtime", "onnxruntime", "--file", "../sent/net.onnx"]


@case()
def results_that_draw(place: Place) -> list[str]:
    (place.sent / "results.json").write_text(json.dumps({"schema": DRAWING, "machine": DRAWING}))
    return ["targets", "import", "board", "../sent/results.json"]


@case()
def profile_named_by_a_run(place: Place) -> list[str]:
    run = copy(place)
    profile(place, bomb())
    set_config(run, target=str(place.sent / "device.yaml"))
    return ["compress", "--resume", "../sent/run"]
