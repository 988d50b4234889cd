"""The exact-integer test of the tile kernels (see `_selfcheck`).

q, k, v, dO in {-1, 0, 1}, q and dO with some six entries a vector, scale 1/8 and c = 4: every product
and sum is a small multiple of 1/8, exact in bfloat16, float16, tf32 and float32, results included.
The expected values are the reference's, in float64.
"""

import math

import torch
from torch import Tensor

from . import reference
from .configs import Options
from .sets import pack

__all__ = ["backward_is_exact", "forward_is_exact"]

SCALE, FACTOR = 0.125, 4.0
BATCH, HEADS = 2, 2


def _integers(generator: torch.Generator, *shape: int, filled: float = math.inf) -> Tensor:
    """Float64 values in {-1, 0, 1}, about `filled` of each last dimension not set to 0."""
    values = torch.randint(-1, 2, shape, generator=generator).double()
    return values * (torch.rand(shape, generator=generator) * shape[-1] < filled)


def _case(
    device: torch.device, pos: int, d_head: int, d_v: int, intervene: bool, n_sets: int
) -> tuple[list[Tensor], Tensor | None, list[Tensor], Tensor | None]:
    """q, k, v and grad_output in float64 on the CPU, intervention, sets, and their bits on `device`."""
    generator = torch.Generator().manual_seed(0)
    data = [
        _integers(generator, BATCH, pos, HEADS, width, filled=filled)
        for width, filled in ((d_head, 6), (d_head, math.inf), (d_v, math.inf), (d_v, 6))
    ]
    masks = [
        torch.randint(0, 2, (BATCH, pos, pos), generator=generator) == 1 for _ in range(n_sets + intervene)
    ]
    chosen, sets = (masks[-1] if intervene else None), masks[:n_sets]
    bits = pack(chosen, sets)
    return data, chosen, sets, None if bits is None else bits.to(device)


def forward_is_exact(
    device: torch.device, pos: int, d_head: int, d_v: int, dtype: torch.dtype,
    causal: bool, intervene: bool, n_sets: int, precision: str,
) -> bool:  # fmt: skip
    from . import launch

    (q, k, v, _), chosen, sets, bits = _case(device, pos, d_head, d_v, intervene, n_sets)
    expected = reference.linear_attention(q, k, v, SCALE, causal, chosen, FACTOR, sets)
    options = Options(FACTOR, SCALE, causal, intervene, n_sets, precision)
    q, k, v = (x.to(device, dtype) for x in (q, k, v))
    got = launch.forward(q, k, v, bits, None, options)
    return all(torch.equal(x.cpu(), y.to(x.dtype)) for x, y in zip(got, expected, strict=True))


def backward_is_exact(
    device: torch.device, pos: int, d_head: int, d_v: int, dtype: torch.dtype,
    causal: bool, intervene: bool, n_sets: int, precision: str, grad_row: bool, grad_set: bool,
) -> bool:  # fmt: skip
    from . import launch

    (q, k, v, g), chosen, sets, bits = _case(device, pos, d_head, d_v, intervene, n_sets)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    with torch.enable_grad():
        outputs = reference.linear_attention(q, k, v, SCALE, causal, chosen, FACTOR, sets)
    generator = torch.Generator().manual_seed(1)
    g_row = _integers(generator, BATCH, HEADS, pos) if grad_row else None
    g_set = _integers(generator, BATCH, HEADS, n_sets, pos) if grad_set else None
    pairs = [(out, grad) for out, grad in zip(outputs, (g, g_row, g_set), strict=True) if grad is not None]
    expected = torch.autograd.grad([out for out, _ in pairs], leaves, [grad for _, grad in pairs])
    options = Options(FACTOR, SCALE, causal, intervene, n_sets, precision)
    q, k, v, g = (x.detach().to(device, dtype) for x in (q, k, v, g))
    g_row, g_set = (None if x is None else x.to(device, torch.float32) for x in (g_row, g_set))
    got = launch.backward(g, g_row, g_set, q, k, v, bits, None, options)
    return all(torch.equal(x.cpu(), y.to(x.dtype)) for x, y in zip(got, expected, strict=True))
