"""Colours that colour-blind readers can tell apart: a scale for widths, and a set for things of different kinds."""

from matplotlib import colormaps
from matplotlib.colors import to_hex

DISTINCT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's."""
_PLACES = {2: 0.0, 3: 0.16, 4: 0.32, 5: 0.44, 6: 0.54, 7: 0.62, 8: 0.72, 16: 0.92}
_FLOAT = "#8a8a8a"


def of_width(bits: int) -> str:
    """From dark (narrow) to light (wide), in a scale whose lightness tells the order; float is grey."""
    if bits > max(_PLACES):
        return _FLOAT
    known = _PLACES.get(bits, 0.72 + (bits - 8) * 0.025)
    return to_hex(colormaps["viridis"](known))


def text_on(colour: str) -> str:
    """Black or white, whichever is easier to read on a colour."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#ffffff"


def of_depth(share: float) -> str:
    """For layers from the first (0) to the last (1)."""
    return to_hex(colormaps["viridis"](0.9 * share))
