"""What all cases share."""

import math

import pytest
import torch

from mechplateau_kernels import _launch
from mechplateau_kernels.attention import launch, tiled_launch
from mechplateau_kernels.cosine import launch as cosine_launch


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Fresh memory holds NaN, so that whatever a kernel leaves unwritten shows."""

    def allocate(shape, dtype, device):
        return torch.full(shape, math.nan, dtype=dtype, device=device)

    for module in (_launch, launch, tiled_launch, cosine_launch):
        monkeypatch.setattr(module, "allocate", allocate)
