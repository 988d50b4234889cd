"""Which algorithm runs: one table.

| algorithm | backend | positions | what it is |
|---|---|---|---|
| tile | triton | to 64 | one program holds all keys of its queries; linear only |
| map | torch | to 64 on its own accord, any on request | the whole map; readable, gradients of any order and of c |
| blocked | torch | any | a block of queries at a time, no map |
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .._dispatch import choose_backend

__all__ = ["ALGORITHMS", "Request", "choose", "used"]

ALGORITHMS = {"auto": None, "tile": "triton", "map": "torch", "blocked": "torch"}
"""The backend each algorithm belongs to."""
SHORT = 64
"""Up to here the whole map is small, and linear attention through it as fast as any."""

_used: dict[str, set[str]] = {}


@dataclass(frozen=True)
class Request:
    """What decides between the algorithms, besides the device."""

    op: str
    pos: int
    device: torch.device
    plain: bool
    """Whether it is what short linear attention always was: no allowed set, no statistics of rows, no softmax."""
    learned_factor: bool
    """Whether a gradient of c is asked for."""
    tile_obstacle: str | None
    """Why the tile kernels cannot take this call."""


def choose(request: Request, backend: str, algorithm: str) -> str:
    """The algorithm for this call.

    Raises:
        ValueError: no such backend or algorithm, or one that cannot do what was asked.
        BackendUnavailable: Triton was asked for where it cannot run.
    """
    op = request.op
    if algorithm not in ALGORITHMS:
        raise ValueError(f"{op}: algorithm: expected one of {', '.join(ALGORITHMS)}; got {algorithm!r}")
    home = ALGORITHMS[algorithm]
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
    if choose_backend(request.op, backend, request.device, request.tile_obstacle) == "triton":
        return "tile"
    if algorithm != "auto":
        return algorithm
    if request.learned_factor or (request.plain and request.pos <= SHORT):
        return "map"
    return "blocked"


def used() -> dict[str, list[str]]:
    """The algorithms each operation has run so far in this process."""
    return {op: sorted(names) for op, names in sorted(_used.items())}
