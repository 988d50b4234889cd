"""Small models with every parameter random, so that no term is hidden by a zero or a one."""

from __future__ import annotations

import pytest
import torch

from mechplateau.models import ModelConfig, build_model


def make_model(attention="linear", n_layers=2, n_heads=2, d_model=16, vocab_size=11, n_ctx=9, seed=0):
    config = ModelConfig(attention=attention, n_layers=n_layers, n_heads=n_heads, d_model=d_model)
    model = build_model(config, vocab_size=vocab_size, n_ctx=n_ctx)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.normal_(1.0 if name.endswith(".w") else 0.0, 0.15, generator=generator)
    return model


@pytest.fixture(params=["linear", "softmax"])
def model(request):
    return make_model(request.param)


@pytest.fixture
def linear_model():
    return make_model("linear")


@pytest.fixture
def softmax_model():
    return make_model("softmax")


@pytest.fixture
def tokens(generator):
    return torch.randint(0, 11, (3, 8), generator=generator)
