"""Integer ranges of the quantizers, as plain arithmetic."""


def largest_code(bits: int, *, signed: bool) -> int:
    """Largest integer code; the signed range is symmetric, so its smallest is the negative.

    >>> largest_code(4, signed=True), largest_code(4, signed=False)
    (7, 15)
    """
    return (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1


def level_count(bits: int, *, signed: bool) -> int:
    """How many different values a quantized tensor can take.

    >>> level_count(2, signed=True), level_count(2, signed=False)
    (3, 4)
    """
    return 2 * largest_code(bits, signed=True) + 1 if signed else 1 << bits
