"""Whether a model's hook points are hooked; compiled code is not used while they are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from transformer_lens.hook_points import HookPoint


def observed(*points: nn.Module) -> bool:
    """Whether one of the hook points (or other modules) is hooked.

    That is: a hook of TransformerLens's or PyTorch's own, on the point or on all modules at once, or a `forward` put
    into the point itself (as nnsight does).
    """
    return bool(torch_module._has_any_global_hook()) or any(
        point._forward_hooks
        or point._forward_pre_hooks
        or point._backward_hooks
        or point._backward_pre_hooks
        or "forward" in point.__dict__
        for point in points
    )


class Watch:
    """Whether a hook may be on some point of a model; the model, its blocks and its points share one.

    Compiled code looks here: `torch.compile` checks this attribute before each call, but no module's hooks.
    """

    def __init__(self) -> None:
        self.on = False
        self.points: Sequence[HookPoint] = ()

    def look(self) -> None:
        """See whether there still is a hook."""
        self.on = observed(*self.points)


def honors_hooks(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator of the `forward` of a module with a `watch`: while a hook is on, nothing in it runs compiled."""

    @functools.wraps(forward)
    def honoring(module: Any, *args: Any, **kwargs: Any) -> Any:
        # Whether this is being compiled is not checked here: where it is not, `forward` itself may be.
        if module.watch is not None and module.watch.on:
            return _uncompiled(forward, module, *args, **kwargs)
        return forward(module, *args, **kwargs)

    # Code of its own: torch compiles the same code for a few kinds of module only, and then runs it uncompiled.
    own: Any = honoring
    own.__code__ = own.__code__.replace(co_name=forward.__name__)
    return honoring


@torch.compiler.disable
def _uncompiled(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return forward(*args, **kwargs)


__all__ = ["Watch", "honors_hooks", "observed"]
