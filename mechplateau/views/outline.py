"""The outline of a set of cells, as the few straight lines that separate cells inside from cells outside."""

from __future__ import annotations

import numpy as np

Segment = tuple[float, float, float, float]


def outline(mask: np.ndarray) -> list[Segment]:
    """Lines around the True cells of a mask.

    Args:
        mask: bool `[row, column]`; cell (r, c) is the unit square centered on (x, y) = (c, r).

    Returns:
        Segments (x0, y0, x1, y1), each as long as it can be; none for an empty mask.
    """
    padded = np.pad(np.asarray(mask, dtype=bool), 1)
    # A side is drawn where exactly one of the two cells that share it is inside.
    horizontal = (padded[1:, 1:-1] != padded[:-1, 1:-1]).astype(int)
    vertical = (padded[1:-1, 1:] != padded[1:-1, :-1]).astype(int)
    segments: list[Segment] = []
    for row, sides in enumerate(horizontal):
        segments += [(start, row - 0.5, stop, row - 0.5) for start, stop in _runs(sides)]
    for column, sides in enumerate(vertical.T):
        segments += [(column - 0.5, start, column - 0.5, stop) for start, stop in _runs(sides)]
    return segments


def _runs(sides: np.ndarray) -> list[tuple[float, float]]:
    """Start and end of each unbroken run of 1s, in cell-edge coordinates."""
    steps = np.diff(np.concatenate([[0], sides, [0]]))
    starts, stops = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
    return [(float(start) - 0.5, float(stop) - 0.5) for start, stop in zip(starts, stops, strict=True)]
