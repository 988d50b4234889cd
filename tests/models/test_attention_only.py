"""The attention-only model: TransformerLens's own and the written-out formulas give the same logits."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from transformer_lens import HookedTransformer, HookedTransformerConfig

from mechplateau.models.attention_only import build_attention_only
from mechplateau.models.attention_only_config import AttentionOnlyConfig

SIZES = {"n_layers": 2, "n_heads": 2, "d_model": 16}


@pytest.fixture
def model():
    return build_attention_only(AttentionOnlyConfig(**SIZES), vocab_size=20, n_ctx=12)


@pytest.fixture
def tokens(generator):
    return torch.randint(20, (3, 10), generator=generator)


def formulas(model, tokens, positions: float = 1.0):
    """The model from its weights and the paper's formulas."""
    x = model.embed.W_E[tokens]
    place = positions * model.pos_embed.W_pos[: tokens.shape[1]]
    future = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
    for block in model.blocks:
        a, ln = block.attn, block.ln1
        normal = F.layer_norm(x, (16,), ln.w, ln.b, 1e-5)
        q, k = (torch.einsum("bpm,hmd->bhpd", normal + place, w) for w in (a.W_Q, a.W_K))
        v = torch.einsum("bpm,hmd->bhpd", normal, a.W_V)
        scores = (q @ k.transpose(2, 3) / math.sqrt(8)).masked_fill(future, -torch.inf)
        x = x + torch.einsum("bhpd,hdm->bpm", scores.softmax(-1) @ v, a.W_O)
    return F.layer_norm(x, (16,), model.ln_final.w, model.ln_final.b, 1e-5) @ model.unembed.W_U


@torch.no_grad()
def test_logits_are_those_of_the_formulas_and_of_transformer_lens(model, tokens):
    logits = model(tokens)
    torch.testing.assert_close(logits, formulas(model, tokens), atol=1e-5, rtol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        plain = HookedTransformer(
            HookedTransformerConfig.from_dict({**model.cfg.to_dict(), "init_weights": False})
        )
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(logits, plain(tokens), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_without_positions_too(model, tokens):
    off = model.run_with_hooks(
        tokens, fwd_hooks=[("hook_pos_embed", lambda embedding, hook: torch.zeros_like(embedding))]
    )
    torch.testing.assert_close(off, formulas(model, tokens, positions=0.0), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(off, model(tokens), atol=1e-3)


@torch.no_grad()
def test_looking_changes_nothing_and_editing_does(model, tokens):
    before = model(tokens)
    logits, cache = model.run_with_cache(tokens)
    torch.testing.assert_close(logits, before, atol=1e-5, rtol=1e-5)
    pattern = cache["blocks.1.attn.hook_pattern"]
    torch.testing.assert_close(pattern.sum(-1), torch.ones(3, 2, 10))
    assert not pattern.triu(1).any()
    edited = model.run_with_hooks(
        tokens, fwd_hooks=[("blocks.0.attn.hook_pattern", lambda pattern, hook: torch.zeros_like(pattern))]
    )
    assert not torch.allclose(edited, before, atol=1e-3)
    assert torch.equal(model(tokens), before)
    seen = model.observe(tokens, keep_patterns=True)
    torch.testing.assert_close(seen.records[1].map(), pattern)
    assert seen.hidden["final"].shape == (3, 10, 16)


@pytest.mark.parametrize(("layers", "count"), [(1, 3_091_336), (2, 3_355_016)])
def test_the_numbers_of_parameters_are_the_papers(layers, count):
    model = build_attention_only(AttentionOnlyConfig(n_layers=layers), vocab_size=5000, n_ctx=1024)
    assert model.n_parameters == count


@torch.no_grad()
def test_weights_start_with_the_papers_spread_and_a_seed_gives_them():
    one, same, other = (
        build_attention_only(
            AttentionOnlyConfig(d_model=64),
            vocab_size=500,
            n_ctx=32,
            generator=torch.Generator().manual_seed(seed),
        )
        for seed in (1, 1, 2)
    )
    assert float(one.embed.W_E.std()) == pytest.approx(0.8 / 8, rel=0.02)
    assert float(one.blocks[0].attn.W_O.std()) == pytest.approx(0.8 / 8, rel=0.05)
    assert not one.blocks[0].attn.b_Q.any()
    assert torch.equal(one.unembed.W_U, same.unembed.W_U)
    assert not torch.equal(one.unembed.W_U, other.unembed.W_U)


def test_every_parameter_is_trained(model, tokens):
    model(tokens).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
