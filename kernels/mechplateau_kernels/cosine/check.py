"""The exact test of the cosine kernels (see `_selfcheck`).

Vectors of 4^k entries ±1 have norm 2^k, so unit vectors, cosines and sums of a power of two of samples
are exact in float32 (and the products in every precision). Where h is float32, every other vector has instead
five entries whose squares sum to 2^24, of norm 2^12: three have 12 bits, which tf32 (11) would cut off; with more,
their squares would not fit float32. The cosine of two such vectors need not be exact, only near: tf32x3 leaves out
the product of the last bits.
"""

import torch
from torch import Tensor

from .._launch import of_kind, placed
from . import reference
from .configs import Call

__all__ = ["mean_is_exact", "pairwise_is_exact"]

ENTRIES = (2049, 2051, 2063, 2023, 154)
TOLERANCE = 4e-6
ANY = 3
PLAIN = Call()


def _sizes(call: Call) -> tuple[int, int]:
    """Numbers of samples and of shares of these kinds."""
    if call.batch == call.shares:
        return (of_kind(call.batch, ANY),) * 2
    # More samples than shares, of which there are then as many as can be, a multiple of 16.
    return of_kind(call.batch, 17), 16


def _case(batch: int, pos: int, d: int, wide: bool) -> Tensor:
    """`[1, batch, pos, d]` in float64."""
    generator = torch.Generator().manual_seed(0)
    filled = 1
    while 4 * filled <= min(d, 256):
        filled *= 4
    order = torch.rand(1, batch, pos, d, generator=generator).argsort(dim=-1)
    sign = torch.randint(0, 2, order.shape, generator=generator) * 2 - 1
    values = (order < filled).double()
    if wide:
        entries = torch.zeros(d, dtype=torch.float64)
        entries[: len(ENTRIES)] = torch.tensor(ENTRIES)
        values[:, :, 1::2] = entries[order[:, :, 1::2]]
    return values * sign


def pairwise_is_exact(
    device: torch.device, pos: int, d: int, dtype: torch.dtype, per_sample: bool, call: Call = PLAIN
) -> bool:
    from . import launch

    batch, shares = _sizes(call)
    wide = dtype == torch.float32 and d >= len(ENTRIES)
    h = _case(batch, pos, d, wide)
    # A power of two, which the number of samples need not be.
    factor = 1.0 if per_sample else 1 / 32
    each = reference.pairwise_cosine(h, "none")
    expected = each if per_sample else factor * each.sum(dim=1)
    got = launch.pairwise_cosine(placed(h, call.h, device, dtype), per_sample, factor, shares).cpu().double()
    exact = torch.ones(pos, pos, dtype=torch.bool)
    if wide:
        exact[1::2, 1::2] = False
    error = (got - expected).abs()
    return bool((error[..., exact] == 0).all() and (error[..., ~exact] <= TOLERANCE).all())


def mean_is_exact(device: torch.device, pos: int, d: int, dtype: torch.dtype, call: Call = PLAIN) -> bool:
    """Not divided by the number of pairs, which need not be a power of two. It multiplies nothing in tf32."""
    from . import launch

    batch, shares = _sizes(call)
    h = _case(batch, pos, d, wide=False)
    groups = torch.arange(pos, dtype=torch.int32) % call.n_groups
    members = [torch.arange(start, pos, call.n_groups) for start in range(min(pos, call.n_groups))]
    # Scaled down, so that no sum is clamped at 1.
    scale = 1 << 20
    expected = reference.mean_cosine(h.transpose(0, 1), members, scale).sum(dim=0, keepdim=True)
    got = launch.mean_cosine(
        placed(h, call.h, device, dtype), placed(groups, (call.groups,), device, torch.int32), call.n_groups,
        scale, 1 / (2 * scale), shares,
    )  # fmt: skip
    return torch.equal(got.cpu(), expected.float())
