"""Small models with every parameter random, ours and TransformerLens's own."""

from __future__ import annotations

import warnings

import pytest
import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig

from mechplateau.models import ModelConfig, build_model
from mechplateau.training import train

from .trained import toy

VOCAB, LENGTH = 11, 9


def make_model(attention="linear", n_layers=2, n_heads=2, d_model=16, vocab_size=VOCAB, n_ctx=LENGTH, seed=0):
    config = ModelConfig(attention=attention, n_layers=n_layers, n_heads=n_heads, d_model=d_model)
    return randomized(build_model(config, vocab_size=vocab_size, n_ctx=n_ctx), seed)


def plain_model(n_layers=2, seed=0, **settings):
    """One of TransformerLens's own, without any component of ours."""
    sizes = {"d_model": 16, "n_heads": 2, "d_head": 8, "d_mlp": 24, "d_vocab": VOCAB, "n_ctx": LENGTH}
    defaults = {"act_fn": "gelu_new", "normalization_type": "LN", "seed": 0, "device": "cpu"}
    cfg = HookedTransformerConfig(n_layers=n_layers, **{**sizes, **defaults, **settings})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return randomized(HookedTransformer(cfg), seed)


def randomized(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.normal_(1.0 if name.endswith(".w") else 0.0, 0.3, generator=generator)
    return model.eval()


MODELS = {
    "linear": lambda seed: make_model("linear", seed=seed),
    "linear one layer": lambda seed: make_model("linear", n_layers=1, seed=seed),
    "softmax": lambda seed: make_model("softmax", seed=seed),
    "plain": lambda seed: plain_model(seed=seed),
    "plain rotary": lambda seed: plain_model(seed=seed, positional_embedding_type="rotary", rotary_dim=8),
    "plain parallel": lambda seed: plain_model(seed=seed, parallel_attn_mlp=True, normalization_type="RMS"),
    "plain attention only": lambda seed: plain_model(seed=seed, attn_only=True, normalization_type=None),
    "plain shortformer": lambda seed: plain_model(seed=seed, positional_embedding_type="shortformer"),
    "plain bidirectional": lambda seed: plain_model(seed=seed, attention_dir="bidirectional"),
}


@pytest.fixture(params=list(MODELS))
def two_models(request):
    """Two checkpoints of the same shapes."""
    return MODELS[request.param](0), MODELS[request.param](1)


@pytest.fixture
def tokens(generator):
    return torch.randint(0, VOCAB, (3, LENGTH), generator=generator)


@pytest.fixture(scope="session")
def toy_run(tmp_path_factory):
    """A finished run with a plateau."""
    return train(toy(), runs_dir=tmp_path_factory.mktemp("runs"), threads=1)
