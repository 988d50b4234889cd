"""Attention: fused unless observed, hooks act, masks hold, and the factor on Ω does what it says."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from transformer_lens.components import Attention

import mechplateau_kernels as mk
from mechplateau.models import observe
from mechplateau.models.attention import SoftmaxAttention

from .conftest import make_model

SCORES, PATTERN = "blocks.0.attn.hook_attn_scores", "blocks.0.attn.hook_pattern"


def no_op(activation, hook):
    return activation


def plain_linear_pattern(model, tokens, layer=0):
    """The map from the definition: causal(QKᵀ/√d_head) with zeros above the diagonal."""
    _, cache = model.run_with_cache(tokens)
    q, k = cache[f"blocks.{layer}.attn.hook_q"].double(), cache[f"blocks.{layer}.attn.hook_k"].double()
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    return scores.tril()


def test_linear_pattern_is_the_definition(linear_model, tokens):
    _, cache = linear_model.run_with_cache(tokens)
    expected = plain_linear_pattern(linear_model, tokens)
    torch.testing.assert_close(cache[PATTERN].double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(cache[SCORES], cache[PATTERN])


@pytest.mark.parametrize("name", [SCORES, PATTERN])
def test_a_no_op_hook_changes_nothing(model, tokens, name):
    fused = model(tokens)
    hooked = model.run_with_hooks(tokens, fwd_hooks=[(name, no_op)])
    torch.testing.assert_close(hooked, fused, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", [SCORES, PATTERN])
def test_an_edit_takes_effect(model, tokens, name):
    def double(activation, hook):
        return activation * 2

    edited = model.run_with_hooks(tokens, fwd_hooks=[(name, double)])
    assert (edited - model(tokens)).abs().max() > 1e-3


def test_a_raw_pytorch_hook_on_the_pattern_acts_too(linear_model, tokens):
    before = linear_model(tokens)
    handle = linear_model.blocks[0].attn.hook_pattern.register_forward_hook(lambda m, i, o: o * 2)
    assert (linear_model(tokens) - before).abs().max() > 1e-3
    handle.remove()
    assert torch.equal(linear_model(tokens), before)


def test_an_edit_of_the_pattern_is_what_attention_uses(linear_model, tokens):
    """With the pattern replaced by the identity, z is v."""

    def identity(pattern, hook):
        return torch.eye(pattern.shape[-1]).expand_as(pattern)

    with linear_model.hooks(fwd_hooks=[(PATTERN, identity)]):
        _, cache = linear_model.run_with_cache(tokens)
    torch.testing.assert_close(cache["blocks.0.attn.hook_z"], cache["blocks.0.attn.hook_v"])


def test_scores_above_the_diagonal_are_masked_again(model, tokens):
    def everywhere(scores, hook):
        return torch.where(scores.isfinite(), scores, 0.0) + 5.0

    seen = {}

    def keep(pattern, hook):
        seen["pattern"] = pattern

    model.run_with_hooks(tokens, fwd_hooks=[(SCORES, everywhere), (PATTERN, keep)])
    above = torch.ones(8, 8, dtype=torch.bool).triu(1)
    assert (seen["pattern"][..., above] == 0).all()
    assert (seen["pattern"][..., ~above] != 0).any()


def test_gradients_of_both_paths_agree(linear_model, tokens):
    linear_model(tokens).square().sum().backward()
    fused = {name: p.grad.clone() for name, p in linear_model.named_parameters() if p.grad is not None}
    linear_model.zero_grad()
    linear_model.run_with_hooks(tokens, fwd_hooks=[(PATTERN, no_op)]).square().sum().backward()
    for name, parameter in linear_model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, fused[name], rtol=1e-4, atol=1e-4)


def test_every_hook_name_of_transformer_lens_is_cached(model, tokens):
    _, cache = model.run_with_cache(tokens)
    for name in ("hook_q", "hook_k", "hook_v", "hook_attn_scores", "hook_pattern", "hook_z"):
        assert f"blocks.1.attn.{name}" in cache
    for name in ("hook_resid_pre", "hook_attn_out", "hook_resid_mid", "hook_mlp_out", "hook_resid_post"):
        assert f"blocks.1.{name}" in cache
    for name in (
        "hook_embed",
        "hook_pos_embed",
        "ln_final.hook_normalized",
        "unembed.hook_in",
        "blocks.0.mlp.hook_post",
    ):
        assert name in cache
    assert cache["pattern", 0].shape == (3, 2, 8, 8)


def test_head_results_sum_to_the_output(model, tokens):
    plain = model(tokens)
    model.set_use_attn_result(True)
    logits, cache = model.run_with_cache(tokens)
    torch.testing.assert_close(logits, plain, rtol=0, atol=2e-6)
    total = cache["blocks.0.attn.hook_result"].sum(2) + model.blocks[0].attn.b_O
    torch.testing.assert_close(total, cache["blocks.0.hook_attn_out"], rtol=0, atol=1e-5)


def test_positions_can_be_edited_in_place(model, tokens):
    """As much TransformerLens code does; the edit of one sequence leaves the others alone."""

    def silence_first(positions, hook):
        positions[0] = 0
        return positions

    before = model(tokens)
    with torch.no_grad():
        after = model.run_with_hooks(tokens, fwd_hooks=[("hook_pos_embed", silence_first)])
    assert not torch.allclose(after[0], before[0])
    assert torch.equal(after[1:], before[1:])
    assert torch.equal(model(tokens), before)


def test_split_inputs_and_padding_still_work(model, tokens):
    plain = model(tokens)
    model.set_use_split_qkv_input(True)
    torch.testing.assert_close(model(tokens), plain, rtol=0, atol=2e-6)
    model.set_use_split_qkv_input(False)
    mask = torch.ones_like(tokens)
    mask[:, 0] = 0
    padded = model(tokens, attention_mask=mask)
    alone = model(tokens[:, 1:])
    # Without its first token, every position is as if the sequence began one later.
    torch.testing.assert_close(padded[:, 1:], alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["usual", "nothing to attend to", "undefined", "both"])
def test_a_row_with_nothing_to_attend_to_is_zero_and_an_undefined_one_stays_so(kind):
    attention = make_model("softmax").blocks[0].attn
    scores = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    scores[..., 3:] = -torch.inf
    if kind in ("nothing to attend to", "both"):
        scores[0, 1, 2] = -torch.inf
    if kind in ("undefined", "both"):
        scores[1, 0, 0, 1] = torch.nan
    pattern = attention.scores_to_pattern(scores)
    expected = scores.softmax(-1)
    if kind in ("nothing to attend to", "both"):
        expected[0, 1, 2] = 0.0
    torch.testing.assert_close(pattern, expected, rtol=0, atol=0, equal_nan=True)
    assert pattern[1, 0, 0].isnan().all() == (kind in ("undefined", "both"))
    # Float64 takes the way without a branch.
    torch.testing.assert_close(
        attention.scores_to_pattern(scores.double()).float(), expected, rtol=1e-6, atol=1e-7, equal_nan=True
    )


@pytest.mark.parametrize("soft_cap", [-1.0, 0.5])
def test_projections_and_scores_are_transformer_lens_to_the_bit(model, tokens, soft_cap):
    model.cfg.attn_scores_soft_cap = soft_cap
    attention = model.blocks[0].attn
    x = torch.randn(3, 8, model.cfg.d_model)
    ours = attention.calculate_qkv_matrices(x, x, x)
    theirs = Attention.calculate_qkv_matrices(attention, x, x, x)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)
    q, k, _ = ours
    scores = attention.calculate_attention_scores(q, k)
    assert torch.equal(scores, Attention.calculate_attention_scores(attention, q, k))
    assert soft_cap < 0 or scores.abs().max() <= soft_cap


def test_norms_of_queries_and_keys_are_transformer_lens_too(model):
    cfg = copy.deepcopy(model.cfg)
    cfg.use_qk_norm = True
    attention = SoftmaxAttention(cfg)
    x = torch.randn(3, 8, cfg.d_model)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.normal_()
        q, k, _ = attention.calculate_qkv_matrices(x, x, x)
        expected = Attention.calculate_qkv_matrices(attention, x, x, x)
    assert torch.equal(q, expected[0])
    assert torch.equal(k, expected[1])


def test_one_query_among_several_keys_is_causal(model, tokens):
    """Which TransformerLens refuses without a cache; what comes later is not attended to at any rate."""
    attention = model.blocks[0].attn
    attention.hook_pattern.add_hook(no_op)
    x = torch.randn(3, 8, model.cfg.d_model)
    changed = x.clone()
    changed[:, 1:] += 1
    assert torch.equal(attention(x[:, :1], x, x), attention(x[:, :1], changed, changed))


def test_softmax_rows_sum_to_one_and_are_causal(softmax_model, tokens):
    _, cache = softmax_model.run_with_cache(tokens)
    pattern = cache[PATTERN]
    torch.testing.assert_close(pattern.sum(-1), torch.ones(3, 2, 8))
    assert (pattern.triu(1) == 0).all()


def scaled_set():
    entries = torch.zeros(9, 9, dtype=torch.bool)
    entries[4, 1] = entries[5, 2] = entries[5, 7] = True  # (5, 7) lies above the diagonal
    return entries


def test_the_factor_changes_exactly_its_entries(model, tokens):
    _, before = model.run_with_cache(tokens)
    model.blocks[0].attn.scale_on(scaled_set(), 3.0)
    _, after = model.run_with_cache(tokens)
    ratio = after[PATTERN] / before[PATTERN]
    changed = scaled_set()[:8, :8].tril()
    torch.testing.assert_close(ratio[..., changed], torch.full((3, 2, 2), 3.0))
    same = torch.ones(8, 8).tril().bool() & ~changed
    assert torch.equal(after[PATTERN][..., same], before[PATTERN][..., same])
    fused = model(tokens)
    hooked = model.run_with_hooks(tokens, fwd_hooks=[(PATTERN, no_op)])
    torch.testing.assert_close(hooked, fused, rtol=0, atol=1e-6)


def test_a_factor_of_one_is_bitwise_none(model, tokens):
    plain = model(tokens)
    model.blocks[0].attn.scale_on(scaled_set(), 1.0)
    assert torch.equal(model(tokens), plain)
    model.blocks[0].attn.scale_on(None)
    model.blocks[0].attn.scale_on(scaled_set(), 2.0)
    assert not torch.equal(model(tokens), plain)


def test_two_factors_at_once_are_refused(model):
    model.blocks[0].attn.scale_on(scaled_set(), 2.0)
    with pytest.raises(RuntimeError, match="already"):
        model.blocks[0].attn.scale_on(scaled_set(), 3.0)


@pytest.mark.parametrize("keep_patterns", [False, True])
def test_masses_are_sums_of_the_scaled_pattern(model, tokens, keep_patterns):
    model.blocks[0].attn.scale_on(scaled_set(), 3.0)
    _, cache = model.run_with_cache(tokens)
    size = cache[PATTERN].abs()
    shared = torch.rand(8, 8, generator=torch.Generator().manual_seed(5)) < 0.4
    own = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(6)) < 0.4
    seen = observe(model, tokens, metric_sets={0: [shared, own]}, keep_patterns=keep_patterns)
    record = seen.records[0]
    torch.testing.assert_close(record.row_mass, size.sum(-1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(record.set_mass[:, :, 0], (size * shared).sum(-1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(record.set_mass[:, :, 1], (size * own[:, None]).sum(-1), rtol=1e-5, atol=1e-6)
    assert (record.pattern is not None) == keep_patterns
    assert seen.records[1].set_mass.shape == (3, 2, 0, 8)


def long_model(attention, length=100):
    """With more positions than the map is built for."""
    tokens = torch.randint(0, 11, (2, length), generator=torch.Generator().manual_seed(1))
    return make_model(attention, n_ctx=length), tokens


def nothing_built(*_):
    raise AssertionError("a map was built")


# 300: nothing is scaled, and linear attention goes in chunks.
@pytest.mark.parametrize("attention", ["linear", "softmax"])
@pytest.mark.parametrize(("name", "length"), [(SCORES, 100), (PATTERN, 100), (PATTERN, 300)])
def test_a_long_sequence_builds_no_map_unless_it_is_looked_at(attention, name, length, monkeypatch):
    model, tokens = long_model(attention, length)
    if length == 100:
        model.blocks[0].attn.scale_on(torch.ones(100, 100).tril(-30).bool(), 2.0)
    with monkeypatch.context() as patch:
        patch.setattr(type(model.blocks[0].attn), "scores_to_pattern", nothing_built)
        fused = model(tokens)
        fused.square().sum().backward()
    of_fused = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    hooked = model.run_with_hooks(tokens, fwd_hooks=[(name, no_op)])
    torch.testing.assert_close(hooked, fused, rtol=0, atol=1e-6 * hooked.abs().max().item())
    hooked.square().sum().backward()
    of_hooked = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    largest = max(y.abs().max().item() for y in of_hooked)
    for x, y in zip(of_fused, of_hooked, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6 * largest)

    def double(activation, hook):
        return activation * 2

    edited = model.run_with_hooks(tokens, fwd_hooks=[(name, double)])
    assert (edited - fused).abs().max() > 1e-3


@pytest.mark.parametrize("attention", ["linear", "softmax"])
@pytest.mark.parametrize("length", [8, 100])
def test_masses_on_sets_by_structure(attention, length):
    model, tokens = long_model(attention)
    tokens = tokens[:, :length]
    sets = [mk.Offsets(1, 1), mk.First(1), mk.Codes(tokens, tokens)]
    fused = observe(model, tokens, metric_sets={0: sets}).records[0]
    seen = observe(model, tokens, metric_sets={0: sets}, keep_patterns=True).records[0]
    torch.testing.assert_close(fused.set_mass, seen.set_mass, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        seen.set_mass[:, :, 0, 1:], seen.pattern.diagonal(-1, 2, 3).abs(), rtol=1e-5, atol=1e-6
    )
