"""Attention in plain torch with the whole map: the reference for every faster algorithm, and the CPU path for short
sequences.

    A  = scale · Q Kᵀ, zero above the diagonal (no softmax, no normalization)
    A  ← c · A on the intervened (query, key) positions
    O  = A V
    row_mass_i = Σ_j |A_ij|         set_mass_si = Σ_{j in set s of row i} |A_ij|

Every step is a differentiable torch operation, so gradients of any order exist, also through the
masses (sign(0) = 0). Half-precision inputs are computed in float32: an unnormalized score easily
passes float16's 65504.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .kind import Kind, Sets
from .sets import PositionSet

__all__ = ["attention", "linear_attention"]


def _by_head(x: Tensor) -> Tensor:
    """`[batch, pos, head, d]` -> `[batch·head, pos, d]`; a view where there is one head."""
    return x.transpose(1, 2).flatten(0, 1)


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    causal: bool,
    intervene: Tensor | None,
    c: float | Tensor,
    metric_sets: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Output `[batch, pos, head, d_v]`, row mass `[batch, head, pos]`, set mass `[batch, head, set, pos]`.

    `intervene` and `metric_sets` are bool `[1 or batch, pos, pos]`. Arguments are taken as checked.
    """
    batch, pos, heads = q.shape[:3]
    if q.dtype in (torch.float16, torch.bfloat16):
        wide_q, wide_k, wide_v = q.float(), k.float(), v.float()
    else:
        wide_q, wide_k, wide_v = q, k, v

    # In place: on a CPU, a fresh map a step costs more than the multiplication.
    attn = torch.bmm(_by_head(wide_q), _by_head(wide_k).transpose(1, 2)).mul_(scale)
    if causal:
        attn = attn.tril()
    if intervene is not None:
        by_sample = attn.view(batch, heads, pos, pos)
        attn = torch.where(intervene.unsqueeze(1), by_sample * c, by_sample).view(batch * heads, pos, pos)
    output = torch.bmm(attn, _by_head(wide_v))
    output = output.view(batch, heads, pos, v.shape[-1]).transpose(1, 2).to(v.dtype)

    # abs().sum() and not vector_norm(ord=1): the latter is some 15 times slower on rows this short.
    magnitude = attn.abs().view(batch, heads, pos, pos)
    row_mass = magnitude.sum(dim=-1)
    if not metric_sets:
        return output, row_mass, row_mass.new_empty(batch, heads, 0, pos)
    if len(metric_sets) == 1:  # by far the commonest: made in its shape, where a stack would copy it
        of_one = torch.where(metric_sets[0][:, None, None], magnitude.unsqueeze(2), 0.0).sum(dim=-1)
        return output, row_mass, of_one
    set_mass = [torch.where(chosen.unsqueeze(1), magnitude, 0.0).sum(dim=-1) for chosen in metric_sets]
    return output, row_mass, torch.stack(set_mass, dim=2)


def attention(
    q: Tensor, k: Tensor, v: Tensor, c: Tensor | None, sets: Sets, kind: Kind
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `blocked.forward`, with the map, and with gradients of any order (an entry of weight 0 gets none from the
    entropy, where its own would be infinite)."""
    batch, pos, heads, _ = q.shape
    q, k, wide_v = (x.float() if x.dtype in (torch.float16, torch.bfloat16) else x for x in (q, k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * kind.scale
    if kind.soft_cap:
        scores = kind.soft_cap * (scores / kind.soft_cap).tanh()
    entries = None if sets.intervene is None else _dense(sets.intervene, q)
    allowed = torch.ones(pos, pos, dtype=torch.bool, device=q.device)
    allowed = allowed.tril() if kind.causal else allowed
    if sets.allowed is not None:
        allowed = allowed & _dense(sets.allowed, q)
    if kind.softmax:
        if entries is not None and kind.bias == -math.inf:
            allowed = allowed & ~entries
        elif entries is not None:
            scores = torch.where(entries, scores + kind.bias, scores)
        # A row without a key becomes 0, without a NaN in its gradient.
        empty = ~allowed.any(-1, keepdim=True)
        scores = scores.masked_fill(~(allowed | empty), -math.inf)
        weights = scores.softmax(-1).masked_fill(~allowed, 0.0)
    else:
        weights = scores.masked_fill(~allowed, 0.0)
    if entries is not None:
        weights = torch.where(entries, weights * (kind.c if c is None else c), weights)
    output = torch.einsum("bhij,bjhd->bihd", weights, wide_v).to(v.dtype)
    size = weights.abs()
    row_mass = size.sum(-1)
    masses = [torch.where(_dense(chosen, q), size, 0.0).sum(-1) for chosen in sets.metric]
    set_mass = torch.stack(masses, dim=2) if masses else row_mass.new_empty(batch, heads, 0, pos)
    if not kind.statistics:
        none = row_mass.new_empty(batch, heads, 0)
        return output, row_mass, set_mass, none, none.long(), none.clone()
    largest, place = size.detach().max(-1)
    # Without a 0 under a logarithm or a fraction, whose gradient would be NaN.
    some, there = torch.where(size > 0, size, 1.0), row_mass > 0
    mass = torch.where(there, row_mass, 1.0)
    entropy = torch.where(there, mass.log() - (size * some.log()).sum(-1) / mass, math.nan)
    return output, row_mass, set_mass, largest, torch.where(largest == 0, -1, place), entropy


def _dense(chosen: PositionSet, like: Tensor) -> Tensor:
    """`[1 or batch, 1, pos, pos]`."""
    return chosen.dense(like.shape[1]).to(like.device)[:, None]
