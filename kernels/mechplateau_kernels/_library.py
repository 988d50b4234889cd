"""The torch library the kernels are registered in.

`torch.library.Library` with an `autograd.Function` around it, not `custom_op.register_autograd`: the
latter costs some 30 µs more a call, as much as the kernel itself at the paper's size.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ._dispatch import full_precision

__all__ = ["define", "define_vmap", "differentiable", "fold", "unfold"]

_LIBRARY = torch.library.Library("mechplateau", "FRAGMENT")


def define(schema: str, implementation: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Register `mechplateau::<schema>`; on the CPU it runs in Triton's interpreter."""
    _LIBRARY.define(schema)
    name = schema.split("(", 1)[0]
    _LIBRARY.impl(name, _on_its_device(implementation), "CUDA")
    _LIBRARY.impl(name, implementation, "CPU")
    torch.library.register_fake(f"mechplateau::{name}", fake, lib=_LIBRARY)


def _on_its_device(implementation: Callable[..., Any]) -> Callable[..., Any]:
    """Triton launches on the current device, which need not be the tensors'."""

    def run(first: Tensor, *rest: Any) -> Any:
        if first.device.index == torch.cuda.current_device():
            return implementation(first, *rest)
        with torch.cuda.device(first.device):
            return implementation(first, *rest)

    return run


def define_vmap(name: str, rule: Callable[..., Any]) -> None:
    """Register `rule(info, in_dims, *arguments) -> (results, out_dims)`."""
    torch.library.register_vmap(f"mechplateau::{name}", rule, lib=_LIBRARY)


def fold(x: Tensor, dim: int | None, size: int) -> Tensor:
    """The mapped dimension (None: expanded to `size`) folded into the first."""
    x = x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
    return x.flatten(0, 1)


def unfold(x: Tensor, size: int) -> Tensor:
    """Undo `fold`: the mapped dimension comes first."""
    return x.unflatten(0, (size, x.shape[0] // size))


def differentiable(backward: Callable[..., Any], formula: Callable[..., Any]) -> Callable[..., Any]:
    """`backward`, an operation that gives a kernel's gradients, made differentiable itself.

    Its own gradients, of any order, are those of `formula`: the same function of the same arguments in plain
    torch. To be called where a graph of the backward pass is requested; elsewhere the operation alone is faster.
    (`once_differentiable` would not do: its error hangs on a path that `torch.autograd.grad` leaves out, and the
    second derivative is then silently wrong.)
    """

    class Backward(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*arguments: Any) -> Any:
            return backward(*arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.is_tensor = [isinstance(x, Tensor) for x in inputs]
            ctx.save_for_backward(*(x for x in inputs if isinstance(x, Tensor)))
            ctx.others = [x for x in inputs if not isinstance(x, Tensor)]

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
            tensors, others = iter(ctx.saved_tensors), iter(ctx.others)
            arguments = [next(tensors) if is_tensor else next(others) for is_tensor in ctx.is_tensor]
            chosen = [i for i, x in enumerate(arguments) if isinstance(x, Tensor) and x.is_floating_point()]

            def of_chosen(*values: Tensor) -> Any:
                changed = dict(zip(chosen, values, strict=True))
                return formula(*(changed.get(i, x) for i, x in enumerate(arguments)))

            with full_precision(grads[0].device):
                pull_back = torch.func.vjp(of_chosen, *(arguments[i] for i in chosen))[1]
                pulled = dict(zip(chosen, pull_back(grads if len(grads) > 1 else grads[0]), strict=True))
            return tuple(pulled.get(i) for i in range(len(arguments)))

    return Backward.apply
