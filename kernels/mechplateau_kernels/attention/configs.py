"""Block sizes of the tile kernels: a fixed table, so that a run never tunes, and never tunes inside a graph.

Chosen from ahead-of-time compiles (no spills, shared memory far below the limit, 16-byte loads) for
sm_80 and sm_90; `tests/kernels/test_aot.py` holds every entry to that.
"""

from dataclasses import dataclass
from typing import NamedTuple

from .._launch import Layout, chunk_of

__all__ = [
    "MAX_LISTED",
    "MAX_POSITIONS",
    "MAX_TILED_WIDTH",
    "MAX_WIDTH",
    "Call",
    "Options",
    "TileConfig",
    "TiledConfig",
    "backward_config",
    "effective_precision",
    "forward_config",
    "tiled_columns_config",
    "tiled_forward_config",
    "tiled_rows_config",
]

MAX_POSITIONS = 64
"""Longest sequence the tile kernels take."""
MAX_WIDTH = 256
"""Largest d_head and d_v they are tested for."""

MAX_TILED_WIDTH = 128
"""Largest d_head and d_v of the tiled kernels: a block's output lies in registers."""
MAX_LISTED = 32
"""Longest list of keys that the tiled kernels compare with."""


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


CONTIGUOUS: Layout = ("16", "16", "16", "aligned")


class Call(NamedTuple):
    """The rest of what Triton compiles a kernel anew for: how the arguments lie in memory (see `_launch`)."""

    heads: int = 2
    q: Layout = CONTIGUOUS
    k: Layout = CONTIGUOUS
    v: Layout = CONTIGUOUS
    sets: tuple[str, str] | None = ("own", "aligned")
    """Of one map each sample, or "shared", and the address; None without sets."""
    c: str | None = None
    """The address of the factor, where a tensor holds it."""
    grad_output: Layout = CONTIGUOUS
    grad_row: str | None = "aligned"
    grad_set: str | None = "aligned"
    """Addresses of the masses' gradients, where there are any."""


@dataclass(frozen=True)
class TileConfig:
    """BM query rows, BT positions in all, chunks of BD (BV) of the head (value) dimension."""

    BM: int
    BT: int
    BD: int
    BV: int
    num_warps: int
    num_stages: int


def _tile(n_pos: int, d_head: int, d_v: int, widest: tuple[int, int], num_stages: int) -> TileConfig:
    positions = chunk_of(n_pos, MAX_POSITIONS)
    return TileConfig(
        BM=min(positions, 32),
        BT=positions,
        BD=chunk_of(d_head, widest[0]),
        BV=chunk_of(d_v, widest[1]),
        # A loop with a single turn is unrolled, and its operands crowd the registers of 4 warps.
        num_warps=2 if positions == 16 else 8 if positions == 64 and min(d_head, d_v) <= 16 else 4,
        num_stages=num_stages,
    )


# Widest chunks (BD, BV) that do not spill. tf32x3 keeps three fragments of each operand in registers, ieee uses
# no tensor core at all; float16 is widened to float32 where it is weighted by A.
_FORWARD = {"tf32x3": (32, 32), "ieee": (16, 16), "tf32": (64, 32), "float16": (64, 32), "bfloat16": (64, 64)}
_BACKWARD = {
    "tf32x3": (16, 16),
    "ieee": (16, 16),
    "tf32": (32, 32),
    "float16": (32, 32),
    "bfloat16": (64, 64),
}


def effective_precision(precision: str, d_head: int, d_v: int) -> str:
    """ieee for very narrow heads, whatever was requested: at least as exact, and without the tensor core's fragments,
    which spill where a loop over the width has a single turn and is unrolled."""
    return "ieee" if min(d_head, d_v) <= 16 else precision


def forward_config(mode: str, n_pos: int, d_head: int, d_v: int) -> TileConfig:
    """`mode`: the precision for float32, the dtype's name for the others."""
    return _tile(n_pos, d_head, d_v, _FORWARD[mode], num_stages=3)


def backward_config(mode: str, n_pos: int, d_head: int, d_v: int) -> TileConfig:
    """As `forward_config`."""
    widest = _BACKWARD[mode]
    if n_pos > 32 and mode in ("tf32", "float16") and max(d_head, d_v) <= 32:
        # Both loops would have a single turn and be unrolled: their operands together do not fit.
        widest = (16, 16)
    elif n_pos > 32 and mode == "bfloat16" and min(d_head, d_v) <= 16:
        # triton 3.9 keeps one of the wide chunks too many in registers.
        widest = (32, 32)
    return _tile(n_pos, d_head, d_v, widest, num_stages=2)


@dataclass(frozen=True)
class TiledConfig:
    """BM rows a program, blocks of BN others, chunks of BD (BV) of the head (value) dimension in products; outputs of
    BDALL (BVALL) columns."""

    BM: int
    BN: int
    BD: int
    BV: int
    BDALL: int
    BVALL: int
    num_warps: int
    num_stages: int


# Widest chunks of a product, by mode; as for the tiles of short sequences.
_TILED = {"tf32x3": 16, "ieee": 16, "tf32": 32, "float16": 32, "bfloat16": 64}


def _tiled(mode: str, d_head: int, d_v: int, outputs: int, others: int = 32) -> TiledConfig:
    widest = _TILED[mode]
    return TiledConfig(
        BM=32,
        BN=others,
        BD=chunk_of(d_head, widest),
        BV=chunk_of(d_v, widest),
        BDALL=chunk_of(d_head, MAX_TILED_WIDTH),
        BVALL=chunk_of(d_v, MAX_TILED_WIDTH),
        num_warps=8 if outputs > 64 else 4,
        num_stages=2,
    )


def tiled_forward_config(mode: str, d_head: int, d_v: int) -> TiledConfig:
    """`mode`: the precision for float32, the dtype's name for the others."""
    return _tiled(mode, d_head, d_v, d_v)


def _others(mode: str, d_head: int, d_v: int) -> int:
    """Fewer at a time in the backward kernels where fragments of tf32x3, or of loops with a single turn, which are
    unrolled, crowd the registers."""
    return 16 if mode == "tf32x3" or max(d_head, d_v) <= 32 else 32


def tiled_rows_config(mode: str, d_head: int, d_v: int) -> TiledConfig:
    """Of dQ."""
    return _tiled(mode, d_head, d_v, d_head, others=_others(mode, d_head, d_v))


def tiled_columns_config(mode: str, d_head: int, d_v: int) -> TiledConfig:
    """Of dK and dV."""
    return _tiled(mode, d_head, d_v, d_head + d_v, others=_others(mode, d_head, d_v))
