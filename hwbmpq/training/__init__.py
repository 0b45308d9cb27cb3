"""Labelled images, and what is done with them."""

from hwbmpq.training.data import LabelledImages as LabelledImages
from hwbmpq.training.data import load_images as load_images
