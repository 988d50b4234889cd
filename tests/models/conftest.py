"""Small models with every parameter random, so that no term is hidden by a zero or a one."""

from __future__ import annotations

import warnings

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformer_lens import HookedTransformer
from transformers import PreTrainedTokenizerFast

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


def plain_twin(model):
    """TransformerLens's own, unmodified HookedTransformer with the same configuration and weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        twin = HookedTransformer(model.cfg)
    twin.load_state_dict(model.state_dict())
    return twin


def make_tokenizer(vocab_size=11):
    """One token a word: a pad, an end, and the words t2, t3, …"""
    words = ["<pad>", "<eos>", *(f"t{i}" for i in range(2, vocab_size))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<eos>"
    )


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
