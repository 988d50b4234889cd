"""Linear attention in chunks, with a running sum of kᵀv: time and memory grow with the length, and no row mass.

Rows in chunks of C, S the sum of k_jᵀ v_j over all chunks before:

    O = scale · (tril(Q Kᵀ) V within the chunk + Q S)

The masses of sets of few keys, |scale · q_i·k_j|, are gathered key by key. Backward is three products of the same kind,
two of them from the end of the sequence to its start:

    dQ_i = scale Σ_{j<=i} (dO_i·v_j) k_j,  dK_j = scale Σ_{i>=j} (v_j·dO_i) q_i,  dV_j = scale Σ_{i>=j} (k_j·q_i) dO_i

Half precision is computed in float32. A NaN or infinity in a key or a value reaches all later rows, and may reach
earlier ones of its chunk.

Source: the chunked form of flash-linear-attention, in plain torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from . import gathered
from .kind import Kind, Sets
from .sets import LISTED_UP_TO, PositionSet

__all__ = ["backward", "forward", "obstacle"]

CHUNK = 64
"""Rows of a chunk; twice as many for wide heads, whose sums would otherwise take more memory than the inputs."""


def obstacle(kind: Kind, metric: Sequence[PositionSet], others: Sequence[PositionSet | None]) -> str | None:
    """Why attention cannot go this way, or None. Of `kind` the algorithm is not looked at."""
    if kind.row_mass or kind.statistics:
        return "sums over whole rows need every score; row_mass=False and no row_statistics it can do"
    if any(x is not None for x in others):
        return "an allowed set or an intervention would leave rounding where weights are to be exactly 0"
    for chosen in metric:
        if gathered.few_keys(chosen) is None:
            return f"it gathers sets of up to {LISTED_UP_TO} keys a query, and {chosen.name} is not known to be one"
    return None


def _by_head(x: Tensor) -> Tensor:
    """`[batch, pos, head, d]` -> `[batch · head, pos, d]`, at least float32."""
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return wide.transpose(1, 2).flatten(0, 1)


def _by_position(x: Tensor, like: Tensor) -> Tensor:
    """Undo `_by_head`."""
    return x.unflatten(0, (like.shape[0], like.shape[2])).transpose(1, 2).to(like.dtype)


def _product(q: Tensor, k: Tensor, v: Tensor, causal: bool, backwards: bool = False) -> Tensor:
    """Σ_j (q_i·k_j) v_j over j <= i (backwards: j >= i; not causal: all), of `[batch · head, pos, d]`."""
    if not causal:
        return torch.bmm(q, torch.bmm(k.transpose(1, 2), v))
    if backwards:
        return _product(q.flip(1), k.flip(1), v.flip(1), causal).flip(1)
    many, pos, _ = q.shape
    size = CHUNK if max(q.shape[2], v.shape[2]) <= CHUNK else 2 * CHUNK
    n = -(-pos // size)
    q, k, v = (F.pad(x, (0, 0, 0, n * size - pos)).reshape(many * n, size, x.shape[2]) for x in (q, k, v))
    output = torch.bmm(torch.bmm(q, k.transpose(1, 2)).tril_(), v)
    if n > 1:
        of_chunks = torch.bmm(k.transpose(1, 2), v).unflatten(0, (many, n))
        before = F.pad(of_chunks[:, :-1].cumsum(1), (0, 0, 0, 0, 1, 0))
        output.baddbmm_(q, before.flatten(0, 1))
    return output.view(many, n * size, v.shape[2])[:, :pos]


def forward(q: Tensor, k: Tensor, v: Tensor, sets: Sets, kind: Kind) -> tuple[Tensor, ...]:
    """As `blocked.forward`, with an empty row mass."""
    batch, pos, heads, _ = q.shape
    scaled, keys, values = _by_head(q).mul(kind.scale), _by_head(k), _by_head(v)
    output = _by_position(_product(scaled, keys, values, kind.causal), v)
    none = scaled.new_empty(batch, heads, 0)
    set_mass = none.new_empty(batch, heads, 0, pos)
    if sets.metric:
        rows, of_keys = _flat(scaled, q), _flat(keys, k)
        set_mass = gathered.masses(rows, of_keys, lambda s, _: s.abs_(), sets.metric, q, kind.causal)
    return output, none, set_mass, none.clone(), none.long(), none.clone()


def _flat(x: Tensor, like: Tensor) -> Tensor:
    return gathered.flat(x.unflatten(0, (like.shape[0], like.shape[2])).transpose(1, 2))


def backward(
    grad_output: Tensor, grad_set: Tensor | None, q: Tensor, k: Tensor, v: Tensor, sets: Sets, kind: Kind
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v; with `grad_set` on the CPU."""
    scaled, keys, values, g = _by_head(q).mul(kind.scale), _by_head(k), _by_head(v), _by_head(grad_output)
    g_q = _product(g, values, keys, kind.causal)
    g_k = _product(values, g, scaled, kind.causal, backwards=True)
    g_v = _product(keys, scaled, g, kind.causal, backwards=True)
    if grad_set is not None:
        rows, of_keys = _flat(scaled, q), _flat(keys, k)
        more = gathered.pull_back(
            rows, of_keys, lambda s, _: s.sign_(), grad_set, sets.metric, q, kind.causal
        )
        g_q, g_k = (
            x + y.view(q.shape).transpose(1, 2).flatten(0, 1)
            for x, y in zip((g_q, g_k), more[:2], strict=True)
        )
    return _by_position(g_q.mul_(kind.scale), q), _by_position(g_k, k), _by_position(g_v, v)
