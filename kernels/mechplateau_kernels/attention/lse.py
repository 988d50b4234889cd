"""Softmax attention through torch's own flash kernel, with the masses of sets of few keys gathered afterwards.

The kernel gives the output and of each row the logarithm of its sum of exponentials. With s_ij = scale · q_i·k_j:

    O, L = flash(Q, K, V),  L_i = log Σ_j exp s_ij,  p_ij = exp(s_ij - L_i)
    row_mass = 1,  set_mass = Σ_{j in set} p_ij, over the listed keys alone
    entropy = L_i - Σ_j p_ij s_ij = L_i - scale · q_i·(P K)_i, where K goes through the kernel beside V

Backward, with g the gradient of a set's mass and h that of the entropy, what reaches the scores is

    dS = P (dO Vᵀ + Σ_sets g [j in set] - h s - D),  D_i = dO_i·O_i + Σ_sets g_i set_mass_i - h_i Σ_j p_ij s_ij

The kernel's own backward pass takes D from the products of dO and O, row by row. So beside V and K, V gets a column of
zeros, dO one of ones and O one with what D has from the sets; beside K, dO has -h · scale · Q. The listed entries' own
part is added by gathering.

A row with a score that is no number, or with none above -inf, is NaN, as with the map.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .._launch import regular
from . import gathered
from .kind import Kind, Sets
from .sets import LISTED_UP_TO, PositionSet

__all__ = ["backward", "forward", "kept_shapes", "obstacle"]

ON_CPU, ON_CUDA = "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"
DTYPES = {"cpu": (torch.float32, torch.float64), "cuda": (torch.float16, torch.bfloat16)}
WIDEST = 256
"""Of a head, on CUDA."""


def obstacle(
    q: Tensor,
    v: Tensor,
    kind: Kind,
    metric: Sequence[PositionSet],
    others: Sequence[PositionSet | None],
) -> str | None:
    """Why attention cannot go this way, or None. Of `kind` the algorithm is not looked at."""
    device = q.device.type
    name = {"cpu": ON_CPU, "cuda": ON_CUDA}.get(device)
    if name is None or not hasattr(torch.ops.aten, name):
        return f"this torch has no flash kernel that gives sums of exponentials on {device}"
    if q.dtype not in DTYPES[device]:
        known = " and ".join(str(x).removeprefix("torch.") for x in DTYPES[device])
        return f"torch's kernel is used for {known} there, and q is {q.dtype}"
    if kind.statistics == "all":
        return 'it cannot give the largest weight of a row, only its entropy (row_statistics="entropy")'
    if kind.soft_cap:
        return "torch's kernel takes no soft cap"
    if any(x is not None for x in others):
        return "torch's kernel takes no allowed set and no intervention"
    if device == "cuda" and (max(_widths(q, v, kind)) > WIDEST or kind.scale <= 0):
        return f"torch's kernel takes widths up to {WIDEST}, and a scale above 0"
    for chosen in metric:
        if gathered.few_keys(chosen) is None:
            return f"it gathers sets of up to {LISTED_UP_TO} keys a query, and {chosen.name} is not known to be one"
    return None


def _widths(q: Tensor, v: Tensor, kind: Kind) -> tuple[int, int]:
    """Of queries, and of what goes through the kernel as values."""
    return q.shape[3], v.shape[3] + (q.shape[3] if kind.statistics else 0)


def _alike(device: str, *tensors: Tensor) -> list[Tensor]:
    """`[batch, head, pos, d]` each, with zeros behind where one is narrower: the kernel knows one width."""
    width = max(x.shape[3] for x in tensors)
    if device == "cuda":
        width = -(-width // 8) * 8
    padded = (x if x.shape[3] == width else F.pad(x, (0, width - x.shape[3])) for x in tensors)
    return [regular(x).transpose(1, 2) for x in padded]


def _scaled(q: Tensor, kind: Kind) -> tuple[Tensor, float]:
    """Queries and scale for the kernel, which takes what causality forbids times the scale, and -inf for it."""
    return (q, kind.scale) if kind.scale > 0 else (q * kind.scale, 1.0)


def _in_kernel(q: Tensor, k: Tensor, v: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """`[batch, pos, head, width]` and `[batch, head, pos]`."""
    q, scale = _scaled(q, kind)
    turned: list[Any] = _alike(q.device.type, q, k, v)
    if q.device.type == "cpu":
        output, lse = getattr(torch.ops.aten, ON_CPU)(*turned, 0.0, kind.causal, scale=scale)
    else:
        output, lse = getattr(torch.ops.aten, ON_CUDA)(*turned, 0.0, kind.causal, False, scale=scale)[:2]
    return output.transpose(1, 2), lse[..., : q.shape[1]]


def _weigh(lse: Tensor, scale: float = 1.0) -> gathered.Weigh:
    """Weights of scores times the scale, from `[batch, head, pos]`."""
    of_rows = lse.transpose(1, 2).reshape(-1, lse.shape[1])
    return lambda scores, rows: scores.mul_(scale).sub_(of_rows[rows]).exp_()


def kept_shapes(q: Tensor, v: Tensor, kind: Kind) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of what `forward` gives for `backward`: what came out of the kernel, and L. Empty on CUDA, where others give the
    gradients."""
    batch, pos, heads, _ = q.shape
    if q.device.type == "cuda":
        return (0,), (0,)
    return (batch, pos, heads, max(_widths(q, v, kind))), (batch, heads, pos)


def forward(q: Tensor, k: Tensor, v: Tensor, sets: Sets, kind: Kind) -> tuple[Tensor, ...]:
    """As `blocked.forward`, and what `backward` needs. Largest weights and their positions are empty."""
    batch, pos, heads, d_head = q.shape
    d_v = v.shape[3]
    found, lse = _in_kernel(q, k, torch.cat([v, k], dim=3) if kind.statistics else v, kind)
    nothing = lse - lse  # NaN where a row is none, otherwise 0
    row_mass = nothing + 1.0
    output = found[..., :d_v] + nothing.transpose(1, 2)[..., None].to(found.dtype)
    wide_q, wide_k = (x.float() if x.dtype in DTYPES["cuda"] else x for x in (q, k))
    set_mass = row_mass.new_empty(batch, heads, 0, pos)
    if sets.metric:
        rows, keys = gathered.flat(wide_q), gathered.flat(wide_k)
        set_mass = gathered.masses(rows, keys, _weigh(lse, kind.scale), sets.metric, q, kind.causal)
    none = row_mass.new_empty(batch, heads, 0)
    entropy = none.clone()
    if kind.statistics:
        mean_score = (wide_q * found[..., d_v : d_v + d_head]).sum(-1).mul_(kind.scale).transpose(1, 2)
        entropy = (lse - mean_score).clamp_min(0.0).contiguous()
    # `.data` is no view, which would be copied; what it was a view of is not kept.
    kept = [x.contiguous().data if x.device.type == "cpu" else row_mass.new_empty(0) for x in (found, lse)]
    return output, row_mass.contiguous(), set_mass, none, none.long(), entropy, *kept


def backward(
    grad_output: Tensor, grad_set: Tensor | None, grad_entropy: Tensor | None, kept: Tensor, lse: Tensor,
    q: Tensor, k: Tensor, v: Tensor, sets: Sets, kind: Kind,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k and v from what `forward` kept, on the CPU. The row mass is 1 and gives none."""
    scaled = q * kind.scale
    g, values, o = [grad_output], [v], [kept[..., : v.shape[3]]]
    if grad_entropy is not None:
        g.append(-grad_entropy.transpose(1, 2)[..., None] * scaled)
        values.append(k)
        o.append(kept[..., v.shape[3] : v.shape[3] + k.shape[3]])
    if grad_set is not None:
        rows, keys = gathered.flat(scaled), gathered.flat(k)
        *more, of_rows = gathered.pull_back(rows, keys, _weigh(lse), grad_set, sets.metric, q, kind.causal)
        rest = of_rows.view(*q.shape[:3], 1)
        g.append(torch.ones_like(rest))
        values.append(torch.zeros_like(rest))
        o.append(rest)
    for_kernel, scale = _scaled(q, kind)
    given = _alike("cpu", torch.cat(g, dim=3), for_kernel, k, torch.cat(values, dim=3), torch.cat(o, dim=3))
    of_kernel = getattr(torch.ops.aten, f"{ON_CPU}_backward")
    found = of_kernel(*given, lse, 0.0, kind.causal, scale=scale)
    g_q, g_k, g_v = (x.transpose(1, 2)[..., : y.shape[3]] for x, y in zip(found, (q, k, v), strict=True))
    if kind.scale <= 0:
        g_q = g_q * kind.scale
    if grad_set is not None:
        g_q = g_q + more[0].view(q.shape).mul_(kind.scale)
        g_k = g_k + more[1].view(k.shape)
    return g_q, g_k, g_v
