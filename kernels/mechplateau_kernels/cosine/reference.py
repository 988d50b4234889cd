"""Cosine similarity between positions in plain torch: what the kernels are held to, and the CPU path.

    u_i     = h_i / |h_i|, or 0 where |h_i| < FLOOR
    C_ij    = u_i · u_j                                  one matrix per sample, then the batch mean
    Σ_{i<j} C_ij over a set P of positions = (|Σ_P u_i|² − Σ_P |u_i|²) / 2

The second form needs no matrix: its cost is linear in the number of positions. Half-precision
inputs are computed in float32. A vector shorter than FLOOR counts as zero: its cosine with everything,
itself included, is 0, and so is its gradient (which would otherwise be of the size 1/FLOOR, beyond
float16).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._dispatch import full_precision

__all__ = ["FLOOR", "mean_cosine", "mean_cosine_of_groups", "pairwise_cosine", "per_position_cosine"]

FLOOR = 1e-8
"""Vectors shorter than this count as zero."""


CHUNK_ELEMENTS = 1 << 22
"""A batch mean works on this many matrix elements at a time, so that memory does not grow with the batch."""


def widen(h: Tensor) -> Tensor:
    return h.float() if h.dtype in (torch.float16, torch.bfloat16) else h


class _Product(torch.autograd.Function):
    """`torch.bmm` with a backward that is never autocast."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        with full_precision(a.device):
            return torch.bmm(a, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return _product(grad, b.transpose(1, 2)), _product(a.transpose(1, 2), grad)

    @staticmethod
    def jvp(ctx: Any, a_tangent: Tensor, b_tangent: Tensor) -> Tensor:
        a, b = ctx.saved_tensors
        return _product(a_tangent, b) + _product(a, b_tangent)


def _product(a: Tensor, b: Tensor) -> Tensor:
    if torch.compiler.is_compiling():  # Dynamo takes no function with a jvp of its own
        with full_precision(a.device):
            return torch.bmm(a, b)
    product: Tensor = _Product.apply(a, b)
    return product


def _matrices(wide: Tensor) -> Tensor:
    gram = _product(wide, wide.transpose(1, 2))
    # Norms from the Gram matrix's own diagonal: no second pass over h, and the rounding of numerator
    # and denominator is correlated. The clamp comes before the root: its gradient at 0 is infinite.
    squared = gram.diagonal(dim1=-2, dim2=-1)
    inverse = torch.where(squared < FLOOR**2, 0.0, squared.clamp_min(FLOOR**2).rsqrt())
    cosine = gram * inverse.unsqueeze(-1) * inverse.unsqueeze(-2)
    # Rounding can leave 1 + 1e-7; the gradient at ±1 is 0 in exact arithmetic as well.
    return cosine.clamp(-1.0, 1.0)


def pairwise_cosine(h: Tensor, reduce: str) -> Tensor:
    """`[lead, batch, pos, d]` -> `[lead, pos, pos]` (batch mean) or `[lead, batch, pos, pos]`."""
    lead, batch, pos, d = h.shape
    wide = widen(h)
    if reduce == "none":
        return _matrices(wide.reshape(lead * batch, pos, d)).view(lead, batch, pos, pos)
    chunk = max(1, CHUNK_ELEMENTS // (lead * pos * pos))
    total = None
    for start in range(0, batch, chunk):
        some = wide[:, start : start + chunk]
        part = _matrices(some.reshape(-1, pos, d)).view(lead, -1, pos, pos).sum(dim=1)
        total = part if total is None else total + part
    assert total is not None
    return total / batch


def norms(wide: Tensor) -> tuple[Tensor, Tensor]:
    """Norms `[..., pos]` and their inverses, 0 for vectors that count as zero (whose norms are not to be used)."""
    norm = torch.linalg.vector_norm(wide, dim=-1)
    short = norm < FLOOR
    if torch.is_grad_enabled():
        # Of another vector, since the second derivative of a zero vector's norm would be 0/0.
        norm = torch.linalg.vector_norm(torch.where(short.unsqueeze(-1), 1.0, wide), dim=-1)
    return norm, torch.where(short, 0.0, norm.clamp_min(FLOOR).reciprocal())


def mean_cosine(h: Tensor, cliques: Sequence[Sequence[int] | slice | Tensor], n_pairs: int) -> Tensor:
    """Mean over samples and over the pairs inside each clique: `[lead, batch, pos, d]` -> `[lead]`."""
    lead, batch, _, d = h.shape
    sums = []
    for clique in cliques:
        wide = widen(h[:, :, clique])
        norm, inverse = norms(wide)
        pos = wide.shape[2]
        # Σ u_i as a product with the inverse norms: the unit vectors are never written to memory.
        total = _product(inverse.view(lead * batch, 1, pos), wide.reshape(lead * batch, pos, d))
        own = (norm * inverse).square().sum(dim=(1, 2))
        sums.append((total.square().view(lead, -1).sum(dim=1) - own) / 2)
    return (torch.stack(sums).sum(dim=0) / (batch * n_pairs)).clamp(-1.0, 1.0)


def mean_cosine_of_groups(h: Tensor, groups: Tensor, n_groups: int, n_pairs: int) -> Tensor:
    """As `mean_cosine`, with the group of each position as int `[pos]` on the device, -1 for none.

    Nothing is read back, so that it can be captured in a CUDA graph.
    """
    wide = widen(h)
    counts = (groups >= 0) & ~(torch.linalg.vector_norm(wide.detach(), dim=-1) < FLOOR)
    # Replaced before anything is computed, and not multiplied by 0 after it: a NaN that is left out must not
    # count, and the second derivative of a zero vector's norm would be 0/0.
    kept = torch.where(counts.unsqueeze(-1), wide, 1.0)
    unit = torch.where(counts.unsqueeze(-1), kept / torch.linalg.vector_norm(kept, dim=-1, keepdim=True), 0.0)
    member = groups == torch.arange(n_groups, device=h.device).unsqueeze(1)
    total = (member.to(unit.dtype) @ unit).square().sum(dim=(1, 2, 3))
    own = unit.square().sum(dim=(1, 2, 3))
    return ((total - own) / (2 * h.shape[1] * n_pairs)).clamp(-1.0, 1.0)


def per_position_cosine(h: Tensor) -> Tensor:
    """Mean over samples and later positions, `[lead, batch, pos, d]` -> `[lead, pos - 1]`."""
    wide = widen(h)
    pos = h.shape[2]
    unit = wide * norms(wide)[1].unsqueeze(-1)
    later = unit[:, :, 1:].flip(2).cumsum(dim=2).flip(2)
    count = torch.arange(pos - 1, 0, -1, device=h.device)
    return ((unit[:, :, :-1] * later).sum(dim=-1).mean(dim=1) / count).clamp(-1.0, 1.0)
