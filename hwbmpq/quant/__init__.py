"""Quantizers for weights and activations, and the layers that use them."""

from hwbmpq.deprecated import renamed_attribute as _renamed_attribute
from hwbmpq.quant.functional import fake_quantize_activation as fake_quantize_activation
from hwbmpq.quant.functional import fake_quantize_weight as fake_quantize_weight
from hwbmpq.quant.functional import quantize_weight as quantize_weight
from hwbmpq.quant.layers import QuantizedLayer as QuantizedLayer
from hwbmpq.quant.layers import as_float as as_float
from hwbmpq.quant.prepare import FIRST_LAST_PRECISION as FIRST_LAST_PRECISION
from hwbmpq.quant.prepare import as_precision as as_precision
from hwbmpq.quant.prepare import assign as assign
from hwbmpq.quant.prepare import parameter_groups as parameter_groups
from hwbmpq.quant.prepare import prepare as prepare
from hwbmpq.quant.prepare import quantized_layers as quantized_layers
from hwbmpq.quant.quantizers import CALIBRATION_BATCHES as CALIBRATION_BATCHES
from hwbmpq.quant.quantizers import InputQuantizer as InputQuantizer
from hwbmpq.quant.quantizers import WeightQuantizer as WeightQuantizer
from hwbmpq.quant.weights import QuantizedWeight as QuantizedWeight

__getattr__ = _renamed_attribute(__name__, {"END_PRECISION": "FIRST_LAST_PRECISION"})
