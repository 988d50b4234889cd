"""A block of the regression model, for training on short rows: both passes written out.

    mid = x + z W_O,   out = mid + MLP(LN2(mid)) + (gain − 1) · x,   z: causal softmax attention within LN1(x)

Over rows of some ten tokens, torch's attention and the copies around it take a third of a step. Here queries, keys
and values are projected by head, so that the products of the heads read them where they lie; the scores' gradient is
made from the pattern that is kept; and no slice of a gradient is filled up with zeros.

For float32 on a CPU, where a gradient is wanted. Elsewhere (evaluation, a GPU, compiled, under autocast, inside
`torch.func`) torch's own functions do the same, to rounding. Second derivatives and many gradients at once go by them
too.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from mechplateau.models.eager import in_plain_eager, vmapped

_LONGEST, _WIDEST = 40, 128
"""Tokens and width up to which this was the faster way (measured on one thread)."""


class BlockWeights(NamedTuple):
    """A block's weights, by TransformerLens's names; `w_ln` and `b_ln` are scale and shift of a LayerNorm."""

    w_ln1: Float[Tensor, " d_model"]
    b_ln1: Float[Tensor, " d_model"]
    w_q: Float[Tensor, "head d_model d_head"]
    w_k: Float[Tensor, "head d_model d_head"]
    w_v: Float[Tensor, "head d_model d_head"]
    w_o: Float[Tensor, "head d_head d_model"]
    w_ln2: Float[Tensor, " d_model"]
    b_ln2: Float[Tensor, " d_model"]
    w_in: Float[Tensor, "d_model d_mlp"]
    b_in: Float[Tensor, " d_mlp"]
    w_out: Float[Tensor, "d_mlp d_model"]
    b_out: Float[Tensor, " d_model"]


class Rows(NamedTuple):
    """What a block gives: its output at every `every`-th token from the first on; residual gain, LayerNorm's ε."""

    every: int
    gain: int
    eps: float


def block_outputs(
    x: Float[Tensor, "batch pos d_model"], weights: BlockWeights, asked: Rows
) -> Float[Tensor, "batch rows d_model"]:
    """The block's output at the tokens that are asked for; `pos` is a multiple of `asked.every`."""
    short = x.shape[1] <= _LONGEST and x.shape[2] <= _WIDEST
    trained = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, *weights))
    if short and trained and in_plain_eager(x, *weights):
        out = _ShortBlock.apply(asked, x, *weights)
        return out.view(x.shape[0], x.shape[1] // asked.every, x.shape[2])
    return by_torch(x, weights, asked)


def by_torch(
    x: Float[Tensor, "batch pos d_model"], weights: BlockWeights, asked: Rows
) -> Float[Tensor, "batch rows d_model"]:
    """The same by torch's own functions, on every device and for every derivative."""
    n_heads, width, d_head = weights.w_q.shape
    normed = F.layer_norm(x, (width,), weights.w_ln1, weights.b_ln1, asked.eps)
    if asked.every == 1:
        rows, mask = x, None
        projected = normed @ _beside(weights.w_q, weights.w_k, weights.w_v)
        q, k, v = (_by_head(part, n_heads) for part in projected.chunk(3, dim=-1))
    else:
        rows, mask = x[:, :: asked.every], _mask(x, asked.every)
        q = _by_head(normed[:, :: asked.every] @ _beside(weights.w_q), n_heads)
        k, v = (
            _by_head(part, n_heads) for part in (normed @ _beside(weights.w_k, weights.w_v)).chunk(2, dim=-1)
        )
    z = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=1 / math.sqrt(d_head)
    )
    mid = rows + z.transpose(1, 2).flatten(2) @ weights.w_o.flatten(0, 1)
    mlp_in = F.layer_norm(mid, (width,), weights.w_ln2, weights.b_ln2, asked.eps)
    hidden = F.linear(mlp_in, weights.w_in.T, weights.b_in).relu()
    out = mid + F.linear(hidden, weights.w_out.T, weights.b_out)
    return out if asked.gain == 1 else out.add(rows, alpha=asked.gain - 1)


class _ShortBlock(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, asked: Rows, x: Tensor, *weights: Tensor) -> Tensor:
        out, kept = _forward(x, BlockWeights(*weights), asked)
        ctx.asked, ctx.n_weights = asked, len(weights)
        ctx.save_for_backward(x, *weights, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *rest = ctx.saved_tensors
        weights, kept = BlockWeights(*rest[: ctx.n_weights]), _Kept(*rest[ctx.n_weights :])
        if torch.is_grad_enabled() or vmapped(grad):
            return (None, *_gradients_by_torch(grad, x, weights, ctx.asked, ctx.needs_input_grad[1:]))
        with torch.autocast("cpu", enabled=False):
            return (None, *_backward(grad, x, weights, ctx.asked, kept))


class _Kept(NamedTuple):
    """What the backward pass reads. Tokens of all contexts lie below each other; `q` is scaled."""

    normed: Float[Tensor, "tokens d_model"]
    read: Float[Tensor, "outputs d_model"]
    mean1: Float[Tensor, "batch pos 1"]
    rstd1: Float[Tensor, "batch pos 1"]
    q: Float[Tensor, "head*batch rows d_head"]
    k: Float[Tensor, "head*batch pos d_head"]
    v: Float[Tensor, "head*batch pos d_head"]
    pattern: Float[Tensor, "head*batch rows pos"]
    z: Float[Tensor, "outputs head*d_head"]
    mid: Float[Tensor, "outputs d_model"]
    mlp_in: Float[Tensor, "outputs d_model"]
    mean2: Float[Tensor, "outputs 1"]
    rstd2: Float[Tensor, "outputs 1"]
    hidden: Float[Tensor, "outputs d_mlp"]


def _forward(x: Tensor, weights: BlockWeights, asked: Rows) -> tuple[Float[Tensor, "outputs d_model"], _Kept]:
    n_heads, width, d_head = weights.w_q.shape
    batch, pos, every = x.shape[0], x.shape[1], asked.every
    rows = pos // every
    normed, mean1, rstd1 = torch.native_layer_norm(x, (width,), weights.w_ln1, weights.b_ln1, asked.eps)
    tokens, read, w_q = normed.view(-1, width), _every(normed, every), weights.w_q / math.sqrt(d_head)
    if every == 1:
        together = _by_heads(tokens, torch.cat((w_q, weights.w_k, weights.w_v), -1))
        q, k, v = together.view(n_heads * batch, pos, 3 * d_head).split(d_head, -1)
    else:
        q = _by_heads(read, w_q).view(n_heads * batch, rows, d_head)
        together = _by_heads(tokens, torch.cat((weights.w_k, weights.w_v), -1))
        k, v = together.view(n_heads * batch, pos, 2 * d_head).split(d_head, -1)
    pattern = torch.baddbmm(_mask(x, every), q, k.transpose(1, 2)).softmax(-1)
    z = torch.bmm(pattern, v).view(n_heads, batch, rows, d_head).permute(1, 2, 0, 3)
    z = z.reshape(batch * rows, n_heads * d_head)
    resid = _every(x, every)
    mid = torch.mm(z, weights.w_o.flatten(0, 1)).add_(resid)
    mlp_in, mean2, rstd2 = torch.native_layer_norm(mid, (width,), weights.w_ln2, weights.b_ln2, asked.eps)
    hidden = torch.addmm(weights.b_in, mlp_in, weights.w_in).relu_()
    out = torch.addmm(weights.b_out, hidden, weights.w_out).add_(mid)
    if asked.gain != 1:
        out.add_(resid, alpha=asked.gain - 1)
    kept = _Kept(tokens, read, mean1, rstd1, q, k, v, pattern, z, mid, mlp_in, mean2, rstd2, hidden)
    return out, kept


def _backward(grad: Tensor, x: Tensor, weights: BlockWeights, asked: Rows, kept: _Kept) -> tuple[Tensor, ...]:
    """Gradients of x and of the weights, in their order."""
    n_heads, width, d_head = weights.w_q.shape
    batch, pos, every = x.shape[0], x.shape[1], asked.every
    rows = pos // every
    grad = grad.reshape(batch * rows, width)
    ones = grad.new_ones(batch * rows)  # products with them sum faster than `sum`

    d_hidden = grad @ weights.w_out.T
    torch.ops.aten.threshold_backward.grad_input(d_hidden, kept.hidden, 0, grad_input=d_hidden)
    d_w_out, d_b_out = kept.hidden.T @ grad, grad.T @ ones
    d_w_in, d_b_in = kept.mlp_in.T @ d_hidden, d_hidden.T @ ones
    d_mid, d_w_ln2, d_b_ln2 = _layer_norm_backward(
        d_hidden @ weights.w_in.T, kept.mid, kept.mean2, kept.rstd2, weights.w_ln2, weights.b_ln2
    )
    d_mid += grad

    d_w_o = (kept.z.T @ d_mid).view_as(weights.w_o)
    d_z = (d_mid @ weights.w_o.flatten(0, 1).T).view(batch, rows, n_heads, d_head)
    d_z = d_z.permute(2, 0, 1, 3).reshape(n_heads * batch, rows, d_head)
    d_pattern = torch.bmm(d_z, kept.v.transpose(1, 2))
    d_scores = torch._softmax_backward_data(d_pattern, kept.pattern, -1, torch.float32)
    d_q, d_k = torch.bmm(d_scores, kept.k), torch.bmm(d_scores.transpose(1, 2), kept.q)
    d_v = torch.bmm(kept.pattern.transpose(1, 2), d_z)
    w_q = weights.w_q / math.sqrt(d_head)
    if every == 1:
        d_normed, (d_w_q, d_w_k, d_w_v) = _projected_backward(
            (d_q, d_k, d_v), (w_q, weights.w_k, weights.w_v), kept.normed
        )
        d_normed = d_normed.view_as(x)
    else:
        d_read, (d_w_q,) = _projected_backward((d_q,), (w_q,), kept.read)
        d_normed, (d_w_k, d_w_v) = _projected_backward((d_k, d_v), (weights.w_k, weights.w_v), kept.normed)
        d_normed = d_normed.view_as(x)
        d_normed[:, ::every] += d_read.view(batch, rows, width)
    d_x, d_w_ln1, d_b_ln1 = _layer_norm_backward(
        d_normed, x, kept.mean1, kept.rstd1, weights.w_ln1, weights.b_ln1
    )
    if asked.gain != 1:
        d_mid.add_(grad, alpha=asked.gain - 1)
    d_x[:, ::every] += d_mid.view(batch, rows, width)
    d_w_q = d_w_q / math.sqrt(d_head)
    attention = (d_w_ln1, d_b_ln1, d_w_q, d_w_k, d_w_v, d_w_o)
    return (d_x, *attention, d_w_ln2, d_b_ln2, d_w_in, d_b_in, d_w_out, d_b_out)


def _gradients_by_torch(
    grad: Tensor, x: Tensor, weights: BlockWeights, asked: Rows, needed: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients that are needed, as a graph where one is asked for."""
    again = torch.is_grad_enabled()
    # torch's fused attention on a CPU has no second derivative, nor many gradients at once.
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), torch.autocast("cpu", enabled=False):
        # Of views, each for one place: a tensor that stands in two, or that another one is made of, and its hooks,
        # would count twice otherwise.
        given = [
            tensor.view_as(tensor) if need else tensor
            for tensor, need in zip((x, *weights), needed, strict=True)
        ]
        out = by_torch(given[0], BlockWeights(*given[1:]), asked)
        wanted = [tensor for tensor, need in zip(given, needed, strict=True) if need]
        made = iter(torch.autograd.grad(out, wanted, grad.view_as(out), create_graph=again))
    return tuple(next(made) if need else None for need in needed)


def _projected_backward(
    grads: tuple[Float[Tensor, "head*batch pos d_head"], ...], weights: tuple[Tensor, ...], rows: Tensor
) -> tuple[Float[Tensor, "tokens d_model"], Float[Tensor, "part head d_model d_head"]]:
    """Gradients of the rows and of the weights that projected them, from those of all heads' projections."""
    n_heads, width, d_head = weights[0].shape
    heads = [head for grad in grads for head in grad.view(n_heads, len(rows), d_head)]
    grad = torch.cat(heads, -1)
    d_weights = (rows.T @ grad).view(width, len(weights), n_heads, d_head).permute(1, 2, 0, 3)
    return grad @ _beside(*weights).T, d_weights


def _layer_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.aten.native_layer_norm_backward(
        grad, x, (x.shape[-1],), mean, rstd, weight, bias, [True, True, True]
    )


def _by_heads(rows: Tensor, weight: Tensor) -> Float[Tensor, "head tokens columns"]:
    return torch.bmm(rows.expand(len(weight), -1, -1), weight)


def _every(x: Float[Tensor, "batch pos d_model"], every: int) -> Float[Tensor, "outputs d_model"]:
    return x[:, ::every].reshape(-1, x.shape[-1])


def _mask(x: Tensor, every: int) -> Float[Tensor, "rows pos"]:
    """0, and −∞ where a key comes after its query; queries are every `every`-th token."""
    key = torch.arange(x.shape[1], device=x.device)
    mask = torch.zeros(x.shape[1] // every, x.shape[1], dtype=x.dtype, device=x.device)
    return mask.masked_fill(key > key[::every, None], -torch.inf)


def _beside(*weights: Float[Tensor, "head d_model d_head"]) -> Float[Tensor, "d_model columns"]:
    """All heads' columns beside each other, those of the first weight first."""
    return torch.cat(weights).transpose(0, 1).flatten(1)


def _by_head(x: Tensor, n_heads: int) -> Tensor:
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


__all__ = ["BlockWeights", "Rows", "block_outputs", "by_torch"]
