"""Masked linear attention in plain torch: what the Triton kernels are held to, and the CPU path.

    A  = scale · Q Kᵀ, zero above the diagonal (no softmax, no normalization)
    A  ← c · A on the intervened (query, key) positions
    O  = A V
    row_mass_i = Σ_j |A_ij|         set_mass_si = Σ_{j in set s of row i} |A_ij|

Every step is a differentiable torch operation, so gradients of any order exist, also through the
masses (sign(0) = 0). Half-precision inputs are computed in float32: an unnormalized score easily
passes float16's 65504.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["linear_attention"]


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
    set_mass = [torch.where(chosen.unsqueeze(1), magnitude, 0.0).sum(dim=-1) for chosen in metric_sets]
    return output, row_mass, torch.stack(set_mass, dim=2)
