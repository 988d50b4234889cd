"""What people mistype or leave empty: an error of one line, never a number that means something else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mechplateau.circuits import (
    ablate_attention,
    ablate_heads,
    ablate_positions,
    attribute_logits,
    composition_scores,
    patch_parameters,
    patch_sweep,
    probe,
    run_edited,
    score,
)
from mechplateau.errors import UserError

from .conftest import make_model, plain_model
from .test_patching import hooks_left


def test_a_hook_named_twice_is_refused_and_not_counted_twice(tokens):
    with pytest.raises(UserError, match="hooks: expected a list of different names"):
        patch_sweep(make_model(), make_model(seed=1), tokens, hooks=["hook_embed", "hook_embed"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hooks": []}, "hooks: expected a list of different names, at least one, got \\[\\]"),
        ({"hooks": "hook_embed"}, "hooks: expected a list"),
        ({"positions": []}, "positions: expected different positions from 0 to 7"),
        ({"positions": [-1]}, "positions: expected"),
        ({"rows": [1.5]}, r"rows: expected .* got \[1\.5\]"),
        ({"rows": np.array([7, 8])}, "rows: expected"),
        ({"batch_size": 0}, "batch_size: expected at least 1"),
        ({"donor_tokens": torch.zeros(2, 9, dtype=torch.int64)}, r"expected \[3, 9\].*got \[2, 9\]"),
    ],
)
def test_sweeps(tokens, options, message):
    recipient, donor = make_model(), make_model(seed=1)
    with pytest.raises(UserError, match=message):
        patch_sweep(recipient, donor, tokens, progress=None, **options)
    assert not hooks_left(recipient)
    assert not hooks_left(donor)


@pytest.mark.parametrize("wrong", [[[0, 1], [1, 2]], np.zeros((2, 3), dtype=int), torch.zeros(2, 3)])
def test_tokens_of_another_kind(wrong):
    with pytest.raises(UserError, match="tokens: expected a tensor of integers, got"):
        ablate_heads(make_model(), wrong)


def test_nothing_to_ablate(tokens):
    model = make_model()
    with pytest.raises(UserError, match="heads: expected at least one pair"):
        ablate_heads(model, tokens, heads=[])
    for methods in ((), "zero"):
        with pytest.raises(UserError, match="methods: expected a list"):
            ablate_positions(model, tokens, methods=methods)
    everything = torch.ones(1, 8, 8, dtype=torch.bool)
    for entries, heads in (({0: everything}, []), ({0: everything.triu(1)}, None), ({}, None)):
        with pytest.raises(UserError, match="entries: nothing to ablate"):
            ablate_attention(model, tokens, entries, heads=heads)
    with pytest.raises(UserError, match=r"expected bool masks .* got torch\.float32"):
        ablate_attention(model, tokens, {0: everything.float()})
    both_ways = plain_model(attention_dir="bidirectional")
    assert len(ablate_attention(both_ways, tokens, {0: everything.triu(1)})) == 8


def test_edits_and_slots_that_are_no_such_thing(tokens):
    model = make_model()
    with pytest.raises(UserError, match="the edit returned NoneType"):
        run_edited(model, tokens[:, :-1], [("hook_embed", lambda activation: None)])
    assert not hooks_left(model)
    with pytest.raises(UserError, match="mine: expected pairs"):
        patch_parameters(model, make_model(seed=1), tokens, moved={"mine": ["embed.W_E"]})


def test_labels_may_be_arrays(tokens):
    table = probe(
        make_model(), tokens.repeat(10, 1), lambda tokens: tokens[:, :8].numpy() % 2, hook="hook_embed"
    )
    assert table["test_accuracy"].item() == 1.0


def test_a_model_that_diverged_has_no_made_up_numbers(tokens):
    broken = make_model()
    with torch.no_grad():
        broken.blocks[0].attn.W_V.fill_(torch.nan)
        assert np.isnan(score(broken(tokens[:, :-1]), tokens).accuracy).all()
    scores = composition_scores(broken)
    assert scores["score"].isna().all()
    assert scores["undefined"].str.contains("not finite").all()
    with pytest.raises(UserError, match="logits are not finite"):
        attribute_logits(broken, tokens)
    result = patch_sweep(make_model(), broken, tokens, hooks=["hook_embed"], progress=None)
    assert result.table["recovered_loss"].isna().all()


def test_capped_logits_are_no_sum(tokens):
    with pytest.raises(UserError, match="output_logits_soft_cap"):
        attribute_logits(plain_model(output_logits_soft_cap=5.0), tokens)
