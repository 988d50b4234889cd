"""Position sets as bit planes of one uint8 tensor, the form the kernels read them in."""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["MAX_PLANES", "pack"]

MAX_PLANES = 8


def pack(intervene: Tensor | None, metric_sets: Sequence[Tensor]) -> Tensor | None:
    """uint8 `[1 or batch, pos, pos]`: bit s is metric set s, the bit after them the intervention.

    The masks are bool `[1 or batch, pos, pos]`. None where there are none.
    """
    planes = [*metric_sets] if intervene is None else [*metric_sets, intervene]
    if not planes:
        return None
    bits = planes[0].to(torch.uint8)
    for bit, plane in enumerate(planes[1:], start=1):
        bits = bits | (plane.to(torch.uint8) << bit)
    return bits.contiguous()
