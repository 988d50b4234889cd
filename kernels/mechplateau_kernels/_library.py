"""The torch library the kernels are registered in.

`torch.library.Library` with an `autograd.Function` around it, not `custom_op.register_autograd`: the
latter costs some 30 µs more a call, as much as the kernel itself at the paper's size.
"""

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["define"]

_LIBRARY = torch.library.Library("mechplateau", "FRAGMENT")


def define(schema: str, implementation: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Register `mechplateau::<schema>`; on the CPU it runs in Triton's interpreter."""
    _LIBRARY.define(schema)
    name = schema.split("(", 1)[0]
    _LIBRARY.impl(name, implementation, "CUDA")
    _LIBRARY.impl(name, implementation, "CPU")
    torch.library.register_fake(f"mechplateau::{name}", fake, lib=_LIBRARY)
