"""A small model with its loss and data, shared by these tests."""

from __future__ import annotations

import torch
from torch import nn

from mechplateau.development import Rows


def mlp(dtype=torch.float32, dropout=0.0):
    generator = torch.Generator().manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(dropout), nn.Tanh(), nn.Linear(8, 2)).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.5, generator=generator)
    return model


def rows(number=60, batch_size=20, dtype=torch.float32):
    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(number, 5, generator=generator, dtype=dtype)
    return Rows((inputs, torch.randn(number, 2, generator=generator, dtype=dtype)), batch_size=batch_size)


def squared(model, batch):
    inputs, targets = batch
    return (model(inputs) - targets).square()
