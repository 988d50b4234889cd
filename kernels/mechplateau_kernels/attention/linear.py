"""Masked linear attention that also returns the sums attention progress is made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Literal, overload

import torch
from torch import Tensor

from .._dispatch import autocast_dtype, full_precision
from . import any_length, chunk, reference
from .choose import SHORT, Request, choose, choose_short, tiled_obstacle
from .configs import MAX_POSITIONS, MAX_WIDTH, Options
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
from .ops import fused_linear_attention
from .planes import MAX_PLANES, pack
from .results import AttentionOutput, AttentionOutputWithStatistics
from .sets import PositionSet

__all__ = ["linear_attention"]

OP = "linear_attention"


def _obstacle(q: Tensor, v: Tensor, c: float | Tensor, n_planes: int, plain: bool) -> str | None:
    """Why the tile kernels cannot take this call, or None."""
    if not plain:
        return "the kernels take no allowed set and give no statistics of rows"
    if q.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"the kernels take float32, float16 and bfloat16, and q is {q.dtype}"
    if q.shape[1] > MAX_POSITIONS:
        return f"the kernels take up to {MAX_POSITIONS} positions, and there are {q.shape[1]}"
    if max(q.shape[3], v.shape[3]) > MAX_WIDTH:
        return f"the kernels take heads up to {MAX_WIDTH} wide; got {q.shape[3]} and {v.shape[3]}"
    if n_planes > MAX_PLANES:
        return f"the kernels take {MAX_PLANES} sets, the intervention's included, and there are {n_planes}"
    if isinstance(c, Tensor) and c.requires_grad:
        return "the kernels give no gradient of c"
    return None


@overload
def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = ..., causal: bool = ...,
    allowed: PositionSet | Tensor | None = ..., intervene: PositionSet | Tensor | None = ...,
    c: float | Tensor = ..., metric_sets: Sequence[PositionSet | Tensor] = ...,
    row_mass: bool = ..., row_statistics: Literal[False] = ..., backend: str = ..., precision: str = ...,
    algorithm: str = ...,
) -> AttentionOutput: ...  # fmt: skip
@overload
def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = ..., causal: bool = ...,
    allowed: PositionSet | Tensor | None = ..., intervene: PositionSet | Tensor | None = ...,
    c: float | Tensor = ..., metric_sets: Sequence[PositionSet | Tensor] = ...,
    row_mass: bool = ..., row_statistics: Literal[True, "entropy"], backend: str = ..., precision: str = ...,
    algorithm: str = ...,
) -> AttentionOutputWithStatistics: ...  # fmt: skip
def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    causal: bool = True,
    allowed: PositionSet | Tensor | None = None,
    intervene: PositionSet | Tensor | None = None,
    c: float | Tensor = 1.0,
    metric_sets: Sequence[PositionSet | Tensor] = (),
    row_mass: bool = True,
    row_statistics: bool | Literal["entropy"] = False,
    backend: str = "auto",
    precision: str = "auto",
    algorithm: str = "auto",
) -> AttentionOutput | AttentionOutputWithStatistics:
    """Linear attention `O = A V`, `A = scale·QKᵀ` with zeros above the diagonal and no softmax, of any length.

    After masking, A is multiplied by `c` on `intervene` (the paper's attention scaling), and the masses
    that attention progress is made of are taken from the result. Beyond 64 positions no map is built: memory
    grows with the length, not with its square.

    Args:
        q, k: `[batch, pos, head, d_head]`, any strides; one dtype for q, k and v. The batch may be empty.
        v: `[batch, pos, head, d_v]`; d_v may differ from d_head.
        scale: factor of QKᵀ; None: 1/√d_head.
        causal: zero A above the diagonal.
        allowed: the keys a query may attend to, besides causality; A is 0 elsewhere. A set (`Offsets`, `First`,
            `Codes`, `Listed`, their intersections) or a bool mask `[pos, pos]` or `[batch, pos, pos]` (query, key).
        intervene: a set or mask: where A is multiplied by c.
        c: a float, or a 0-d tensor (which may change without a new compilation or graph capture).
        metric_sets: sets or masks to sum |A| over.
        row_mass: False leaves the row mass out (its last dimension is then 0), and long attention can go in chunks, in
            time that grows with the length and not with its square.
        row_statistics: also return each row's largest weight, its position and the row's entropy; `"entropy"`: of
            these the entropy alone (the others' last dimension is then 0).
        backend: `"auto"`, `"torch"` or `"triton"`.
        precision: how Triton multiplies float32: `"tf32x3"` and `"ieee"` keep float32 accuracy, `"tf32"`
            does not; `"auto"` is tf32x3, or tf32 where `torch.get_float32_matmul_precision()` is not
            `"highest"`. The torch path always follows torch's own setting.
        algorithm: `"auto"`, or one of `mk.report()`'s table.

    Returns:
        `AttentionOutput(output, row_mass, set_mass)`, with `row_statistics` `AttentionOutputWithStatistics`;
        differentiable in q, k, v, also through the masses and the entropy. A NaN or infinity in v may reach every
        row, as with a matrix product of zeros.

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
    scale = 1.0 / math.sqrt(q.shape[3]) if scale is None else float(scale)
    if not isinstance(c, Tensor):
        c = float(c)
        if c == 1.0:
            chosen = None
    elif chosen is None:
        c = 1.0

    casting = autocast_dtype(q.device) is not None
    if casting:
        q, k, v = autocast(q, k, v)
    pos = q.shape[1]
    plain = permitted is None and not statistics
    obstacle = _obstacle(q, v, c, len(sets) + (chosen is not None), plain)
    if algorithm == "auto" and plain and pos <= SHORT:
        algorithm = choose_short(OP, backend, q.device, obstacle)
    else:
        kind = Kind(
            softmax=False, scale=scale, soft_cap=0.0, causal=causal, c=1.0, bias=0.0,
            n_sets=len(sets), allowed=permitted is not None, intervene=chosen is not None, statistics=statistics,
            row_mass=row_mass, algorithm="", precision=precision,
        )  # fmt: skip
        obstacles = {
            "tile": lambda: obstacle,
            "tiled": lambda: tiled_obstacle(q, v, c, sets, (permitted, chosen)),
            "lse": lambda: "it is for softmax attention",
            "chunk": lambda: chunk.obstacle(kind, sets, (permitted, chosen)),
        }
        learned = isinstance(c, Tensor) and c.requires_grad
        algorithm = choose(Request(OP, pos, q.device, learned, obstacles, sets), backend, algorithm)
        if algorithm != "tile" and not (plain and algorithm == "map"):
            given = Sets(sets, permitted, chosen)
            return any_length.run(q, k, v, c, given, kind._replace(algorithm=algorithm))
    if algorithm == "tile":
        options = Options(1.0, scale, causal, chosen is not None, len(sets), precision)
        return _asked_for(AttentionOutput(*_by_tile(q, k, v, c, chosen, sets, options)), row_mass)
    mask = None if chosen is None else chosen.dense(pos).to(q.device)
    masks = [one.dense(pos).to(q.device) for one in sets]
    with full_precision(q.device) if casting else nullcontext():
        results = reference.linear_attention(q, k, v, scale, causal, mask, c, masks)
    return _asked_for(AttentionOutput(*results), row_mass)


def _asked_for(out: AttentionOutput, row_mass: bool) -> AttentionOutput:
    return out if row_mass else out._replace(row_mass=out.row_mass[..., :0])


def _by_tile(
    q: Tensor, k: Tensor, v: Tensor, c: float | Tensor, chosen: PositionSet | None, sets: list[PositionSet],
    options: Options,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    c_tensor = None
    if isinstance(c, Tensor):
        # A factor on the host is read now; one on the device when the kernel runs.
        c_tensor = c.float() if c.device == q.device else None
        c = 1.0 if c_tensor is not None else float(c)
    masks = [s.dense(q.shape[1]).to(q.device) for s in sets]
    bits = pack(None if chosen is None else chosen.dense(q.shape[1]).to(q.device), masks)
    return fused_linear_attention(q, k, v, bits, c_tensor, options._replace(c=c))
