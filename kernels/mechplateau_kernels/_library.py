"""The torch library the kernels are registered in.

`torch.library.Library` with an `autograd.Function` around it, not `custom_op.register_autograd`: the
latter costs some 30 µs more a call, as much as the kernel itself at the paper's size.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["define", "define_vmap", "fold", "unfold"]

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
