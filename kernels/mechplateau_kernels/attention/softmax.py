"""Softmax attention that also returns the sums attention progress is made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, overload

from torch import Tensor

from . import any_length, lse
from .choose import Request, choose, tiled_obstacle
from .inputs import (
    autocast,
    check_factor,
    check_inputs,
    check_precision,
    checked_set,
    checked_sets,
    checked_statistics,
)
from .kind import Kind, Sets
from .results import AttentionOutput, AttentionOutputWithStatistics
from .sets import PositionSet

__all__ = ["softmax_attention"]

OP = "softmax_attention"


@overload
def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = ..., causal: bool = ..., soft_cap: float | None = ...,
    allowed: PositionSet | Tensor | None = ..., intervene: PositionSet | Tensor | None = ...,
    c: float | Tensor = ..., bias: float = ..., metric_sets: Sequence[PositionSet | Tensor] = ...,
    row_mass: bool = ..., row_statistics: Literal[False] = ..., backend: str = ..., precision: str = ...,
    algorithm: str = ...,
) -> AttentionOutput: ...  # fmt: skip
@overload
def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = ..., causal: bool = ..., soft_cap: float | None = ...,
    allowed: PositionSet | Tensor | None = ..., intervene: PositionSet | Tensor | None = ...,
    c: float | Tensor = ..., bias: float = ..., metric_sets: Sequence[PositionSet | Tensor] = ...,
    row_mass: bool = ..., row_statistics: Literal[True, "entropy"], backend: str = ..., precision: str = ...,
    algorithm: str = ...,
) -> AttentionOutputWithStatistics: ...  # fmt: skip
def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    causal: bool = True,
    soft_cap: float | None = None,
    allowed: PositionSet | Tensor | None = None,
    intervene: PositionSet | Tensor | None = None,
    c: float | Tensor = 1.0,
    bias: float = 0.0,
    metric_sets: Sequence[PositionSet | Tensor] = (),
    row_mass: bool = True,
    row_statistics: bool | Literal["entropy"] = False,
    backend: str = "auto",
    precision: str = "auto",
    algorithm: str = "auto",
) -> AttentionOutput | AttentionOutputWithStatistics:
    """Softmax attention `O = A V`, `A = softmax(scale·QKᵀ)` over the keys a query may attend to, of any length.

    No map is built: memory grows with the length, not with its square. There are two interventions on a set:
    `bias` is added to its scores before the softmax, so that rows still sum to 1; `c` multiplies its weights after
    the softmax, and rows then do not sum to 1. `bias=-math.inf` and `c=0.0` are exact knock-outs.

    Args:
        q, k: `[batch, pos, head, d_head]`, any strides; one dtype for q, k and v. The batch may be empty.
        v: `[batch, pos, head, d_v]`; d_v may differ from d_head.
        scale: factor of QKᵀ; None: 1/√d_head.
        causal: no weight on keys after the query.
        soft_cap: scores become cap·tanh(score / cap), as in Gemma 2; None: they stay.
        allowed: the keys a query may attend to, besides causality (a local window is `Offsets(0, size - 1)`). A set
            (`Offsets`, `First`, `Codes`, `Listed`, their intersections) or a bool mask `[pos, pos]` or
            `[batch, pos, pos]` (query, key).
        intervene: a set or mask, for `c` and `bias`.
        c: a float, or a 0-d tensor: factor after the softmax.
        bias: added to scores before the softmax.
        metric_sets: sets or masks to sum |A| over.
        row_mass: False leaves the row mass out (its last dimension is then 0).
        row_statistics: also return each row's largest weight, its position and the row's entropy; `"entropy"`: of
            these the entropy alone (the others' last dimension is then 0), which is faster.
        backend: `"auto"`, `"torch"` or `"triton"`.
        precision: how Triton multiplies float32, as for `linear_attention`.
        algorithm: `"auto"`, or one of `mk.report()`'s table.

    Returns:
        `AttentionOutput(output, row_mass, set_mass)`, with `row_statistics` `AttentionOutputWithStatistics`;
        differentiable in q, k, v, also through the masses and the entropy. A row without any key is 0. A NaN or
        infinity in v may reach every row, one in q or k the rows whose scores it is in.

    Raises:
        ValueError: shapes, dtypes or devices that do not fit, each named; an algorithm that cannot do this.
        TypeError: something that should be a tensor is none.
        BackendUnavailable: Triton was requested where it cannot run.
    """
    check_inputs(OP, q, k, v)
    check_precision(OP, precision)
    check_factor(OP, c, q)
    chosen = None if intervene is None else checked_set(OP, "intervene", intervene, q)
    permitted = None if allowed is None else checked_set(OP, "allowed", allowed, q)
    sets = checked_sets(OP, "metric_sets", metric_sets, q)
    statistics = checked_statistics(OP, row_statistics)
    if soft_cap is not None and not soft_cap > 0:
        raise ValueError(f"{OP}: soft_cap: expected a number above 0, or None; got {soft_cap}")
    # Not math.isnan, which torch.compile cannot trace.
    if not bias < math.inf:
        raise ValueError(f"{OP}: bias: expected a number below infinity; got {bias}")
    if not isinstance(c, Tensor):
        c = float(c)
        if c == 1.0 and bias == 0.0:
            chosen = None
    elif chosen is None:
        c = 1.0

    q, k, v = autocast(q, k, v)
    learned = isinstance(c, Tensor) and c.requires_grad
    kind = Kind(
        softmax=True, scale=1.0 / math.sqrt(q.shape[3]) if scale is None else float(scale),
        soft_cap=float(soft_cap or 0.0), causal=causal, c=1.0, bias=float(bias),
        n_sets=len(sets), allowed=permitted is not None, intervene=chosen is not None, statistics=statistics,
        row_mass=row_mass, algorithm="", precision=precision,
    )  # fmt: skip
    obstacles = {
        "tile": lambda: "the tile kernels are for linear attention",
        "tiled": lambda: tiled_obstacle(q, v, c, sets, (permitted, chosen)),
        "lse": lambda: lse.obstacle(q, v, kind, sets, (permitted, chosen)),
        "chunk": lambda: "it is for linear attention",
    }
    request = Request(OP, q.shape[1], q.device, learned, obstacles, sets)
    kind = kind._replace(algorithm=choose(request, backend, algorithm))
    return any_length.run(q, k, v, c, Sets(sets, permitted, chosen), kind)
