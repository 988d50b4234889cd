"""Launches of the cosine kernels, on tensors as `_launch.regular` makes them. Imports triton."""

import torch
import triton
from torch import Tensor

from .._launch import LAUNCH_OPTIONS, allocate, chunk_of
from . import gram, mean
from .configs import GRAM_STAGES, GRAM_WARPS, MAX_SHARES, MEAN_WARPS, gram_blocks, mean_blocks
from .reference import FLOOR

__all__ = ["mean_cosine", "pairwise_cosine", "shares_of"]

INTERPRETED = not isinstance(gram.gram_kernel, triton.JITFunction)


def _sum_shares(shares: Tensor) -> Tensor:
    """`[lead, shares, n]` -> `[lead, n]`."""
    lead, n_shares, n_values = shares.shape
    result = allocate((lead, n_values), torch.float32, shares.device)
    block = min(chunk_of(n_values, 64), 64)
    gram.sum_shares_kernel[(lead * -(-n_values // block),)](
        shares, result, n_shares, n_values, BS=64, BN=block, num_warps=4, **LAUNCH_OPTIONS
    )
    return result


def shares_of(batch: int, per_sample: bool = False) -> int:
    """How many programs a batch is shared among."""
    return batch if per_sample else min(batch, MAX_SHARES)


def pairwise_cosine(
    h: Tensor, per_sample: bool, factor: float | None = None, n_shares: int | None = None
) -> Tensor:
    """`[lead, batch, pos, d]` -> `[lead, batch, pos, pos]` or, averaged, `[lead, pos, pos]`.

    `factor` (None: 1/batch) of the sum over samples, and the number of shares, are the exact test's to choose.
    """
    lead, batch, pos, d = h.shape
    blocks = gram_blocks(h.element_size(), pos, d)
    n_shares = n_shares or shares_of(batch, per_sample)
    factor = factor or (1.0 if per_sample else 1.0 / batch)
    shares = allocate((lead, n_shares, pos, pos), torch.float32, h.device)
    gram.gram_kernel[(lead * n_shares * (blocks.BT // blocks.BM) ** 2,)](
        h, shares, factor, batch, pos, n_shares, *h.stride()[:3],
        D=d, BM=blocks.BM, BT=blocks.BT, BD=blocks.BD, FLOOR_SQUARED=FLOOR**2,
        PRECISION="tf32x3", WIDEN=INTERPRETED and h.dtype != torch.float32,
        num_warps=GRAM_WARPS, num_stages=GRAM_STAGES, **LAUNCH_OPTIONS,
    )  # fmt: skip
    return shares if per_sample else _sum_shares(shares.flatten(2)).view(lead, pos, pos)


def mean_cosine(
    h: Tensor,
    groups: Tensor,
    n_groups: int,
    n_pairs: int,
    factor: float | None = None,
    n_shares: int | None = None,
) -> Tensor:
    """`[lead, batch, pos, d]` and int32 groups `[pos]` -> `[lead]`; `factor` (None: 1/(2·batch·n_pairs)) as above."""
    lead, batch, pos, d = h.shape
    blocks = mean_blocks(pos, d)
    n_shares = n_shares or shares_of(batch)
    factor = factor or 1.0 / (2.0 * batch * n_pairs)
    shares = allocate((lead, n_shares, 1), torch.float32, h.device)
    mean.mean_kernel[(lead * n_shares,)](
        h, groups, shares, factor, batch, pos, n_groups, n_shares, *h.stride()[:3],
        D=d, BD=blocks.BD, BT=blocks.BT, FLOOR_SQUARED=FLOOR**2, num_warps=MEAN_WARPS, **LAUNCH_OPTIONS,
    )  # fmt: skip
    return _sum_shares(shares).view(lead)
