"""Shared code of all kernel launches, and the argument properties for which Triton compiles a separate kernel.

Triton makes a constant of every integer argument that is 1, and uses that an integer or an address is a multiple of
16: each combination is a program of its own, and one may be miscompiled where another is right. `kind` and `layout`
name these differences; `placed` makes a tensor of a given layout for the self-check.
"""

from functools import lru_cache

import torch
from torch import Tensor

__all__ = [
    "LAUNCH_OPTIONS",
    "Layout",
    "address",
    "allocate",
    "chunk_of",
    "kind",
    "layout",
    "of_kind",
    "placed",
    "regular",
]

LAUNCH_OPTIONS = {
    # Stated, since Triton 3.9 warns where it is not and 3.10 changes the default, and with it the rounding.
    "enable_fp_fusion": True,
    # All a thread can have. Left to itself, ptxas aims at more threads a multiprocessor and spills a few values.
    "maxnreg": 255,
}


def allocate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory for a result; the kernels write every element of it. Tests replace this by poisoned memory."""
    return torch.empty(shape, dtype=dtype, device=device)


def regular(x: Tensor) -> Tensor:
    """`x`, copied only where a kernel cannot take it as it lies: a last stride that is not 1, other dimensions that
    overlap with it, or strides beyond 32 bits."""
    return x if _is_regular(x.shape, x.stride()) else x.contiguous()


@lru_cache(4096)
def _is_regular(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    ones = sum(size > 1 and stride == 1 for size, stride in zip(shape, strides, strict=True))
    return (strides[-1] == 1 or shape[-1] == 1) and ones <= 1 and max(strides) < 1 << 31


Layout = tuple[str, ...]
"""`kind` of every stride but the last, then `address`."""


def kind(number: int) -> str:
    """ "1", "16" for a multiple of 16, or "any"."""
    return "1" if number == 1 else "16" if number % 16 == 0 else "any"


def address(x: Tensor) -> str:
    """Whether the data begin at a multiple of 16 bytes."""
    return "aligned" if x.data_ptr() % 16 == 0 else "unaligned"


@lru_cache(4096)
def _kinds(strides: tuple[int, ...]) -> Layout:
    return tuple(kind(stride) for stride in strides)


def layout(x: Tensor) -> Layout:
    return (*_kinds(x.stride()[:-1]), address(x))


def of_kind(wanted: str, least: int) -> int:
    """The smallest number of this kind from `least` up."""
    if wanted == "1":
        return 1
    number = -(-least // 16) * 16 if wanted == "16" else max(least, 2)
    return number + 1 if wanted == "any" and number % 16 == 0 else number


def placed(values: Tensor, wanted: Layout, device: torch.device, dtype: torch.dtype) -> Tensor:
    """`values` on the device, in memory of this layout."""
    *kinds, where = wanted
    strides, extent = [1] * values.dim(), values.shape[-1]
    # Dimensions next to each other in memory come first; there is one of more than one element at most.
    for i in sorted(range(len(kinds)), key=lambda i: (kinds[i] != "1", -i)):
        strides[i] = of_kind(kinds[i], extent)
        extent += strides[i] * (values.shape[i] - 1)
    skipped = 0 if where == "aligned" else 1
    memory = torch.zeros(extent + skipped, dtype=dtype, device=device)
    view = memory.as_strided(values.shape, strides, skipped)
    view.copy_(values)
    return view


def chunk_of(width: int, largest: int) -> int:
    """The smallest power of two from 16 up that covers `width`, but at most `largest`."""
    chunk = 16
    while chunk < min(width, largest):
        chunk *= 2
    return chunk
