"""Cosine similarity between the hidden states of a sequence's positions (representation collapse).

`pairwise_cosine` gives the matrix, `mean_pairwise_cosine` its mean over pairs in time linear in the
number of positions. Averages run over samples first, then over pairs, as in the paper (arXiv
2506.13688); both are plain means, so their order does not matter.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from .._dispatch import choose_backend
from . import reference
from .pairs import plan_pairs

__all__ = ["mean_pairwise_cosine", "pairwise_cosine"]


def _checked(op: str, h: Tensor) -> Tensor:
    """`h` as `[lead, batch, pos, d]`."""
    if h.dim() < 3 or not h.is_floating_point():
        raise ValueError(
            f"{op}: expected a floating-point h [..., batch, pos, d]; got {h.dtype} {list(h.shape)}"
        )
    if 0 in h.shape:
        raise ValueError(f"{op}: expected no empty dimension of h; got {list(h.shape)}")
    return h.reshape(-1, *h.shape[-3:]) if h.dim() != 4 else h


def pairwise_cosine(
    h: Tensor,
    rows: slice | Sequence[int] | Tensor | None = None,
    reduce: Literal["batch_mean", "none"] = "batch_mean",
    *,
    backend: str = "auto",
) -> Tensor:
    """Cosine similarity of every pair of positions, `C_ij = h_i·h_j / (|h_i| |h_j|)`.

    Args:
        h: `[..., batch, pos, d]`, any floating dtype and strides; half precision is computed in float32.
        rows: positions to keep, as a slice, a sequence of ints or an index tensor; None keeps all.
        reduce: `"batch_mean"` averages over the batch without keeping a matrix a sample; `"none"` keeps them.
        backend: `"auto"`, `"torch"` or `"triton"`.

    Returns:
        `[..., pos, pos]`, or `[..., batch, pos, pos]` for `"none"`; float32 (float64 for float64 input),
        in [-1, 1]. Differentiable. A vector shorter than 1e-8 counts as zero: cosine 0 with everything,
        itself included, and no gradient. Norms above 1.8e19 overflow float32 and give NaN.

    Raises:
        ValueError: wrong shape, dtype or `reduce`.
        BackendUnavailable: Triton was asked for where it cannot run.
    """
    if reduce not in ("batch_mean", "none"):
        raise ValueError(f'pairwise_cosine: reduce: expected "batch_mean" or "none"; got {reduce!r}')
    flat = _checked("pairwise_cosine", h)
    if rows is not None:
        flat = flat[:, :, rows]
        _checked("pairwise_cosine (after rows)", flat)
    choose_backend("pairwise_cosine", backend, h.device, "its Triton kernel is not there yet")
    result = reference.pairwise_cosine(flat, reduce)
    return result.view(*h.shape[:-3], *result.shape[1:])


def mean_pairwise_cosine(
    h: Tensor,
    exclude: Sequence[int] = (),
    pairs: Tensor | None = None,
    per_position: bool = False,
    *,
    backend: str = "auto",
) -> Tensor:
    """Mean over samples and pairs of positions of the cosine similarity, the paper's COS.

    Linear in the number of positions where the pairs are all pairs of one or several disjoint groups of
    positions; otherwise through the full matrix.

    Args:
        h: `[..., batch, pos, d]`, any floating dtype and strides; half precision is computed in float32.
        exclude: positions left out (negative ones count from the end).
        pairs: bool `[pos, pos]`; {i, j} counts where `pairs[i, j]` or `pairs[j, i]`, the diagonal is
            ignored. None: all pairs. Best a CPU tensor that lives on: it is read on the host, once.
        per_position: instead of one mean, the mean of each kept position with the kept positions after
            it (all but the last kept one have one); not with `pairs`.
        backend: `"auto"`, `"torch"` or `"triton"`.

    Returns:
        `[...]`, or `[..., kept - 1]` with `per_position`; float32 (float64 for float64 input), in
        [-1, 1]. Norms as in `pairwise_cosine`. Differentiable.

    Raises:
        ValueError: wrong shape or dtype; no pair is left (the mean is undefined).
        BackendUnavailable: Triton was asked for where it cannot run.
    """
    flat = _checked("mean_pairwise_cosine", h)
    if per_position and pairs is not None:
        raise ValueError(
            "mean_pairwise_cosine: per_position goes with exclude, not with pairs; give one of them"
        )
    plan = plan_pairs(h.shape[-2], exclude, pairs)
    choose_backend("mean_pairwise_cosine", backend, h.device, "its Triton kernel is not there yet")
    if per_position:
        assert plan.cliques is not None
        kept = list(plan.cliques[0])
        result = reference.per_position_cosine(flat[:, :, kept] if exclude else flat)
        return result.view(*h.shape[:-3], -1)
    if plan.cliques is not None:
        result = reference.mean_cosine(flat, [_as_slice(clique) for clique in plan.cliques], plan.n_pairs)
    else:
        weights = torch.zeros(h.shape[-2], h.shape[-2], dtype=torch.bool)
        weights[tuple(torch.tensor(plan.pairs).T)] = True
        matrix = reference.pairwise_cosine(flat, "batch_mean")
        result = (matrix * weights.to(h.device)).sum(dim=(-2, -1)) / plan.n_pairs
    return result.view(h.shape[:-3])


def _as_slice(positions: tuple[int, ...]) -> slice | list[int]:
    """A slice where the positions are evenly spaced: a view instead of a gathered copy."""
    step = positions[1] - positions[0]
    evenly = all(b - a == step for a, b in pairwise(positions))
    return slice(positions[0], positions[-1] + 1, step) if evenly else list(positions)
