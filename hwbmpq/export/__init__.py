"""What a run leaves for others: packed weights, and files that a runtime executes."""

from importlib import import_module as _import_module
from typing import Any as _Any

from hwbmpq.deprecated import renamed_attribute as _renamed_attribute
from hwbmpq.export.onnx.file import Form as Form
from hwbmpq.export.onnx.file import OnnxGraph as OnnxGraph
from hwbmpq.export.onnx.file import onnx_graph as onnx_graph
from hwbmpq.export.onnx.file import write_onnx as write_onnx
from hwbmpq.export.packed.bitpack import pack as pack
from hwbmpq.export.packed.bitpack import unpack as unpack
from hwbmpq.export.packed.container import PackedFileError as PackedFileError
from hwbmpq.export.packed.contents import SizeAccount as SizeAccount
from hwbmpq.export.packed.contents import SizeLine as SizeLine
from hwbmpq.export.packed.contents import predicted_size as predicted_size
from hwbmpq.export.packed.file import PackedFile as PackedFile
from hwbmpq.export.packed.file import read_packed as read_packed
from hwbmpq.export.packed.load import restore as restore
from hwbmpq.export.packed.save import FILE_NAME as FILE_NAME
from hwbmpq.export.packed.save import save_packed as save_packed
from hwbmpq.export.runtime.comparison import Agreement as Agreement
from hwbmpq.export.runtime.comparison import QonnxNetwork as QonnxNetwork
from hwbmpq.export.runtime.comparison import compare as compare
from hwbmpq.export.runtime.onnxruntime import OnnxNetwork as OnnxNetwork
from hwbmpq.export.runtime.onnxruntime import as_input as as_input
from hwbmpq.export.runtime.timing import BenchmarkEntry as BenchmarkEntry
from hwbmpq.export.runtime.timing import Timing as Timing
from hwbmpq.export.runtime.timing import time_side_by_side as time_side_by_side
from hwbmpq.export.stored_weights import StoredWeight as StoredWeight
from hwbmpq.export.stored_weights import stored_weights as stored_weights

_renamed = _renamed_attribute(__name__, {"Contestant": "BenchmarkEntry"})


def __getattr__(name: str) -> _Any:
    if name == "deployment":  # it needs training, which exporting a network by itself does not
        return _import_module("hwbmpq.export.deployment")
    return _renamed(name)
