"""Integer ranges of the quantizers, as plain arithmetic."""


def largest_code(bits: int, *, signed: bool) -> int:
    """Largest integer code; the signed range is symmetric, so its smallest is the negative.

    >>> largest_code(4, signed=True), largest_code(4, signed=False)
    (7, 15)
    """
    return (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1
