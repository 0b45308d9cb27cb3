"""A weight quantizer."""

from hwbmpq.quant.weight_quantizer import PaperQuantizer


class SecondPaper(PaperQuantizer):
    """The paper's by another name."""
