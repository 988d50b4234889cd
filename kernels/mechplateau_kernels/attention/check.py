"""The exact-integer test of the tile kernels (see `_selfcheck`).

q, k, v, dO in {-1, 0, 1}, q and dO with some six entries a vector, scale 1/8 and c = 4: every product
and sum is a small multiple of 1/8, exact in bfloat16, float16, tf32 and float32, results included.
Where float32 accuracy is promised, one factor of each product has 13 bits, which tf32 (11) would cut off: in the
first sample q on even and k on odd entries, in the second v and dO. Two such factors never meet, since tf32x3
leaves out the product of their last bits. The expected values are the reference's, in float64.
"""

import math

import torch
from torch import Tensor

from .._launch import placed
from . import reference
from .configs import Call, Options
from .planes import pack

__all__ = ["backward_is_exact", "forward_is_exact"]

SCALE, FACTOR = 0.125, 4.0
WIDE = ("tf32x3", "ieee")
PLAIN = Call()


def _integers(generator: torch.Generator, *shape: int, filled: float = math.inf) -> Tensor:
    """Float64 values in {-1, 0, 1}, about `filled` of each last dimension not set to 0."""
    values = torch.randint(-1, 2, shape, generator=generator).double()
    return values * (torch.rand(shape, generator=generator) * shape[-1] < filled)


def _widen(generator: torch.Generator, values: Tensor, first: int) -> None:
    """Every other entry from `first` on times an odd number of 13 bits."""
    chosen = values[..., first::2]
    chosen *= 2 * torch.randint(2048, 4096, chosen.shape, generator=generator) + 1


class _Case:
    """Data in float64 on the CPU, and laid out on the device as the call has them."""

    def __init__(
        self, device: torch.device, pos: int, d_head: int, d_v: int, dtype: torch.dtype,
        causal: bool, intervene: bool, n_sets: int, precision: str, call: Call,
    ) -> None:  # fmt: skip
        generator = torch.Generator().manual_seed(0)
        layouts, widths = (call.q, call.k, call.v, call.grad_output), (d_head, d_head, d_v, d_v)
        # Samples one apart in memory, though wider than that: there is only one.
        one = any(laid[0] == "1" and width > 1 for laid, width in zip(layouts, widths, strict=True))
        batch = 1 if one else 2
        self.exact = [
            _integers(generator, batch, pos, call.heads, width, filled=filled)
            for width, filled in zip(widths, (6, math.inf, math.inf, 6), strict=True)
        ]
        if dtype == torch.float32 and precision in WIDE:
            q, k, v, g = self.exact
            for sample, (even, odd) in zip(range(batch), ((q, k), (v, g)), strict=False):
                _widen(generator, even[sample], 0)
                _widen(generator, odd[sample], 1)
        shared = call.sets is not None and call.sets[0] == "shared"
        masks = [
            torch.randint(0, 2, (1 if shared else batch, pos, pos), generator=generator) == 1
            for _ in range(n_sets + intervene)
        ]
        self.chosen, self.sets = (masks[-1] if intervene else None), masks[:n_sets]
        bits = pack(self.chosen, self.sets)
        self.bits = None
        if bits is not None and call.sets is not None:
            self.bits = _at(bits, call.sets[1], device)
        self.c = None if call.c is None else _at(torch.tensor(FACTOR), call.c, device)
        self.options = Options(1.0 if call.c else FACTOR, SCALE, causal, intervene, n_sets, precision)
        self.given = [placed(x, laid, device, dtype) for x, laid in zip(self.exact, layouts, strict=True)]
        self.generator = generator

    def outputs(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return reference.linear_attention(
            q, k, v, SCALE, self.options.causal, self.chosen, FACTOR, self.sets
        )  # fmt: skip


def _at(x: Tensor, where: str, device: torch.device) -> Tensor:
    """A contiguous copy on the device, at an address of this sort."""
    return placed(x.flatten(), (where,), device, x.dtype).view(x.shape)


def forward_is_exact(
    device: torch.device, pos: int, d_head: int, d_v: int, dtype: torch.dtype,
    causal: bool, intervene: bool, n_sets: int, precision: str, call: Call = PLAIN,
) -> bool:  # fmt: skip
    from . import launch

    case = _Case(device, pos, d_head, d_v, dtype, causal, intervene, n_sets, precision, call)
    expected = case.outputs(*case.exact[:3])
    q, k, v, _ = case.given
    got = launch.forward(q, k, v, case.bits, case.c, case.options)
    return all(torch.equal(x.cpu(), y.to(x.dtype)) for x, y in zip(got, expected, strict=True))


def backward_is_exact(
    device: torch.device, pos: int, d_head: int, d_v: int, dtype: torch.dtype,
    causal: bool, intervene: bool, n_sets: int, precision: str, call: Call = PLAIN,
) -> bool:  # fmt: skip
    from . import launch

    case = _Case(device, pos, d_head, d_v, dtype, causal, intervene, n_sets, precision, call)
    g = case.exact[3]
    leaves = [x.requires_grad_() for x in case.exact[:3]]
    with torch.enable_grad():
        outputs = case.outputs(*leaves)
    g_row, g_set = (
        None if where is None or out.numel() == 0 else _integers(case.generator, *out.shape)
        for where, out in ((call.grad_row, outputs[1]), (call.grad_set, outputs[2]))
    )
    pairs = [(out, grad) for out, grad in zip(outputs, (g, g_row, g_set), strict=True) if grad is not None]
    expected = torch.autograd.grad([out for out, _ in pairs], leaves, [grad for _, grad in pairs])
    given_row, given_set = (
        None if x is None or where is None else _at(x.float(), where, device)
        for x, where in ((g_row, call.grad_row), (g_set, call.grad_set))
    )
    q, k, v, given_g = case.given
    got = launch.backward(given_g, given_row, given_set, q, k, v, case.bits, case.c, case.options)
    return all(torch.equal(x.cpu(), y.to(x.dtype)) for x, y in zip(got, expected, strict=True))
