"""What every kernel launch shares."""

import torch
from torch import Tensor

__all__ = ["LAUNCH_OPTIONS", "allocate", "chunk_of", "unit_stride"]

LAUNCH_OPTIONS = {
    # Stated, since Triton 3.9 warns where it is not and 3.10 changes the default, and with it the rounding.
    "enable_fp_fusion": True,
    # All a thread can have. Left to itself, ptxas aims at more threads a multiprocessor and spills a few values.
    "maxnreg": 255,
}


def allocate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory for a result; the kernels write every element of it. Tests replace this by poisoned memory."""
    return torch.empty(shape, dtype=dtype, device=device)


def unit_stride(x: Tensor) -> Tensor:
    """`x`, copied only where its last dimension is not laid out with stride 1."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def chunk_of(width: int, largest: int) -> int:
    """The smallest power of two from 16 up that covers `width`, but at most `largest`."""
    chunk = 16
    while chunk < min(width, largest):
        chunk *= 2
    return chunk
