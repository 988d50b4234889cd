"""Chains on one of our transformers: whole, or a single head, with hooks of the caller's on it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mechplateau.development import Fresh, Sampling, llc, sample
from mechplateau.models import ModelConfig, build_model

VOCAB = 7


def by_entry(model, tokens):
    logits = model(tokens[:, :-1])
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")


def make(size, generator):
    return torch.randint(0, VOCAB, (size, 6), generator=generator)


@pytest.fixture(params=["linear", "softmax"])
def model(request):
    config = ModelConfig(attention=request.param, n_layers=1, n_heads=2, d_model=8)
    return build_model(config, vocab_size=VOCAB, n_ctx=5)


DATA = Fresh(make, batch_size=8, baseline_batches=2)


@pytest.mark.parametrize("stacked", [True, False])
def test_bits_do_not_depend_on_how_many_chains_run_at_once(model, stacked):
    settings = Sampling(step_size=1e-3, n_beta=20.0, chains=3, draws=4)
    together, alone = (
        sample(model, by_entry, DATA, settings, stacked=stacked, chains_at_once=at_once) for at_once in (3, 1)
    )
    np.testing.assert_array_equal(together.losses, alone.losses)
    np.testing.assert_array_equal(together.distances, alone.distances)


def test_a_heads_own_coefficient(model):
    fired = []
    model.add_hook("blocks.0.hook_resid_post", lambda value, hook: fired.append(hook.name))
    parts = [("blocks.0.attn.W_Q", 1), ("blocks.0.attn.W_O", 1)]
    settings = {"step_size": 1e-4, "n_beta": 50.0, "chains": 2, "draws": 4}
    found = llc(model, by_entry, DATA, **settings, parts=parts, trivial_loss=math.log(VOCAB))
    assert math.isfinite(found.llc)
    assert found.stability > 0  # curvature along the head's weights alone, through second derivatives
    assert set(fired) == {"blocks.0.hook_resid_post"}
    assert len(model.hook_dict["blocks.0.hook_resid_post"].fwd_hooks) == 1
    moved = sample(model, by_entry, DATA, Sampling(**settings), parts=parts, keep_state=True)
    assert moved.parameters == 2 * 8 * 4
    start = dict(model.named_parameters())["blocks.0.attn.W_Q"].detach()
    assert torch.equal(moved.state.weights[0][0, 0], start[0])
    assert not torch.equal(moved.state.weights[0][0, 1], start[1])
