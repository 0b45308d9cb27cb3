"""A weight quantizer."""

from hwbmpq.quant.quantizers import PaperQuantizer


class SecondPaper(PaperQuantizer):
    """The paper's by another name."""
