"""Block sizes of the tile kernels: a fixed table, so that a run never tunes, and never tunes inside a graph.

Chosen from ahead-of-time compiles (no spills, shared memory far below the limit, 16-byte loads) for
sm_80 and sm_90; `tests/kernels/test_aot.py` holds every entry to that.
"""

from dataclasses import dataclass
from typing import NamedTuple

from .._launch import chunk_of

__all__ = ["MAX_POSITIONS", "MAX_WIDTH", "Options", "TileConfig", "backward_config", "forward_config"]

MAX_POSITIONS = 64
"""Longest sequence the tile kernels take."""
MAX_WIDTH = 256
"""Largest d_head and d_v they are tested for."""


class Options(NamedTuple):
    """The arguments of the operation that are not tensors."""

    c: float
    """Factor of the intervened positions, where no tensor holds it."""
    scale: float
    causal: bool
    intervene: bool
    n_sets: int
    precision: str
    """How float32 is multiplied: "tf32x3", "ieee", "tf32" or, until the operation runs, "auto"."""


@dataclass(frozen=True)
class TileConfig:
    """BM query rows, BT positions in all, chunks of BD (BV) of the head (value) dimension."""

    BM: int
    BT: int
    BD: int
    BV: int
    num_warps: int
    num_stages: int


def _tile(n_pos: int, d_head: int, d_v: int, widest: int, num_stages: int) -> TileConfig:
    positions = chunk_of(n_pos, MAX_POSITIONS)
    return TileConfig(
        BM=min(positions, 32),
        BT=positions,
        BD=chunk_of(d_head, widest),
        BV=chunk_of(d_v, widest),
        num_warps=2 if positions == 16 else 4,
        num_stages=num_stages,
    )


def forward_config(dtype_bytes: int, precision: str, n_pos: int, d_head: int, d_v: int) -> TileConfig:
    if dtype_bytes == 2:
        return _tile(n_pos, d_head, d_v, widest=64, num_stages=3)
    # tf32x3 keeps three fragments of each operand in registers.
    return _tile(n_pos, d_head, d_v, widest=64 if precision == "tf32" else 32, num_stages=3)


def backward_config(dtype_bytes: int, precision: str, n_pos: int, d_head: int, d_v: int) -> TileConfig:
    if dtype_bytes == 2:
        return _tile(n_pos, d_head, d_v, widest=64, num_stages=2)
    return _tile(n_pos, d_head, d_v, widest=32 if precision == "tf32" else 16, num_stages=2)
