"""Which algorithm of attention runs: one table, and the rule that picks from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .._dispatch import choose_backend
from .configs import MAX_LISTED, MAX_TILED_WIDTH
from .sets import PositionSet

__all__ = ["ALGORITHMS", "TABLE", "Request", "choose", "tiled_obstacle", "used"]

TABLE = {
    "tile": (
        "triton",
        "to 64",
        "one program holds all keys of its queries; linear, any mask, no statistics of rows",
    ),
    "tiled": (
        "triton",
        "any",
        "blocks of queries against blocks of keys; sets by structure, heads up to 128 wide",
    ),
    "map": (
        "torch",
        "any",
        "the whole map, memory grows with its square; the choice to 64, and for gradients of c",
    ),
    "blocked": (
        "torch",
        "any",
        "a block of queries at a time, no map; the choice beyond 64, and for softmax",
    ),
}
"""Of each algorithm: its backend, its lengths, what it is."""
ALGORITHMS = ("auto", *TABLE)
SHORT = 64
"""Up to here the whole map is small, and linear attention through it as fast as any."""

MAX_SETS = 8
"""Metric sets that the tiled kernels keep sums of."""

_used: dict[str, set[str]] = {}


class Request(NamedTuple):
    """What decides between the algorithms, besides the device."""

    op: str
    pos: int
    device: torch.device
    plain: bool
    """Whether it is what short linear attention always was: no allowed set, no statistics of rows, no softmax."""
    learned_factor: bool
    """Whether a gradient of c is asked for."""
    obstacles: dict[str, Callable[[], str | None]]
    """Why tile and tiled cannot take this call; asked where it matters."""


def choose(request: Request, backend: str, algorithm: str) -> str:
    """The algorithm for this call.

    Raises:
        ValueError: no such backend or algorithm, or one that cannot do what was asked.
        BackendUnavailable: Triton was asked for where it cannot run.
    """
    op = request.op
    if algorithm not in ALGORITHMS:
        raise ValueError(f"{op}: algorithm: expected one of {', '.join(ALGORITHMS)}; got {algorithm!r}")
    home = TABLE[algorithm][0] if algorithm in TABLE else None
    if home is not None and backend not in ("auto", home):
        raise ValueError(f'{op}: algorithm="{algorithm}" runs on {home}, and backend="{backend}" was given')
    if algorithm == "blocked" and request.learned_factor:
        raise ValueError(f'{op}: algorithm="blocked" gives no gradient of c; use "map"')
    if home == "torch":
        backend = home
    chosen = _chosen(request, home or backend, algorithm)
    if not torch.compiler.is_compiling():
        _used.setdefault(op, set()).add(chosen)
    return chosen


def _chosen(request: Request, backend: str, algorithm: str) -> str:
    short = request.plain and request.pos <= SHORT
    kernel = algorithm if algorithm in request.obstacles else "tile" if short else "tiled"
    if choose_backend(request.op, backend, request.device, request.obstacles[kernel]()) == "triton":
        return kernel
    if algorithm != "auto":
        return algorithm
    return "map" if request.learned_factor or short else "blocked"


def used() -> dict[str, list[str]]:
    """The algorithms each operation has run so far in this process."""
    return {op: sorted(names) for op, names in sorted(_used.items())}


def tiled_obstacle(
    q: Tensor,
    v: Tensor,
    c: float | Tensor,
    metric: Sequence[PositionSet],
    others: Sequence[PositionSet | None],
) -> str | None:
    """Why the tiled kernels cannot take this call, or None."""
    if q.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"the kernels take float32, float16 and bfloat16, and q is {q.dtype}"
    if max(q.shape[3], v.shape[3]) > MAX_TILED_WIDTH:
        return (
            f"beyond {SHORT} positions the kernels take heads up to {MAX_TILED_WIDTH} wide; "
            f"got {q.shape[3]} and {v.shape[3]}"
        )
    if len(metric) > MAX_SETS:
        return f"the kernels take {MAX_SETS} metric sets, and there are {len(metric)}"
    if isinstance(c, Tensor) and c.requires_grad:
        return "the kernels give no gradient of c"
    for chosen in (*metric, *(x for x in others if x is not None)):
        if chosen.entries is not None:
            return "these kernels take sets by their structure, and there is one as a mask"
        if chosen.query_codes is None and chosen.indices is not None and chosen.indices.shape[2] > MAX_LISTED:
            return (
                f"the kernels take lists of up to {MAX_LISTED} keys, and there are {chosen.indices.shape[2]}"
            )
    return None
