"""GELU between two linear layers, in blocks of rows that fit the processor's cache.

    y = GELU(x W_in + b_in) W_out + b_out        GELU(u) = u · σ(v),  v = 2 √(2/π) · (u + 0.044715 u³)

is the tanh approximation, since (1 + tanh(v/2)) / 2 = σ(v). Its slope σ + u σ (1 − σ) v′ is made in the same pass and
kept, so that the backward pass is one multiplication; what comes between the linear layers is never written to
memory as a whole, in either direction.

For float32 on a CPU, in ordinary eager computation. Elsewhere (compiled, under autocast, inside `torch.func`, with
forward-mode derivatives, on a GPU) torch's own functions do the same; second derivatives and many gradients at once
go by them too.

Source: arXiv 1606.08415.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mechplateau.models.eager import vmapped

_SLOPE = 2 * math.sqrt(2 / math.pi)
_CUBIC = 0.044715 * _SLOPE

_ELEMENTS_A_BLOCK = 2**18
"""Of the layer between, for each thread: 1 MiB, half of a core's second cache."""
_ELEMENTS_AT_ONCE = 2**16
"""That one pass over a block works on, for each thread."""


def gelu_new(x: Tensor) -> Tensor:
    """GELU in its tanh approximation: TransformerLens's `gelu_new`, fused."""
    return F.gelu(x, approximate="tanh")


def gelu_layers(
    x: Float[Tensor, "*batch d_model"],
    w_in: Float[Tensor, "d_model d_mlp"],
    b_in: Float[Tensor, " d_mlp"],
    w_out: Float[Tensor, "d_mlp d_out"],
    b_out: Float[Tensor, " d_out"],
) -> Float[Tensor, "*batch d_out"]:
    """Both linear layers with the GELU between them; tensors as `eager.in_plain_eager` needs them."""
    rows = x.reshape(-1, x.shape[-1])
    given = (rows, w_in, b_in, w_out, b_out)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
        out = _GeluLayers.apply(*given)
    else:
        out = _forward(*given, None)
    return out.view(*x.shape[:-1], w_out.shape[1])


class _GeluLayers(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_in, b_in, w_out, b_out):
        kept = x.new_empty(2, x.shape[0], w_in.shape[1])
        out = _forward(x, w_in, b_in, w_out, b_out, kept)
        ctx.save_for_backward(x, w_in, b_in, w_out, kept)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, w_in, b_in, w_out, kept = ctx.saved_tensors
        with torch.autocast("cpu", enabled=False):
            if torch.is_grad_enabled() or vmapped(grad):
                return _differentiable_backward(grad, x, w_in, b_in, w_out)
            return _backward(grad, x, w_in, w_out, kept, ctx.needs_input_grad)


def _blocks(rows: int, width: int, elements: int) -> list[slice]:
    step = max(1, elements * torch.get_num_threads() // width)
    return [slice(first, min(first + step, rows)) for first in range(0, rows, step)]


def _forward(
    x: Tensor, w_in: Tensor, b_in: Tensor, w_out: Tensor, b_out: Tensor, kept: Tensor | None
) -> Tensor:
    """The output; `kept`, `[2, row, d_mlp]`, is filled with GELU's value and its slope."""
    rows, width = x.shape[0], w_in.shape[1]
    out = x.new_empty(rows, w_out.shape[1])
    blocks = _blocks(rows, width, _ELEMENTS_A_BLOCK)
    if not blocks:
        return out
    between = x.new_empty(blocks[0].stop, width)
    for block in blocks:
        u = between[: block.stop - block.start]
        torch.addmm(b_in, x[block], w_in, out=u)
        value = u if kept is None else kept[0, block]
        slope = None if kept is None else kept[1, block]
        for part in _blocks(u.shape[0], width, _ELEMENTS_AT_ONCE):
            _gelu(u[part], value[part], None if slope is None else slope[part])
        torch.addmm(b_out, value, w_out, out=out[block])
    return out


def _gelu(u: Tensor, value: Tensor, slope: Tensor | None) -> None:
    """GELU of u into `value`, which may be u itself, and its slope into `slope`; u is overwritten."""
    factor = torch.addcmul(u.new_full((), _SLOPE), u, u, value=_CUBIC)  # v / u
    sigma = torch.mul(u, factor, out=slope).sigmoid_()
    torch.mul(u, sigma, out=value)
    if slope is None:
        return
    # v′ = 3 v/u − 2 · 2 √(2/π); in this order, since u (1 − σ) is 0 where v′ overflows.
    torch.add(u.new_full((), -2 * _SLOPE), factor, alpha=3, out=factor)
    torch.ops.aten.sigmoid_backward.grad_input(u, sigma, grad_input=u)
    torch.addcmul(sigma, u, factor, out=slope)


def _backward(
    grad: Tensor, x: Tensor, w_in: Tensor, w_out: Tensor, kept: Tensor, needed: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    rows, width = x.shape[0], w_in.shape[1]
    grad = grad.contiguous()
    grad_x = torch.empty_like(x) if needed[0] else None
    grad_w_in = torch.zeros_like(w_in) if needed[1] else None
    grad_b_in = w_in.new_zeros(width) if needed[2] else None
    grad_w_out = torch.zeros_like(w_out) if needed[3] else None
    blocks = _blocks(rows, width, _ELEMENTS_A_BLOCK)
    between = x.new_empty(blocks[0].stop if blocks else 0, width)
    ones = x.new_ones(between.shape[0])
    for block in blocks:
        if grad_w_out is not None:
            grad_w_out.addmm_(kept[0, block].T, grad[block])
        if not any(needed[:3]):
            continue
        g = torch.mm(grad[block], w_out.T, out=between[: block.stop - block.start])
        g.mul_(kept[1, block])
        if grad_x is not None:
            torch.mm(g, w_in.T, out=grad_x[block])
        if grad_w_in is not None:
            grad_w_in.addmm_(x[block].T, g)
        if grad_b_in is not None:
            grad_b_in.addmv_(g.T, ones[: g.shape[0]])  # sums over rows this wide are slower
    return grad_x, grad_w_in, grad_b_in, grad_w_out, grad.sum(0) if needed[4] else None


def _differentiable_backward(
    grad: Tensor, x: Tensor, w_in: Tensor, b_in: Tensor, w_out: Tensor
) -> tuple[Tensor, ...]:
    """The same by torch's own functions, which can be differentiated again."""
    u = torch.addmm(b_in, x, w_in)
    g = torch.ops.aten.gelu_backward(grad @ w_out.T, u, approximate="tanh")
    return g @ w_in.T, x.T @ g, g.sum(0), gelu_new(u).T @ grad, grad.sum(0)
