"""Networks by specification: timm, torchvision, hwbmpq's own, and the user's files."""

from hwbmpq.models.sources import LoadedModel as LoadedModel
from hwbmpq.models.sources import load_model as load_model
from hwbmpq.models.sources import parse_input_size as parse_input_size
from hwbmpq.models.weights import load_weights as load_weights
