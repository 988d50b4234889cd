"""The exact test of the cosine kernels (see `_selfcheck`).

Vectors of 4^k entries ±1 have norm 2^k, so unit vectors, cosines and sums of a power of two of samples
are exact in float32 (and the products in every precision).
"""

import torch
from torch import Tensor

from . import reference

__all__ = ["mean_is_exact", "pairwise_is_exact"]

BATCH = 4


def _case(pos: int, d: int) -> Tensor:
    """`[1, BATCH, pos, d]` in float64, each vector with the largest power of four up to d of entries ±1."""
    generator = torch.Generator().manual_seed(0)
    filled = 1
    while 4 * filled <= min(d, 256):
        filled *= 4
    order = torch.rand(1, BATCH, pos, d, generator=generator).argsort(dim=-1)
    sign = torch.randint(0, 2, order.shape, generator=generator) * 2 - 1
    return torch.where(order < filled, sign, 0).double()


def pairwise_is_exact(device: torch.device, pos: int, d: int, dtype: torch.dtype, per_sample: bool) -> bool:
    from . import launch

    h = _case(pos, d)
    expected = reference.pairwise_cosine(h, "none" if per_sample else "batch_mean")
    got = launch.pairwise_cosine(h.to(device, dtype), per_sample)
    return torch.equal(got.cpu(), expected.float())


def mean_is_exact(device: torch.device, pos: int, d: int, dtype: torch.dtype) -> bool:
    """Not divided by the number of pairs, which need not be a power of two."""
    from . import launch

    h = _case(pos, d)
    groups = torch.arange(pos) % 2
    members = [torch.arange(start, pos, 2) for start in range(min(pos, 2))]
    # Scaled down, so that no sum is clamped at 1.
    scale = 1 << 20
    expected = reference.mean_cosine(h, members, scale)
    got = launch.mean_cosine(h.to(device, dtype), groups.to(device, torch.int32), len(members), scale)
    return torch.equal(got.cpu(), expected.float())
