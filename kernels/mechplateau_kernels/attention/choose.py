"""Which algorithm of attention runs: one table, and the rule that picks from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .._dispatch import choose_backend
from .configs import MAX_LISTED, MAX_TILED_WIDTH
from .gathered import few_keys
from .sets import PositionSet

__all__ = ["ALGORITHMS", "SHORT", "TABLE", "Request", "choose", "choose_short", "tiled_obstacle", "used"]

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
        "a block of queries at a time, no map; the choice where no other is",
    ),
    "lse": (
        "torch",
        "any",
        "softmax by torch's flash kernel, masses of sets of few keys gathered; the CPU's choice beyond 64",
    ),
    "chunk": (
        "torch",
        "any",
        "linear, running sums: O(T), no row mass, sets of few keys gathered; the CPU's choice beyond 64",
    ),
}
"""Of each algorithm: its backend, its lengths, what it is."""
ALGORITHMS = ("auto", *TABLE)
SHORT = 64
"""Up to here the whole map is small, and linear attention through it as fast as any."""
# Measured on a CPU. On a GPU neither `lse` nor `chunk` was yet: there they run where they are requested.
FASTER_FROM = {"lse": 65, "chunk": 256}
"""Positions."""
GATHERED = 1 / 40
"""Keys a query, of all sets together, for each position beyond `SHORT`, up to which they are worth gathering."""

MAX_SETS = 8
"""Metric sets that the tiled kernels keep sums of."""

_used: dict[str, set[str]] = {}


class Request(NamedTuple):
    """What decides between the algorithms, besides the device."""

    op: str
    pos: int
    device: torch.device
    learned_factor: bool
    """Whether a gradient of c is requested."""
    obstacles: dict[str, Callable[[], str | None]]
    """Algorithms that cannot take every call → a function that says why this call is one of those, or None."""
    metric: Sequence[PositionSet] = ()


def choose(request: Request, backend: str, algorithm: str) -> str:
    """The algorithm for this call.

    Raises:
        ValueError: no such backend or algorithm, or one that cannot compute this call.
        BackendUnavailable: Triton was requested where it cannot run.
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
        if algorithm in request.obstacles and (why := request.obstacles[algorithm]()):
            raise ValueError(f'{op}: algorithm="{algorithm}" cannot do this: {why}; use "blocked" or "auto"')
    return _noted(op, _chosen(request, home or backend, algorithm))


def choose_short(op: str, backend: str, device: torch.device, obstacle: str | None) -> str:
    """Of linear attention of up to `SHORT` positions without an allowed set or statistics of rows: by far the
    commonest call, and so short on a CPU that the questions of `choose` would show.

    Args:
        obstacle: why the tile kernels cannot take it, or None.
    """
    return _noted(op, "tile" if choose_backend(op, backend, device, obstacle) == "triton" else "map")


def _noted(op: str, chosen: str) -> str:
    if not torch.compiler.is_compiling():
        _used.setdefault(op, set()).add(chosen)
    return chosen


def _chosen(request: Request, backend: str, algorithm: str) -> str:
    kernel = algorithm if TABLE.get(algorithm, ("",))[0] == "triton" else "tiled"
    if choose_backend(request.op, backend, request.device, request.obstacles[kernel]()) == "triton":
        return kernel
    if algorithm != "auto":
        return algorithm
    if request.learned_factor:
        return "map"
    for faster, shortest in FASTER_FROM.items():
        if request.pos >= shortest and _few(request) and request.obstacles[faster]() is None:
            return faster
    return "blocked"


def _few(request: Request) -> bool:
    """Whether gathering the sets' keys one by one takes less than making the map block by block."""
    if request.device.type != "cpu":
        return False
    # Lists that were made from codes are as long as the commonest code is frequent, and mostly empty.
    keys = [(few_keys(one) or 0) / (1 if one.query_codes is None else 3) for one in request.metric]
    return sum(keys) <= GATHERED * (request.pos - SHORT)


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
