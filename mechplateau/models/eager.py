"""Whether ordinary autograd is all that follows a computation, so that a faster way by hand may be taken."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad


def in_plain_eager(*tensors: Tensor) -> bool:
    """Whether these are float32 on a CPU, and nothing but ordinary autograd follows what is done with them."""
    return (
        all(x.device.type == "cpu" and x.dtype == torch.float32 for x in tensors)
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def vmapped(grad: Tensor) -> bool:
    """Whether many gradients come at once, which the forward pass cannot know (`is_grads_batched`, `vmap`)."""
    functorch = torch._C._functorch
    return torch._C._are_functorch_transforms_active() or functorch.is_legacy_batchedtensor(grad)
