"""What each tool's export weighs: the trained ResNet-20 with all its weights at 8, 4 and 2 bits, activations at 8.

    HWBMPQ_DATA=data python benchmarks/peers/delivered_bytes.py -o benchmarks/results/peers_bytes.json

Every tool writes the formats that it has for other runtimes, all files of one export counted. What a tool refuses or fails to write is
kept with its message.
"""

import argparse
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from tables import delivered_bytes
from task import calibration_images, trained_network
from torch import nn
from train_step import in_brevitas, modelopt_config

from hwbmpq.measure.kit_runner import machine_facts

WIDTHS = (8, 4, 2)
PACKAGES = (
    "torch",
    "onnx",
    "hwbmpq",
    "brevitas",
    "nvidia-modelopt",
    "aimet-torch",
    "model-compression-toolkit",
    "nncf",
)


class NotOfferedError(Exception):
    """A tool says of itself that it does not do this."""


Export = Callable[[int, Path], None]
"""Writes a network at a weight width into a folder."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    from hwbmpq.data.torchvision_import import import_torchvision

    import_torchvision()
    rows = [_row(name, export) for name, export in EXPORTS.items()]
    content = {
        "machine": machine_facts(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "rows": rows,
    }
    args.output.write_text(json.dumps(content, indent=1) + "\n")
    print("\n\n".join(delivered_bytes(content).values()))


def _row(name: str, export: Export) -> dict[str, Any]:
    row: dict[str, Any] = {"format": name}
    for width in WIDTHS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                export(width, Path(folder))
            except Exception as error:  # a result like any other: the tool does not deliver this
                row[str(width)] = f"{type(error).__name__}: {error}"[:300]
            else:
                row[str(width)] = sum(
                    file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()
                )
    print(row, flush=True)
    return row


def as_float(_: int, folder: Path) -> None:
    torch.onnx.export(
        trained_network(), (_image(),), str(folder / "m.onnx"), dynamo=True, external_data=False
    )


def _image() -> torch.Tensor:
    return calibration_images()[0][:1]


def by_hwbmpq(form: str) -> Export:
    """The command line: a run without training, and its export."""

    def export(width: int, folder: Path) -> None:
        run = folder / "run"
        _hwbmpq(
            *("compress", "--model", "hwbmpq:resnet20", "--target", "generic", "--bits", str(width)),
            *("--activation-bits", "8", "--epochs", "0", "--method", "hpq", "--run-dir", str(run)),
        )
        if form == "packed":
            shutil.move(run / "model.safetensors", folder / "kept")
        else:
            _hwbmpq("export", str(run), "-o", str(folder / "kept.onnx"))
        shutil.rmtree(run)

    return export


def _hwbmpq(*words: str) -> None:
    from hwbmpq.cli.main import main as hwbmpq_command

    if hwbmpq_command([*words]) != 0:
        raise RuntimeError("hwbmpq failed")


def by_brevitas(form: str) -> Export:
    def export(width: int, folder: Path) -> None:
        from brevitas.export import export_onnx_qcdq, export_qonnx

        network = in_brevitas(trained_network(), weight_bits=width, input_bits=8).eval()
        network(calibration_images()[0][:64])
        write = {"QCDQ": export_onnx_qcdq, "QONNX": export_qonnx}[form]
        write(network, args=_image(), export_path=str(folder / "m.onnx"))

    return export


def by_modelopt(width: int, folder: Path) -> None:
    import modelopt.torch.quantization as mtq

    images = calibration_images()[0][:64]
    network = mtq.quantize(trained_network(), modelopt_config(width, 8), lambda model: model(images))
    torch.onnx.export(network, (_image(),), str(folder / "m.onnx"), dynamo=False)


def by_mct(width: int, folder: Path) -> None:
    import model_compression_toolkit as mct
    from mct_search import platform_of

    def representative() -> Any:
        yield [calibration_images()[0][:64].numpy()]

    network, _ = mct.ptq.pytorch_post_training_quantization(
        trained_network(), representative, target_platform_capabilities=platform_of([width], 8)
    )
    mct.exporter.pytorch_export_model(
        network, save_model_path=str(folder / "m.onnx"), repr_dataset=representative
    )


def by_aimet(form: str) -> Export:
    def export(width: int, folder: Path) -> None:
        from aimet_torch import onnx as aimet_onnx
        from aimet_torch.model_preparer import prepare_model
        from aimet_torch.quantsim import QuantizationSimModel

        prepared: nn.Module = prepare_model(trained_network())
        simulation = QuantizationSimModel(prepared, _image(), default_output_bw=8, default_param_bw=width)
        simulation.compute_encodings(lambda model: model(calibration_images()[0][:64]))
        if form == "QDQ":
            aimet_onnx.export(simulation.model, _image(), str(folder / "m.onnx"), opset_version=21)
            return
        simulation.export(str(folder), "m", _image())
        for extra in folder.iterdir():  # checkpoints and leftovers beside the graph and its encodings
            if extra.name not in ("m.onnx", "m.encodings"):
                extra.unlink()

    return export


def by_nncf(width: int, folder: Path) -> None:
    import nncf

    images = calibration_images()[0][:64]
    calibration = nncf.Dataset(list(images.split(1)))
    if width == 8:
        network = nncf.quantize(trained_network(), calibration)
    elif width == 2:
        raise NotOfferedError("NNCF has no integer weights of 2 bits")
    else:
        network = nncf.compress_weights(
            trained_network(),
            mode=nncf.CompressWeightsMode.INT4_SYM,
            ratio=1.0,
            group_size=-1,
            dataset=calibration,
            all_layers=True,
        )
    torch.onnx.export(network, (_image(),), str(folder / "m.onnx"), dynamo=False)


EXPORTS: dict[str, Export] = {
    "float, ONNX": as_float,
    "hwbmpq, packed safetensors": by_hwbmpq("packed"),
    "hwbmpq, ONNX": by_hwbmpq("ONNX"),
    "Brevitas, QCDQ ONNX": by_brevitas("QCDQ"),
    "Brevitas, QONNX": by_brevitas("QONNX"),
    "ModelOpt, ONNX": by_modelopt,
    "MCT, ONNX": by_mct,
    "AIMET, ONNX and encodings": by_aimet("encodings"),
    "AIMET, QDQ ONNX": by_aimet("QDQ"),
    "NNCF, ONNX": by_nncf,
}


if __name__ == "__main__":
    main()
