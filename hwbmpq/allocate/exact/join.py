"""The best pair of two lists of partial assignments that fits the room, without trying all pairs."""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from hwbmpq.allocate.tableau import Floats

_ALL_PAIRS = 500_000
"""Up to so many pairs, trying them all is fastest."""
_MOST_PAIRS = 6_000_000
_CHUNK = 1_000_000
_MOST_REFUSALS = 500
_MOST_AXES = 3
_NARROW, _FINEST = 0.5, 1e-6
"""Window as a share of the costs' spread: where a grid pays, and where its cells stay countable."""
_ROUNDING = 1e-9

Half = tuple[Floats, Floats]
"""Values, and states × rows of costs."""
Indices = NDArray[np.int64]


def best_pair(
    first: Half,
    second: Half,
    room: Floats,
    prices: Floats,
    floor: float,
    accepts: Callable[[tuple[int, int]], bool],
) -> tuple[tuple[int, int] | None, bool]:
    """Positions of the pair with the largest value among those that fit, reach the floor and are accepted (whoever checks
    in exact arithmetic), and whether all such pairs were looked at.

    A pair reaches the floor if value - prices·cost, and with it the value less what it leaves of the room at these
    prices, is no smaller. So it can leave only so much of a priced row: it must land in a narrow box, and a grid
    of boxes finds the partners.
    """
    leftover = (first[0] - first[1] @ prices).max() + (second[0] - second[1] @ prices).max() - floor
    if leftover < 0:
        return None, True
    window = np.where(prices > 0, leftover / np.where(prices > 0, prices, 1.0), np.inf) * (1 + _ROUNDING)
    axes = _narrow_axes(second[1], window)
    count = len(first[0]) * len(second[0])
    if count <= _ALL_PAIRS or not axes:
        candidates, is_whole = _all_pairs(len(first[0]), len(second[0])), count <= _MOST_PAIRS
    else:
        candidates, is_whole = _neighbours(first[1][:, axes], second[1][:, axes], room[axes], window[axes])
    best: tuple[int, int] | None = None
    refusals = 0
    least = np.nextafter(floor + float(prices @ room), -np.inf)
    for one, other in candidates:
        fits = (first[1][one] + second[1][other] <= room).all(axis=1)
        values = np.where(fits, first[0][one] + second[0][other], -np.inf)
        while values.max() > least and refusals < _MOST_REFUSALS:
            top = int(values.argmax())
            pair = int(one[top]), int(other[top])
            if accepts(pair):
                best, least = pair, float(values[top])
            else:
                values[top] = -np.inf
                refusals += 1
    return best, is_whole and refusals < _MOST_REFUSALS


def _all_pairs(count: int, others: int) -> Iterator[tuple[Indices, Indices]]:
    """A manageable number at a time; too many are cut off."""
    rows = max(1, _CHUNK // others)
    for start in range(0, min(count, -(-_MOST_PAIRS // others)), rows):
        some = np.arange(start, min(start + rows, count))
        yield np.repeat(some, others), np.tile(np.arange(others), len(some))


def _narrow_axes(costs: Floats, window: Floats) -> list[int]:
    """Rows on which few partners are close enough, the best first; not too fine a grid either."""
    spread = costs.max(axis=0) - costs.min(axis=0)
    share = np.full(len(window), np.inf)
    np.divide(window, spread, out=share, where=(spread > 0) & (spread > window))
    narrow = [int(r) for r in np.argsort(share, kind="stable") if _FINEST < share[r] < _NARROW]
    return narrow[:_MOST_AXES]


def _neighbours(
    first: Floats, second: Floats, room: Floats, width: Floats
) -> tuple[Iterator[tuple[Indices, Indices]], bool]:
    """Pairs whose costs add up to the room or at most a width less, by a grid of boxes so wide."""
    low = second.min(axis=0)
    cells = np.floor((second - low) / width).astype(np.int64)
    sizes = cells.max(axis=0) + 1
    keys = _key(cells, sizes)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    wanted = np.floor((room - first - low) / width)
    wanted = np.clip(wanted, -2, sizes + 1).astype(np.int64)
    spans = _spans(wanted, sizes, keys)
    pairs = sum(int(counts.sum()) for _, counts in spans)
    return _chunks(spans, order), pairs <= _MOST_PAIRS


def _key(cells: Indices, sizes: Indices) -> Indices:
    key = np.zeros(len(cells), dtype=np.int64)
    for axis, size in enumerate(sizes):
        key = key * int(size) + cells[:, axis]
    return key


def _spans(wanted: Indices, sizes: Indices, keys: Indices) -> list[tuple[Indices, Indices]]:
    """Starts and counts in the sorted keys of each state's partners: its cell and the one below, on every axis."""
    spans = []
    for steps in itertools.product((-1, 0), repeat=wanted.shape[1] - 1):
        cells = wanted.copy()
        cells[:, :-1] += np.array(steps, dtype=np.int64)
        inside = ((cells[:, :-1] >= 0) & (cells[:, :-1] < sizes[:-1])).all(axis=1)
        bottom, top = np.maximum(cells[:, -1] - 1, 0), np.minimum(cells[:, -1], sizes[-1] - 1)
        inside &= bottom <= top
        ends = []
        for last, side in ((bottom, "left"), (top, "right")):
            corner = np.where(inside[:, None], np.column_stack([cells[:, :-1], last]), 0)
            ends.append(np.searchsorted(keys, _key(corner, sizes), side=side))  # type: ignore[call-overload]
        spans.append((ends[0], np.where(inside, ends[1] - ends[0], 0)))
    return spans


def _chunks(spans: list[tuple[Indices, Indices]], order: Indices) -> Iterator[tuple[Indices, Indices]]:
    """The pairs, a manageable number at a time; too many are cut off."""
    left = _MOST_PAIRS
    for starts, counts in spans:
        states = np.flatnonzero(counts)
        ends = counts[states].cumsum()
        position = 0
        while position < len(states) and left > 0:
            done = ends[position - 1] if position else 0
            stop = max(position + 1, int(np.searchsorted(ends, done + min(_CHUNK, left), side="right")))
            part = states[position:stop]
            repeated = np.repeat(part, counts[part])
            offsets = np.arange(len(repeated)) - np.repeat(counts[part].cumsum() - counts[part], counts[part])
            yield repeated, order[starts[repeated] + offsets]
            left -= len(repeated)
            position = stop
