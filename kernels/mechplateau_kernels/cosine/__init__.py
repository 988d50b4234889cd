"""Cosine similarity between the hidden states of a sequence's positions (representation collapse).

`pairwise_cosine` gives the matrix, `mean_pairwise_cosine` its mean over pairs in time linear in the
number of positions. Averages run over samples first, then over pairs, as in the paper (arXiv
2506.13688); both are plain means, so their order does not matter.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from .._dispatch import DTYPES, choose_backend, full_precision
from . import reference
from .configs import MAX_MATRIX_POSITIONS, MAX_MEAN_POSITIONS, MAX_WIDTH
from .ops import fused_mean_cosine, fused_pairwise_cosine
from .pairs import plan_pairs

__all__ = ["mean_pairwise_cosine", "pairwise_cosine"]


def _checked(op: str, h: Tensor) -> Tensor:
    """`h` as `[lead, batch, pos, d]`."""
    if not isinstance(h, Tensor):
        raise TypeError(f"{op}: expected a tensor h [..., batch, pos, d]; got {type(h).__name__}")
    if h.dim() < 3 or h.dtype not in DTYPES:
        raise ValueError(
            f"{op}: expected a floating-point h [..., batch, pos, d] of 16 to 64 bits; got {h.dtype} {list(h.shape)}"
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
        ValueError: wrong shape, dtype, `rows` or `reduce`.
        TypeError: h is no tensor.
        BackendUnavailable: Triton was requested where it cannot run.
    """
    if reduce not in ("batch_mean", "none"):
        raise ValueError(f'pairwise_cosine: reduce: expected "batch_mean" or "none"; got {reduce!r}')
    flat = _checked("pairwise_cosine", h)
    if rows is not None:
        if isinstance(rows, int) or (isinstance(rows, Tensor) and rows.dim() != 1):
            got = rows if isinstance(rows, int) else f"a tensor of shape {list(rows.shape)}"
            raise ValueError(
                f"pairwise_cosine: rows: expected a slice, a sequence of ints or a 1-d tensor; got {got}"
            )
        flat = flat[:, :, rows]
        _checked("pairwise_cosine (after rows)", flat)
    result = _matrix("pairwise_cosine", flat, backend, reduce)
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
            ignored. None: all pairs. Best a CPU tensor that lives on: it is read on the host, once
            (which torch.compile cannot trace).
        per_position: instead of one mean, the mean of each kept position with the kept positions after
            it (all but the last kept one have one); not with `pairs`.
        backend: `"auto"`, `"torch"` or `"triton"`.

    Returns:
        `[...]`, or `[..., kept - 1]` with `per_position`; float32 (float64 for float64 input), in
        [-1, 1]. Norms as in `pairwise_cosine`. Differentiable.

    Raises:
        ValueError: wrong shape or dtype; no pair is left (the mean is undefined).
        TypeError: h or pairs is no tensor, or exclude no sequence of ints.
        BackendUnavailable: Triton was requested where it cannot run.
    """
    flat = _checked("mean_pairwise_cosine", h)
    if per_position and pairs is not None:
        raise ValueError(
            "mean_pairwise_cosine: per_position goes with exclude, not with pairs; give one of them"
        )
    plan = plan_pairs(h.shape[-2], exclude, pairs)
    if per_position:
        assert plan.cliques is not None
        kept = flat[:, :, _indices(plan.cliques[0])]
        result = _per_position(kept, backend)
        return result.view(*h.shape[:-3], -1)
    if plan.cliques is None:
        matrix = _matrix("mean_pairwise_cosine", flat, backend, "batch_mean")
        weights = _pair_weights(plan.pairs, h.shape[-2], h.device)
        return (matrix * weights).sum(dim=(-2, -1)).view(h.shape[:-3])
    obstacle = _obstacle(flat, MAX_MEAN_POSITIONS, MAX_WIDTH)
    if choose_backend("mean_pairwise_cosine", backend, h.device, obstacle) == "triton":
        groups = _groups(plan.cliques, h.shape[-2], h.device)
        return fused_mean_cosine(flat, groups, len(plan.cliques), plan.n_pairs).view(h.shape[:-3])
    with full_precision(h.device):
        cliques = [_indices(clique) for clique in plan.cliques]
        return reference.mean_cosine(flat, cliques, plan.n_pairs).view(h.shape[:-3])


def _obstacle(h: Tensor, max_positions: int, max_width: int) -> str | None:
    """Why a kernel cannot take this call, or None."""
    if h.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"the kernels take float32, float16 and bfloat16, and h is {h.dtype}"
    if h.shape[2] > max_positions:
        return f"the kernel takes up to {max_positions} positions, and there are {h.shape[2]}"
    if h.shape[3] > max_width:
        return f"the kernel takes vectors up to {max_width} wide, and these are {h.shape[3]}"
    return None


def _matrix(op: str, flat: Tensor, backend: str, reduce: str) -> Tensor:
    obstacle = _obstacle(flat, MAX_MATRIX_POSITIONS, MAX_WIDTH)
    if choose_backend(op, backend, flat.device, obstacle) == "triton":
        return fused_pairwise_cosine(flat, reduce == "none")
    with full_precision(flat.device):
        return reference.pairwise_cosine(flat, reduce)


def _per_position(kept: Tensor, backend: str) -> Tensor:
    """Short sequences through the matrix kernel, whose cost is then a launch; the rest in linear time."""
    pos = kept.shape[2]
    obstacle = _obstacle(kept, MAX_MATRIX_POSITIONS, MAX_WIDTH)
    if choose_backend("mean_pairwise_cosine", backend, kept.device, obstacle) == "triton":
        later = fused_pairwise_cosine(kept, False).triu(1).sum(dim=-1)[:, :-1]
        return later / torch.arange(pos - 1, 0, -1, device=kept.device)
    with full_precision(kept.device):
        return reference.per_position_cosine(kept)


def _indices(positions: tuple[int, ...]) -> slice | list[int]:
    """A slice where the positions are evenly spaced: a view instead of a gathered copy."""
    step = positions[1] - positions[0]
    evenly = all(b - a == step for a, b in pairwise(positions))
    return slice(positions[0], positions[-1] + 1, step) if evenly else list(positions)


# Kept on the device: copying a plan there at every call would wait for the device.
_constants: dict[tuple[object, ...], Tensor] = {}


def _constant(key: tuple[object, ...], make: Callable[[], Tensor]) -> Tensor:
    if torch.compiler.is_compiling():
        return make()
    if key not in _constants:
        # An inference tensor could not take part in a later backward pass.
        with torch.inference_mode(False):
            _constants[key] = make()
    return _constants[key]


def _groups(cliques: tuple[tuple[int, ...], ...], pos: int, device: torch.device) -> Tensor:
    """int32 `[pos]`: the clique of each position, -1 for none."""
    number = {position: n for n, clique in enumerate(cliques) for position in clique}
    groups = tuple(number.get(position, -1) for position in range(pos))
    key = ("groups", groups, device)
    return _constant(key, lambda: torch.tensor(groups, dtype=torch.int32, device=device))


def _pair_weights(pairs: tuple[tuple[int, int], ...], pos: int, device: torch.device) -> Tensor:
    """`[pos, pos]`: 1/number of pairs at each pair."""
    chosen = set(pairs)
    weights = [[1 / len(pairs) if (i, j) in chosen else 0.0 for j in range(pos)] for i in range(pos)]
    return _constant(("weights", pairs, pos, device), lambda: torch.tensor(weights, device=device))
