"""The cosine kernels as torch operations: autograd, vmap, torch.compile.

The backward passes are plain torch: with u_i = x_i/|x_i| and any function f of the u,
    ∂f/∂x_i = (∂f/∂u_i − u_i (u_i · ∂f/∂u_i)) / |x_i|,   0 for vectors that count as zero.
Second and higher derivatives are the reference's, taken where a graph of the backward pass is requested.
"""

from typing import Any

import torch
from torch import Tensor

from .._dispatch import full_precision
from .._launch import address, kind, layout, regular
from .._library import define, define_vmap, differentiable, fold, unfold
from .._selfcheck import trusted
from . import reference
from .configs import Call

__all__ = ["fused_mean_cosine", "fused_pairwise_cosine"]


def _pairwise_by_reference(h: Tensor, per_sample: bool) -> Tensor:
    return reference.pairwise_cosine(h, "none" if per_sample else "batch_mean")


def _pairwise(h: Tensor, per_sample: bool) -> Tensor:
    from . import check, launch

    h = regular(h)
    shares = launch.shares_of(h.shape[1], per_sample)
    call = Call(layout(h), kind(h.shape[1]), kind(shares))
    configuration = (h.shape[2], h.shape[3], h.dtype, per_sample, call)
    if not trusted("pairwise_cosine", h.device, configuration, check.pairwise_is_exact):
        with full_precision(h.device):
            return _pairwise_by_reference(h, per_sample)
    return launch.pairwise_cosine(h, per_sample)


def _pairwise_fake(h: Tensor, per_sample: bool) -> Tensor:
    lead, batch, pos, _ = h.shape
    shape = (lead, batch, pos, pos) if per_sample else (lead, pos, pos)
    return h.new_empty(shape, dtype=torch.float32)


def _mean(h: Tensor, groups: Tensor, n_groups: int, n_pairs: int) -> Tensor:
    from . import check, launch

    h = regular(h)
    shares = launch.shares_of(h.shape[1])
    call = Call(layout(h), kind(h.shape[1]), kind(shares), n_groups, address(groups))
    configuration = (h.shape[2], h.shape[3], h.dtype, call)
    if not trusted("mean_pairwise_cosine", h.device, configuration, check.mean_is_exact):
        with full_precision(h.device):
            return reference.mean_cosine_of_groups(h, groups, n_groups, n_pairs)
    return launch.mean_cosine(h, groups, n_groups, n_pairs)


def _mean_fake(h: Tensor, groups: Tensor, n_groups: int, n_pairs: int) -> Tensor:
    return h.new_empty(h.shape[0], dtype=torch.float32)


define("pairwise_cosine(Tensor h, bool per_sample) -> Tensor", _pairwise, _pairwise_fake)
define("mean_cosine(Tensor h, Tensor groups, int n_groups, int n_pairs) -> Tensor", _mean, _mean_fake)


def _unit(h: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors and inverse norms `[..., 1]`, both 0 for vectors that count as zero."""
    wide = reference.widen(h)
    inverse = reference.norms(wide)[1].unsqueeze(-1)
    return wide * inverse, inverse


def _tangent(unit: Tensor, inverse: Tensor, grad_unit: Tensor) -> Tensor:
    return inverse * (grad_unit - unit * (unit * grad_unit).sum(dim=-1, keepdim=True))


def _pairwise_backward(grad: Tensor, h: Tensor, per_sample: bool) -> Tensor:
    both = grad + grad.mT
    if not per_sample:
        both = both.unsqueeze(1) / h.shape[1]
    with full_precision(h.device):
        unit, inverse = _unit(h)
        return _tangent(unit, inverse, both @ unit).to(h.dtype).contiguous()


def _mean_backward(grad: Tensor, h: Tensor, groups: Tensor, n_groups: int, n_pairs: int) -> Tensor:
    scale = (grad / (h.shape[1] * n_pairs)).view(-1, 1, 1, 1)
    # ∂/∂u_i of (|Σu|² − Σ|u|²)/2 is the group's Σu less u_i; the latter falls out in the tangent.
    member = groups == torch.arange(n_groups, device=h.device).unsqueeze(1)
    with full_precision(h.device):
        unit, inverse = _unit(h)
        together = member.to(unit.dtype)
        grad_unit = together.T @ (together @ unit)
        return (_tangent(unit, inverse, grad_unit) * scale).to(h.dtype).contiguous()


def _backward_fake(grad: Tensor, h: Tensor, *rest: Any) -> Tensor:
    return h.new_empty(h.shape)


# Operations too, although they launch no kernel of ours: plain tensor code in the backward of two
# Functions breaks torch.compile with dynamic shapes (seen in torch 2.13).
define(
    "pairwise_cosine_backward(Tensor grad, Tensor h, bool per_sample) -> Tensor",
    _pairwise_backward,
    _backward_fake,
)
define(
    "mean_cosine_backward(Tensor grad, Tensor h, Tensor groups, int n_groups, int n_pairs) -> Tensor",
    _mean_backward,
    _backward_fake,
)


def _first_folded(operation: Any, n_folded: int) -> Any:
    """The vmap rule that folds the mapped dimension of the first tensors into `lead`."""

    def rule(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Tensor, int]:
        size = info.batch_size
        folded = [fold(x, dim, size) for x, dim in zip(arguments[:n_folded], in_dims, strict=False)]
        return unfold(operation(*folded, *arguments[n_folded:]), size), 0

    return rule


define_vmap("pairwise_cosine", _first_folded(torch.ops.mechplateau.pairwise_cosine, 1))
define_vmap("mean_cosine", _first_folded(torch.ops.mechplateau.mean_cosine, 1))
define_vmap("pairwise_cosine_backward", _first_folded(torch.ops.mechplateau.pairwise_cosine_backward, 2))
define_vmap("mean_cosine_backward", _first_folded(torch.ops.mechplateau.mean_cosine_backward, 2))


def _pairwise_gradient(grad: Tensor, h: Tensor, per_sample: bool) -> Tensor:
    with full_precision(h.device):
        return torch.func.vjp(lambda h: _pairwise_by_reference(h, per_sample), h)[1](grad)[0]


def _mean_gradient(grad: Tensor, h: Tensor, groups: Tensor, n_groups: int, n_pairs: int) -> Tensor:
    def mean(h: Tensor) -> Tensor:
        return reference.mean_cosine_of_groups(h, groups, n_groups, n_pairs)

    with full_precision(h.device):
        return torch.func.vjp(mean, h)[1](grad)[0]


_differentiable_pairwise_backward = differentiable(
    torch.ops.mechplateau.pairwise_cosine_backward, _pairwise_gradient
)
_differentiable_mean_backward = differentiable(torch.ops.mechplateau.mean_cosine_backward, _mean_gradient)


class _PairwiseCosine(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(h: Tensor, per_sample: bool) -> Tensor:
        return torch.ops.mechplateau.pairwise_cosine(h, per_sample)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, bool], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.per_sample = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (h,) = ctx.saved_tensors
        operation = torch.ops.mechplateau.pairwise_cosine_backward
        backward = _differentiable_pairwise_backward if torch.is_grad_enabled() else operation
        return backward(grad, h, ctx.per_sample), None


class _MeanCosine(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(h: Tensor, groups: Tensor, n_groups: int, n_pairs: int) -> Tensor:
        return torch.ops.mechplateau.mean_cosine(h, groups, n_groups, n_pairs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.n_groups, ctx.n_pairs = inputs[2:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        operation = torch.ops.mechplateau.mean_cosine_backward
        backward = _differentiable_mean_backward if torch.is_grad_enabled() else operation
        return backward(grad, *ctx.saved_tensors, ctx.n_groups, ctx.n_pairs), None, None, None


def fused_pairwise_cosine(h: Tensor, per_sample: bool) -> Tensor:
    """As `reference.pairwise_cosine`."""
    return _PairwiseCosine.apply(h, per_sample)


def fused_mean_cosine(h: Tensor, groups: Tensor, n_groups: int, n_pairs: int) -> Tensor:
    """As `reference.mean_cosine`, with the group of each position, int32 `[pos]`, -1 for none."""
    return _MeanCosine.apply(h, groups, n_groups, n_pairs)
