"""What ``fuzz.py`` lets be read of run folders and data: settings, records, checkpoints, sensitivities, arrays, programs."""

import io
import json
import pickletools
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz_changes import BETWEEN

Read = Callable[[bytes], None]
_PAGES = 64
"""One page for so many inputs: drawing takes a second."""
COMPRESS = (
    "compress --model hwbmpq:resnet8 --target mpic --budget memory=24KiB --data digits --train-images 64 --test-images 32 "
    "--batch-size 16 --epochs 3 --quiet"
)


def finished_run(folder: Path) -> Path:
    """A run to change; made in a process of its own, as training takes memory that is not the reader's."""
    words = [sys.executable, "-m", "hwbmpq", *COMPRESS.split(), "--run-dir", str(folder / "run")]
    subprocess.run(words, check=True, capture_output=True)
    return folder / "run"


def config(folder: Path) -> tuple[Read, list[bytes]]:
    from hwbmpq.training import RunDirectory

    run = finished_run(folder)
    text = (run / "config.yaml").read_bytes()
    aliases = b"a: &a [x, x]\nb: &b [*a, *a]\nlr: *b\n<<: {c: *b}\n"
    types = b"epochs: '3'\nlr: 1e-3\nbits: [2, 4]\nbudgets: {memory: 12x, latency: 8ms}\nmodel: file:net.py:make\n"

    def read(data: bytes) -> None:
        (run / "config.yaml").write_bytes(data)
        RunDirectory(run).open().load_settings()

    return read, [text, text + aliases, text + types, aliases, types]


def records(folder: Path) -> tuple[Read, list[bytes]]:
    """The JSON of a run folder, shown in the terminal and now and then as a page."""
    from hwbmpq.cli.console import Console
    from hwbmpq.cli.render.report import print_report
    from hwbmpq.report import report_on_run
    from hwbmpq.report.html import render_page

    run = finished_run(folder)
    names = ("facts.json", "allocation.json", "history.jsonl")
    parts = {name: _values(run / name) for name in names}

    def read(data: bytes) -> None:
        texts = _split_records(data[1:], names)
        for name, text in texts.items():
            (run / name).write_bytes(text)
        report = report_on_run(run)
        print_report(Console(file=io.StringIO(), width=80), report, all_rows=True)
        if data[:1] and data[0] % _PAGES == 0:
            render_page([report])

    short = {**parts, "history.jsonl": parts["history.jsonl"][-1:]}
    return read, [b"\1" + json.dumps(parts).encode(), b"\0" + json.dumps(short).encode()]


def _values(path: Path) -> Any:
    lines = path.read_text().splitlines()
    return [json.loads(line) for line in lines] if path.suffix == ".jsonl" else json.loads(path.read_text())


def _split_records(data: bytes, names: tuple[str, ...]) -> dict[str, bytes]:
    """One JSON text as the files of a run; what is not JSON becomes the history."""
    try:
        content = json.loads(data)
        parts = {name: content[name] for name in names if name in content}
    except (ValueError, TypeError, RecursionError):
        return {names[-1]: data}
    return {
        name: b"\n".join(json.dumps(line).encode() for line in value)
        if name.endswith(".jsonl") and isinstance(value, list)
        else json.dumps(value).encode()
        for name, value in parts.items()
    }


def history(folder: Path) -> tuple[Read, list[bytes]]:
    """``history.jsonl`` byte by byte."""
    from hwbmpq.report import report_on_run

    run = finished_run(folder)
    text = (run / "history.jsonl").read_bytes()

    def read(data: bytes) -> None:
        (run / "history.jsonl").write_bytes(data)
        report_on_run(run)

    return read, [text, text.splitlines()[0], b"", b"{}\n", text.splitlines()[-1] * 2]


def checkpoint(folder: Path) -> tuple[Read, list[bytes]]:
    """A checkpoint whose pickle is changed, in an archive that is whole and with a checksum that fits."""
    from hwbmpq.training import check_state
    from hwbmpq.training.checkpoint import _NO_COMMENT, _comment, unpacked

    run = finished_run(folder)
    entries, seeds = {}, []
    for name in ("best.pt", "checkpoint.pt"):
        with zipfile.ZipFile(run / name) as archive:
            entries |= {entry.filename.partition("/")[2]: archive.read(entry) for entry in archive.infolist()}
            seeds.append(
                pickletools.optimize(archive.read(f"{archive.namelist()[0].partition('/')[0]}/data.pkl"))
            )

    def read(data: bytes) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in {**entries, "data.pkl": data}.items():
                archive.writestr(f"archive/{name}", content)
        whole = buffer.getvalue()
        comment = _comment(whole)
        path = run / "checkpoint.pt"
        path.write_bytes(whole[: -len(_NO_COMMENT)] + len(comment).to_bytes(2, "little") + comment)
        check_state(unpacked(path))

    return read, seeds


def sensitivity(folder: Path) -> tuple[Read, list[bytes]]:
    from hwbmpq.sensitivity import load_sensitivity, save_sensitivity
    from hwbmpq.values import Sensitivity

    path = folder / "scores.json"
    found = Sensitivity(
        method="enbg", scores={"stem": 0.3, "head": 1e-30}, errors={"stem": {2: 3.5, 16: 0.0}}, remarks=("a",)
    )
    save_sensitivity(found, path, model="net")
    seeds = [b"\1" + path.read_bytes(), b'\1{"stem": 1.5, "head": 2}', b'\1{"a": 1, "a": 2}']

    def read(data: bytes) -> None:
        path.write_bytes(data[1:])
        load_sensitivity(path)

    return read, seeds


def npz(folder: Path) -> tuple[Read, list[bytes]]:
    """Arrays in an archive that is whole (three inputs in four), or the bytes of the archive."""
    import numpy as np

    from hwbmpq.data import open_data

    path = folder / "data.npz"
    images, labels = np.arange(4 * 8 * 8 * 3, dtype=np.uint8).reshape(4, 8, 8, 3), np.arange(4) % 2
    seeds = []
    for x, y in [(images, labels), (images[..., 0] / np.float32(255), labels[:, None].astype(np.uint8))]:
        np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
        with zipfile.ZipFile(path) as archive:
            arrays = [archive.read(f"{name}.npy") for name in ("x_train", "y_train")]
        seeds += [b"\1" + BETWEEN.join(arrays), b"\0" + path.read_bytes()]

    def read(data: bytes) -> None:
        if data[:1] and data[0] % 4:
            x, _, y = data[1:].partition(BETWEEN)
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, content in (("x_train", x), ("y_train", y), ("x_test", x), ("y_test", y)):
                    archive.writestr(f"{name}.npy", content)
        else:
            path.write_bytes(data[1:])
        open_data(f"npz:{path}").sized((3, 8, 8))

    return read, seeds


def pt2(folder: Path) -> tuple[Read, list[bytes]]:
    """The JSON of a program of torch.export."""
    import torch
    from torch import nn

    from hwbmpq.models.exported import load_exported

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 2, 3), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.conv(x).relu().mean((2, 3)))

    path, original = folder / "net.pt2", folder / "original.pt2"
    shapes = {"x": {0: torch.export.Dim("batch")}}
    torch.export.save(torch.export.export(Net(), (torch.zeros(2, 3, 6, 6),), dynamic_shapes=shapes), path)
    shutil.move(path, original)
    with zipfile.ZipFile(original) as archive:
        entries = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    program = next(name for name in entries if name.endswith("model.json"))

    def read(data: bytes) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in {**entries, program: data[1:]}.items():
                archive.writestr(name, content)
        load_exported(path)

    return read, [b"\1" + entries[program]]
