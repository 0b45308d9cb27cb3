"""Labelled images and arrays by specification, in memory or from files, and batches of them."""

from hwbmpq.data.arrays import LabelledArrays as LabelledArrays
from hwbmpq.data.augment import AUGMENTATIONS as AUGMENTATIONS
from hwbmpq.data.batches import Batches as Batches
from hwbmpq.data.batches import LoaderBatches as LoaderBatches
from hwbmpq.data.batches import TrainingBatches as TrainingBatches
from hwbmpq.data.batches import from_loaders as from_loaders
from hwbmpq.data.chance import chance_remark as chance_remark
from hwbmpq.data.chance import is_chance as is_chance
from hwbmpq.data.images import ImageData as ImageData
from hwbmpq.data.images import LabelledImages as LabelledImages
from hwbmpq.data.load import OpenData as OpenData
from hwbmpq.data.load import load_data as load_data
from hwbmpq.data.load import load_images as load_images
from hwbmpq.data.load import open_data as open_data
from hwbmpq.data.registry import DATA_SOURCES as DATA_SOURCES
from hwbmpq.data.validation import hold_out_validation as hold_out_validation
from hwbmpq.deprecated import renamed_attribute

__getattr__ = renamed_attribute(__name__, {"DATA_FORMS": "DATA_SOURCES"})
