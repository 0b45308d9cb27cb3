"""Measuring devices: layers timed in ONNX Runtime become a lookup table and a hardware profile."""

from hwbmpq.deprecated import renamed_attribute as _renamed_attribute
from hwbmpq.measure.findings import findings as findings
from hwbmpq.measure.kit_runner import format_duration as format_duration
from hwbmpq.measure.manifest import DEFAULT_WIDTHS as DEFAULT_WIDTHS
from hwbmpq.measure.manifest import LayerKernel as LayerKernel
from hwbmpq.measure.manifest import accumulates_int32_here as accumulates_int32_here
from hwbmpq.measure.manifest import check_kit as check_kit
from hwbmpq.measure.manifest import check_settings as check_settings
from hwbmpq.measure.manifest import layer_kernels as layer_kernels
from hwbmpq.measure.manifest import measure_here as measure_here
from hwbmpq.measure.manifest import write_kit as write_kit
from hwbmpq.measure.measurement import Measurement as Measurement
from hwbmpq.measure.operation_graphs import count_between_layers as count_between_layers
from hwbmpq.measure.profiles import check_new as check_new
from hwbmpq.measure.profiles import parse_widths as parse_widths
from hwbmpq.measure.profiles import write_profile as write_profile
from hwbmpq.measure.results import Results as Results
from hwbmpq.measure.results import ResultsError as ResultsError
from hwbmpq.measure.results import read_results as read_results
from hwbmpq.measure.validation import Candidate as Candidate
from hwbmpq.measure.validation import Comparison as Comparison
from hwbmpq.measure.validation import Validation as Validation
from hwbmpq.measure.validation import deployed_graph as deployed_graph
from hwbmpq.measure.validation import exported_candidate as exported_candidate
from hwbmpq.measure.validation import measurement_record as measurement_record
from hwbmpq.measure.validation import validate as validate

__getattr__ = _renamed_attribute(
    __name__, {"spoken_seconds": "format_duration", "wide_sums_here": "accumulates_int32_here"}
)
