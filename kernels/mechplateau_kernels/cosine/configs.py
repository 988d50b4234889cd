"""Block sizes of the cosine kernels; held to the same rules as those of linear attention."""

from typing import NamedTuple

from .._launch import Layout, chunk_of

__all__ = [
    "GRAM_STAGES",
    "GRAM_WARPS",
    "MAX_MATRIX_POSITIONS",
    "MAX_MEAN_POSITIONS",
    "MAX_SHARES",
    "MAX_WIDTH",
    "MEAN_WARPS",
    "Call",
    "gram_blocks",
    "mean_blocks",
]

MAX_MATRIX_POSITIONS = 64
MAX_MEAN_POSITIONS = 512
MAX_WIDTH = 8192
"""Widest hidden state of the mean kernel, which holds whole rows in registers."""
MAX_SHARES = 256
"""Programs a batch is shared among: fixed, not the card's size, so that sums are the same on every card."""
GRAM_WARPS = 4
GRAM_STAGES = 3
MEAN_WARPS = 4
MEAN_TILE = 4096
"""Elements of a block of whole rows."""


class Call(NamedTuple):
    """The rest of what Triton compiles a kernel anew for (see `_launch`)."""

    h: Layout = ("16", "16", "16", "aligned")
    batch: str = "any"
    """`kind` of the number of samples."""
    shares: str = "any"
    """`kind` of the number of programs they are shared among."""
    n_groups: int = 2
    """Of positions; of the mean only."""
    groups: str = "aligned"


class GramBlocks(NamedTuple):
    BM: int
    BT: int
    BD: int


class MeanBlocks(NamedTuple):
    BT: int
    BD: int


def gram_blocks(dtype_bytes: int, pos: int, d: int) -> GramBlocks:
    positions = chunk_of(pos, MAX_MATRIX_POSITIONS)
    return GramBlocks(min(positions, 32), positions, chunk_of(d, 64 if dtype_bytes == 2 else 32))


def mean_blocks(pos: int, d: int) -> MeanBlocks:
    width = chunk_of(d, MAX_WIDTH)
    rows = 1
    while rows < pos and 2 * rows * width <= MEAN_TILE:
        rows *= 2
    return MeanBlocks(rows, width)
