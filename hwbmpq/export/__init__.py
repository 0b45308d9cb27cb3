"""What a run leaves for others: packed weights, and files that a runtime executes."""

from hwbmpq.export.bitpack import pack as pack
from hwbmpq.export.bitpack import unpack as unpack
from hwbmpq.export.comparison import Agreement as Agreement
from hwbmpq.export.comparison import compare as compare
from hwbmpq.export.container import PackedFileError as PackedFileError
from hwbmpq.export.onnx_file import Form as Form
from hwbmpq.export.onnx_file import OnnxGraph as OnnxGraph
from hwbmpq.export.onnx_file import onnx_graph as onnx_graph
from hwbmpq.export.onnx_file import write_onnx as write_onnx
from hwbmpq.export.packed import FILE_NAME as FILE_NAME
from hwbmpq.export.packed import save_packed as save_packed
from hwbmpq.export.packed_file import PackedFile as PackedFile
from hwbmpq.export.packed_file import read_packed as read_packed
from hwbmpq.export.qonnx_runtime import QonnxNetwork as QonnxNetwork
from hwbmpq.export.restore import restore as restore
from hwbmpq.export.runtime import OnnxNetwork as OnnxNetwork
from hwbmpq.export.runtime import as_input as as_input
from hwbmpq.export.size import SizeAccount as SizeAccount
from hwbmpq.export.size import SizeLine as SizeLine
from hwbmpq.export.size import predicted_size as predicted_size
from hwbmpq.export.stored_weights import StoredWeight as StoredWeight
from hwbmpq.export.stored_weights import stored_weights as stored_weights
from hwbmpq.export.timing import Contestant as Contestant
from hwbmpq.export.timing import Timing as Timing
from hwbmpq.export.timing import time_side_by_side as time_side_by_side
