"""Observation leaves no trace; cached generation equals the full forward."""

from __future__ import annotations

import pytest
import torch

from mechplateau.errors import UserError
from mechplateau.models import generate, generation, locations, observe
from mechplateau.models.generation import _Cache

from .conftest import make_model


def full_forward_generation(model, prompt, n_outputs):
    tokens = prompt
    for _ in range(n_outputs):
        tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], dim=1)
    return tokens[:, prompt.shape[1] :]


def test_cached_generation_equals_full_forwards(model, tokens):
    prompt = tokens[:, :4]
    assert torch.equal(generate(model, prompt, 5), full_forward_generation(model, prompt, 5))


def test_generation_from_a_teacher_forced_forward_is_that_of_the_prompt(model, tokens):
    seen = observe(model, tokens)
    assert torch.equal(model.generate_on(seen, 4, 5), generate(model, tokens[:, :4], 5))


def test_the_factor_on_attention_acts_in_cached_generation(model, tokens):
    entries = torch.ones(9, 9, dtype=torch.bool).tril()
    plain = full_forward_generation(model, tokens[:, :4], 5)
    model.blocks[0].attn.scale_on(entries, -4.0)
    scaled = full_forward_generation(model, tokens[:, :4], 5)
    assert torch.equal(generate(model, tokens[:, :4], 5), scaled)
    assert not torch.equal(plain, scaled)


def test_hooks_act_in_cached_generation(model, tokens):
    def other_token(logits, hook):
        return logits.roll(1, dims=-1)

    plain = generate(model, tokens[:, :4], 5)
    with model.hooks(fwd_hooks=[("unembed.hook_out", other_token)]):
        rolled = generate(model, tokens[:, :4], 5)
        expected = full_forward_generation(model, tokens[:, :4], 5)
    assert torch.equal(rolled, expected)
    assert torch.equal(rolled[:, 0], (plain[:, 0] + 1) % 11)


def test_hidden_states_are_those_of_the_hooks(model, tokens):
    _, cache = model.run_with_cache(tokens)
    seen = observe(model, tokens, at=locations(2))
    torch.testing.assert_close(seen.logits, model(tokens))
    torch.testing.assert_close(seen.hidden["final"], cache["unembed.hook_in"], rtol=1e-6, atol=2e-6)
    assert not torch.allclose(seen.hidden["final"], cache["ln_final.hook_normalized"])
    for layer in (0, 1):
        for place in ("resid_pre", "attn_out", "resid_mid", "resid_post"):
            torch.testing.assert_close(
                seen.hidden[f"L{layer}_{place}"], cache[f"blocks.{layer}.hook_{place}"], rtol=1e-6, atol=2e-6
            )


def test_observation_leaves_no_hook_behind_even_after_an_exception(model, tokens):
    calls = []
    model.add_hook("blocks.0.hook_resid_pre", lambda activation, hook: calls.append(1))
    observe(model, tokens)
    assert len(calls) == 1

    def fail(activation, hook):
        raise RuntimeError("broken hook")

    with (
        pytest.raises(RuntimeError, match="broken hook"),
        model.hooks(fwd_hooks=[("blocks.1.hook_resid_mid", fail)]),
    ):
        observe(model, tokens)
    assert all(block.attn.record is None for block in model.blocks)
    assert not model.unembed.hook_in.fwd_hooks
    assert len(model.blocks[0].hook_resid_pre.fwd_hooks) == 1  # the user's own stays


def test_unknown_location_is_named(model, tokens):
    with pytest.raises(UserError, match="unknown location 'middle'"):
        observe(model, tokens, at=["middle"])


def test_undefined_tokens_are_minus_one(model, tokens):
    def break_one(logits, hook):
        logits = logits.clone()
        logits[1, -1] = float("nan")
        return logits

    plain = generate(model, tokens[:, :4], 3)
    with model.hooks(fwd_hooks=[("unembed.hook_out", break_one)]):
        broken = generate(model, tokens[:, :4], 3)
    assert (broken[1] == -1).all()
    assert torch.equal(broken[0], plain[0])


def test_what_follows_an_undefined_token_is_undefined(model, tokens):
    """The second token of one sequence has no finite logits; the third would be made from an arbitrary one."""
    calls = []

    def break_second(logits, hook):
        calls.append(logits.shape[1])
        if len(calls) != 2:
            return logits
        logits = logits.clone()
        logits[1, -1] = float("inf")
        return logits

    plain = generate(model, tokens[:, :4], 3)
    with model.hooks(fwd_hooks=[("unembed.hook_out", break_second)]):
        broken = generate(model, tokens[:, :4], 3)
    assert len(calls) == 3
    assert broken[1].tolist() == [plain[1, 0].item(), -1, -1]
    assert torch.equal(broken[0], plain[0])


@pytest.mark.parametrize("n_outputs", [0, -1, 7])
def test_a_number_of_outputs_that_cannot_be_is_named(model, tokens, n_outputs):
    with pytest.raises(UserError, match=r"^n_outputs: "):
        generate(model, tokens[:, :4], n_outputs)
    assert generate(model, tokens[:, :4], 6).shape == (3, 6)


@pytest.mark.parametrize("steps", [{}, {"fold_ln": False}])
def test_folded_or_centered_weights_are_refused(linear_model, tokens, steps):
    linear_model.process_weights_(**steps)
    with pytest.raises(UserError, match="folded"):
        observe(linear_model, tokens)


@pytest.mark.parametrize("n_heads", [1, 2, 4])
def test_a_token_of_several_heads_copies_no_cache(n_heads, tokens):
    """What attention multiplies at a token must be views of the cache, whatever the number of heads."""
    keys, values = torch.randn(2, 3, 6, n_heads, 4)
    cache = _Cache(keys, values, 5, 3)
    for _ in range(2):
        k, v = cache.append(torch.randn(3, 1, n_heads, 4), torch.randn(3, 1, n_heads, 4))
    assert torch.equal(k[:, :5], keys[:, :5])
    for multiplied in (k.permute(0, 2, 3, 1), v.transpose(1, 2)):
        # As matmul makes one batch of batch and heads; `view` refuses to copy.
        multiplied.view(3 * n_heads, *multiplied.shape[2:])
    assert k.data_ptr() == cache.past_keys.data_ptr()


@pytest.fixture
def long_model():
    """With four times as many positions as a head is wide: keys and values are summed."""
    model = make_model("linear", n_heads=2, d_model=16, n_ctx=40)
    with torch.no_grad():  # no closely tied logits
        model.unembed.W_U.mul_(5)
    return model


@pytest.fixture
def summing(monkeypatch):
    """Positions join by three; every sum that was asked for, and whether it was given."""
    given = []
    linear = _Cache.linear

    def noting(self, query):
        z = linear(self, query)
        given.append(z is not None)
        return z

    monkeypatch.setattr(_Cache, "linear", noting)
    monkeypatch.setattr(generation, "_JOIN", 3)
    return given


def test_long_generation_by_sums_equals_full_forwards(long_model, tokens, summing):
    made = generate(long_model, tokens[:, :4], 30)
    # From the eighth position on, of each layer.
    assert summing == [False] * 2 * 3 + [True] * 2 * 26
    assert torch.equal(made, full_forward_generation(long_model, tokens[:, :4], 30))


def test_sums_are_those_of_the_keys_and_values(monkeypatch):
    monkeypatch.setattr(generation, "_JOIN", 3)
    generator = torch.Generator().manual_seed(0)
    keys, values, queries = torch.randn(3, 2, 30, 2, 4, generator=generator)
    cache = _Cache(keys, values, 5, 25)
    for position in range(5, 30):
        now = slice(position, position + 1)
        cache.append(keys[:, now], values[:, now])
        weights = torch.einsum("bhd,bjhd->bhj", queries[:, position], keys[:, : position + 1])
        expected = torch.einsum("bhj,bjhd->bhd", weights, values[:, : position + 1])
        torch.testing.assert_close(cache.linear(queries[:, now])[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_sums_of_half_precision_are_kept_in_float32():
    generator = torch.Generator().manual_seed(0)
    keys, values, query = (torch.randn(4, n, 2, 8, generator=generator).bfloat16() for n in (512, 512, 1))
    keys, values = keys + 0.5, values + 0.5
    cache = _Cache(keys, values, 8, 504)
    for position in range(8, 512):
        cache.append(keys[:, position : position + 1], values[:, position : position + 1])
        z = cache.linear(query)
    every = (tensor.double() for tensor in (query, keys, values))
    exact = torch.einsum("bqhd,bkhd,bkhe->bqhe", *every)
    plain = torch.einsum("bqhd,bkhd,bkhe->bqhe", query, keys, values)
    assert (z - exact).norm() < 2 * (plain - exact).norm()


def test_whoever_asks_for_the_map_gets_it_in_long_generation_too(long_model, tokens, summing):
    prompt = tokens[:, :4]
    shapes = []
    hooks = [
        ("blocks.0.attn.hook_pattern", lambda pattern, hook: shapes.append(pattern.shape[-1]) or pattern * 2)
    ]
    with long_model.hooks(fwd_hooks=hooks):
        made = generate(long_model, prompt, 30)
        assert shapes == list(range(4, 34))
        assert torch.equal(made, full_forward_generation(long_model, prompt, 30))
    entries = torch.ones(40, 40, dtype=torch.bool).tril()
    long_model.blocks[1].attn.scale_on(entries, -2.0)
    made = generate(long_model, prompt, 30)
    assert torch.equal(made, full_forward_generation(long_model, prompt, 30))
    summing.clear()
    long_model.blocks[0].attn.scale_on(entries, 3.0)
    generate(long_model, prompt, 30)
    assert not summing
