"""Our models as a TransformerBridge. These tests need no HookedTransformer: they run on TransformerLens 3.9 and 4.

What is right is computed here, in plain torch.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from transformer_lens import FactoredMatrix

from mechplateau.errors import CheckpointError, UserError
from mechplateau.models.bridge import bridge_of
from mechplateau.models.config import ModelConfig

HEADS, WIDTH, D_MODEL, D_MLP, CTX = 2, 5, 12, 20, 7
# 12 and 20 tokens: as many as d_model and d_mlp, where TransformerLens could mistake a matrix for its transpose.
VOCABULARIES = (9, 12, 20)


def config_of(attention: str) -> ModelConfig:
    return ModelConfig(
        attention=attention, n_layers=2, n_heads=HEADS, d_head=WIDTH, d_model=D_MODEL, d_mlp=D_MLP
    )


def weights_of(vocabulary: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(vocabulary)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 0.4

    weights = {"embed.W_E": random(vocabulary, D_MODEL), "pos_embed.W_pos": random(CTX, D_MODEL)}
    for layer in range(2):
        for kind in "QKV":
            weights[f"blocks.{layer}.attn.W_{kind}"] = random(HEADS, D_MODEL, WIDTH)
            weights[f"blocks.{layer}.attn.b_{kind}"] = random(HEADS, WIDTH)
        weights[f"blocks.{layer}.attn.W_O"] = random(HEADS, WIDTH, D_MODEL)
        weights[f"blocks.{layer}.attn.b_O"] = random(D_MODEL)
        weights |= {f"blocks.{layer}.ln{i}.w": 1 + random(D_MODEL) for i in (1, 2)}
        weights |= {f"blocks.{layer}.ln{i}.b": random(D_MODEL) for i in (1, 2)}
        weights[f"blocks.{layer}.mlp.W_in"], weights[f"blocks.{layer}.mlp.b_in"] = (
            random(D_MODEL, D_MLP),
            random(D_MLP),
        )
        weights[f"blocks.{layer}.mlp.W_out"], weights[f"blocks.{layer}.mlp.b_out"] = (
            random(D_MLP, D_MODEL),
            random(D_MODEL),
        )
    weights |= {"ln_final.w": 1 + random(D_MODEL), "ln_final.b": random(D_MODEL)}
    return weights | {"unembed.W_U": random(D_MODEL, vocabulary), "unembed.b_U": random(vocabulary)}


def plain(weights, tokens, linear, edit=None):
    """Logits in float64, and each layer's pattern; `edit(scores, pattern, layer)` gives a pattern to use instead."""
    w = {name: tensor.double() for name, tensor in weights.items()}
    x, patterns = w["embed.W_E"][tokens] + w["pos_embed.W_pos"][: tokens.shape[1]], []
    causal = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()

    def norm(x, name):
        return F.layer_norm(x, (D_MODEL,), w[f"{name}.w"], w[f"{name}.b"], 1e-5)

    for layer in range(2):
        at = {k: w[f"blocks.{layer}.attn.{k}"] for k in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V")}
        h = norm(x, f"blocks.{layer}.ln1")
        q, k, v = (
            torch.einsum("bpm,hmd->bhpd", h, at[f"W_{kind}"]) + at[f"b_{kind}"][:, None] for kind in "QKV"
        )
        scores = q @ k.mT / math.sqrt(WIDTH)
        pattern = scores * causal if linear else scores.masked_fill(~causal, -torch.inf).softmax(-1)
        if edit is not None:
            pattern = edit(pattern, layer)
        patterns.append(pattern)
        x = x + torch.einsum("bhpd,hdm->bpm", pattern @ v, at["W_O"]) + w[f"blocks.{layer}.attn.b_O"]
        h = norm(x, f"blocks.{layer}.ln2") @ w[f"blocks.{layer}.mlp.W_in"] + w[f"blocks.{layer}.mlp.b_in"]
        x = (
            x
            + F.gelu(h, approximate="tanh") @ w[f"blocks.{layer}.mlp.W_out"]
            + w[f"blocks.{layer}.mlp.b_out"]
        )
    return norm(x, "ln_final") @ w["unembed.W_U"] + w["unembed.b_U"], patterns


@pytest.fixture(params=["linear", "softmax"])
def attention(request) -> str:
    return request.param


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(0, 9, (3, CTX), generator=torch.Generator().manual_seed(0))


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a.double(), b.double(), atol=1e-5)


def test_it_computes_the_model(attention, tokens):
    weights = weights_of(9)
    bridge = bridge_of(config_of(attention), weights)
    logits, patterns = plain(weights, tokens, attention == "linear")
    got, cache = bridge.run_with_cache(tokens)
    assert close(got, logits)
    for layer, pattern in enumerate(patterns):
        assert close(cache[f"blocks.{layer}.attn.hook_pattern"], pattern)
    assert not bridge.training


def test_a_hook_on_the_pattern_acts(attention, tokens):
    weights = weights_of(9)
    bridge = bridge_of(config_of(attention), weights)

    def first_key(pattern, layer):
        edited = torch.zeros_like(pattern)
        edited[..., 0] = 0.5
        return edited if layer == 1 else pattern

    edited = bridge.run_with_hooks(
        tokens, fwd_hooks=[("blocks.1.attn.hook_pattern", lambda pattern, hook: first_key(pattern, 1))]
    )
    logits, _ = plain(weights, tokens, attention == "linear", first_key)
    assert close(edited, logits)


def test_a_hook_on_the_scores_acts_and_cannot_look_ahead(attention, tokens):
    weights = weights_of(9)
    bridge = bridge_of(config_of(attention), weights)
    causal = torch.ones(CTX, CTX, dtype=torch.bool).tril()

    def all_one(pattern, layer):
        ones = causal.double().expand_as(pattern)
        return ones if attention == "linear" else ones / ones.sum(-1, keepdim=True)

    hooks = [
        (f"blocks.{layer}.attn.hook_attn_scores", lambda scores, hook: torch.ones_like(scores))
        for layer in (0, 1)
    ]
    logits, _ = plain(weights, tokens, attention == "linear", all_one)
    assert close(bridge.run_with_hooks(tokens, fwd_hooks=hooks), logits)


def test_each_heads_result_sums_to_the_same_logits(attention, tokens):
    bridge = bridge_of(config_of(attention), weights_of(9))
    before = bridge(tokens)
    bridge.set_use_attn_result(True)
    got, cache = bridge.run_with_cache(tokens)
    assert close(got, before)
    assert cache["blocks.0.attn.hook_result"].shape == (3, CTX, HEADS, D_MODEL)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_processed_weights_are_the_same_model(attention, vocabulary, tokens):
    weights = weights_of(vocabulary)
    bridge = bridge_of(config_of(attention), weights)
    before, _ = plain(weights, tokens, attention == "linear")
    bridge.enable_compatibility_mode()
    assert close(bridge(tokens).log_softmax(-1), before.log_softmax(-1))
    assert bool((bridge.blocks[0].attn.b_V != 0).any()) == (attention == "linear")


def test_composition_scores_are_exact(attention):
    weights = weights_of(9)
    bridge = bridge_of(config_of(attention), weights)
    for kind in "QKV":
        with torch.no_grad():
            scores = bridge.all_composition_scores(kind)
        for source, reader in itertools.product(range(HEADS), repeat=2):
            first = weights["blocks.0.attn.W_V"][source] @ weights["blocks.0.attn.W_O"][source]
            at = {k: weights[f"blocks.1.attn.W_{k}"][reader] for k in "QKVO"}
            second = {"Q": at["Q"] @ at["K"].T, "K": at["K"] @ at["Q"].T, "V": at["V"] @ at["O"]}[kind]
            expected = (first @ second).norm() / (first.norm() * second.norm())
            assert float(scores[0, source, 1, reader]) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("step", ["fold_value_biases", "refactor_factored_attn_matrices"])
@pytest.mark.parametrize("process", ["process_weights", "enable_compatibility_mode"])
def test_processing_that_assumes_softmax_is_refused_on_linear_attention(process, step, tokens):
    bridge = bridge_of(config_of("linear"), weights_of(9))
    before = bridge(tokens)
    with pytest.raises(UserError, match=f"{step} assumes that attention rows sum to 1"):
        getattr(bridge, process)(**{step: True})
    assert torch.equal(bridge(tokens), before)


def test_steps_may_be_given_in_transformer_lens_order(tokens):
    weights = weights_of(9)
    before, _ = plain(weights, tokens, linear=False)
    for process, leading in (("process_weights", (False,)), ("enable_compatibility_mode", (True, False))):
        bridge = bridge_of(config_of("softmax"), weights)
        getattr(bridge, process)(*leading, True, True, True, True, True)
        assert close(bridge(tokens).log_softmax(-1), before.log_softmax(-1))
        assert not bridge.blocks[0].attn.b_V.any()
        with pytest.raises(UserError, match="fold_value_biases"):
            getattr(bridge_of(config_of("linear"), weights), process)(*leading, True, True, True, True)


def test_softmax_value_biases_are_folded_exactly(tokens):
    weights = weights_of(9)
    bridge = bridge_of(config_of("softmax"), weights)
    bridge.process_weights(fold_value_biases=True)
    before, _ = plain(weights, tokens, linear=False)
    assert close(bridge(tokens).log_softmax(-1), before.log_softmax(-1))


def test_padding_is_not_attended_to(attention, tokens):
    bridge = bridge_of(config_of(attention), weights_of(9))
    mask = torch.ones_like(tokens)
    mask[:, 2] = 0
    other = tokens.clone()
    other[:, 2] = (other[:, 2] + 1) % 9
    kept = mask[0].bool()
    first, second = (bridge(given, attention_mask=mask) for given in (tokens, other))
    assert close(first[:, kept], second[:, kept])


def test_the_models_own_weights_are_not_shared():
    weights = weights_of(9)
    before = weights["embed.W_E"].clone()
    bridge = bridge_of(config_of("linear"), weights)
    with torch.no_grad():
        for parameter in bridge.parameters():
            parameter.add_(1.0)
    assert torch.equal(weights["embed.W_E"], before)


def test_what_does_not_fit_is_named():
    weights = weights_of(9)
    weights["blocks.0.attn.W_Q"] = weights["blocks.0.attn.W_Q"][:1]
    weights["stray"] = torch.zeros(1)
    del weights["ln_final.b"]
    with pytest.raises(CheckpointError, match=r"missing ln_final\.b; unknown stray; .*blocks\.0\.attn\.W_Q"):
        bridge_of(config_of("linear"), weights)


def test_composition_reads_factored_matrices_of_the_bridge():
    bridge = bridge_of(config_of("linear"), weights_of(9))
    assert isinstance(bridge.QK, FactoredMatrix)
    assert bridge.QK.A.shape == (2, HEADS, D_MODEL, WIDTH)
