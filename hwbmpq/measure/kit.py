"""A kit: everything to measure another device with, in one zip file."""

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from hwbmpq.errors import HwbmpqError
from hwbmpq.io import atomic_write
from hwbmpq.measure import kit_runner
from hwbmpq.measure.manifest import LayerKernel, write_kernels
from hwbmpq.values import Precision

README = """\
Times the layers of some networks on this device, for hwbmpq.

1. Python 3.9 or newer, and:   python -m pip install onnxruntime numpy
2. Leave the device alone, then: python run.py
   (--threads 4 for four cores, --rounds 40 for steadier numbers; Ctrl-C ends it early and keeps complete rounds)
3. Bring results.json back:      hwbmpq targets import NAME results.json
"""


def write_kit(
    path: Path,
    kernels: Sequence[LayerKernel],
    *,
    widths: Sequence[Precision],
    models: Sequence[str],
    overwrite: bool = False,
    on_written: Callable[[int, int], None] | None = None,
) -> Path:
    """Write a zip file with one folder in it: kernels, manifest, the runner and how to use it."""
    check_kit(path, overwrite=overwrite)
    folder = path.stem
    with atomic_write(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as kit:
        kit.writestr(f"{folder}/README.txt", README)
        kit.write(kit_runner.__file__, f"{folder}/run.py")
        write_kernels(
            lambda name, content: kit.writestr(f"{folder}/{name}", content),
            kernels,
            widths=widths,
            models=models,
            on_kernel=on_written,
        )
    return path


def check_kit(path: Path, *, overwrite: bool) -> None:
    """Before anything slow: whether the kit can be written."""
    if path.suffix != ".zip":
        raise HwbmpqError(f"--kit {path}: a kit is a zip file", hint=f"--kit {path.name}.zip")
    if not path.absolute().parent.is_dir():
        raise HwbmpqError(f"--kit {path}: there is no folder {path.absolute().parent}")
    if path.exists() and not overwrite:
        raise HwbmpqError(f"{path} exists", hint="give another name, or --overwrite to replace it")
