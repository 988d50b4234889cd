"""What people mistype or leave empty: an error of one line, never a number that means something else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mechplateau.circuits import (
    Patch,
    ablate_attention,
    ablate_heads,
    ablate_positions,
    activations,
    attribute_logits,
    composition_scores,
    patch_parameters,
    patch_sweep,
    probe,
    qk_circuit,
    run_edited,
    run_patched,
    score,
    target_entries,
)
from mechplateau.errors import UserError
from mechplateau.tasks import MovingWindowSum

from .conftest import make_model, plain_model
from .test_patching import hooks_left

ALL = {0: torch.ones(1, 8, 8, dtype=torch.bool)}


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


TWO_EDITS = [("hook_embed", torch.zeros_like, 3)]
ODD = {
    "heads as one number each": (
        lambda m, t: ablate_heads(m, t, heads=[0]),
        r"heads: expected pairs .* got \[0\]",
    ),
    "half a head": (lambda m, t: ablate_heads(m, t, heads=[(0, 0.5)]), "heads: expected pairs"),
    "heads by name": (lambda m, t: ablate_attention(m, t, ALL, heads="x"), "heads: expected heads, got 'x'"),
    "masks in a list": (
        lambda m, t: ablate_attention(m, t, [ALL[0]]),
        "entries: expected layer → bool tensor, got",
    ),
    "masks of numpy": (lambda m, t: ablate_attention(m, t, {0: ALL[0].numpy()}), "entries: expected layer"),
    "half a permutation": (
        lambda m, t: ablate_positions(m, t, permutations=1.5),
        "permutations: expected a whole",
    ),
    "a seed in words": (
        lambda m, t: ablate_heads(m, t, method="resample", seed="a"),
        "seed: expected a whole number",
    ),
    "an edit of three": (lambda m, t: run_edited(m, t, TWO_EDITS), "edits: expected pairs"),
    "an edit that is no function": (
        lambda m, t: run_edited(m, t, [("hook_embed", 3)]),
        "edits: expected pairs",
    ),
    "a patch of two": (
        lambda m, t: run_patched(m, t, [("hook_embed", t)]),
        "patches: expected a list of Patch",
    ),
    "a hook's letters": (lambda m, t: activations(m, t, "hook_embed"), "hooks: expected a list of names"),
    "half a head's circuit": (lambda m, t: qk_circuit(m, 0.5), "head: expected a whole number, got 0.5"),
    "half a position": (lambda m, t: qk_circuit(m, query_position=1.5), "position: expected a whole number"),
    "an option misspelled": (
        lambda m, t: probe(m, t, "input", hook="hook_embed", max_iters=3),
        "max_iters: no option of probe",
    ),
    "labels of nothing": (
        lambda m, t: probe(m, t, lambda tokens: None, hook="hook_embed"),
        "label: expected <lambda> to return integers, got NoneType",
    ),
    "weights in a list": (
        lambda m, t: patch_parameters(m, make_model(seed=1), t, moved=["embed.W_E"]),
        "moved: expected label",
    ),
    "half a head's weights": (
        lambda m, t: patch_parameters(m, make_model(seed=1), t, moved={"x": [("embed.W_E", 0.5)]}),
        "x: head: expected a whole number",
    ),
    "half a batch": (
        lambda m, t: patch_sweep(m, make_model(seed=1), t, batch_size=1.5),
        "batch_size: expected a whole",
    ),
    "no hook": (
        lambda m, t: patch_sweep(m, make_model(seed=1), t, hooks=[None]),
        "hooks: expected a list of",
    ),
    "a number that hears": (
        lambda m, t: patch_sweep(m, make_model(seed=1), t, progress=3),
        "progress: expected",
    ),
}


@pytest.mark.parametrize("what", ODD)
def test_what_is_none_of_its_kind_is_one_line(tokens, what):
    call, message = ODD[what]
    model = make_model()
    with pytest.raises(UserError, match=message) as caught:
        call(model, tokens)
    assert "\n" not in str(caught.value)
    assert not hooks_left(model)


@pytest.mark.parametrize("positions", [(), (1.5,), 1, (1, 1)])
def test_a_patch_acts_at_positions_or_is_refused(tokens, positions):
    """None at all did nothing, and 1.5 was taken for 1."""
    patch = Patch("hook_embed", torch.zeros(3, 8, 16), positions=positions)
    with pytest.raises(UserError, match="hook_embed: positions: expected different positions"):
        run_patched(make_model(), tokens[:, :-1], [patch])


def longer(tokens):
    return tokens.repeat(1, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tokens: tokens - 1,
            r"this model knows tokens 0 to 10, got -1 to \d+; undefined, or another task's\?",
        ),
        (lambda tokens: tokens + 11, "this model knows tokens 0 to 10, got 11 to"),
        (longer, r"this model sees 9 positions \(n_ctx\), got sequences of 18 tokens"),
        (lambda tokens: tokens.bool(), r"expected a tensor of integers, got torch\.bool"),
        (lambda tokens: tokens[:0], r"expected \[batch, seq\] .* got \[0, 9\]"),
    ],
)
@pytest.mark.parametrize("make", [make_model, plain_model])
def test_tokens_that_a_model_cannot_take(tokens, make, change, message):
    """TransformerLens's own models take −1 for the last token of their vocabulary."""
    model, wrong = make(), change(tokens)
    for call in (
        lambda: run_edited(model, wrong, []),
        lambda: activations(model, wrong, ["hook_embed"]),
        lambda: ablate_heads(model, wrong),
    ):
        with pytest.raises(UserError, match=message):
            call()


def test_integers_of_any_width_are_the_same_tokens(tokens):
    model = make_model()
    expected = ablate_heads(model, tokens)
    narrow = tokens.to(torch.uint8)
    assert ablate_heads(model, narrow).equals(expected)
    assert np.array_equal(attribute_logits(model, narrow).total, attribute_logits(model, tokens).total)
    assert score(model(tokens[:, :-1]), narrow).mean() == score(model(tokens[:, :-1]), tokens).mean()


def test_scored_tokens_have_a_logit(tokens):
    logits = make_model()(tokens[:, :-1])
    with pytest.raises(UserError, match="undefined, or another task's"):
        score(logits, tokens - 1)


def test_a_task_and_tokens_of_another(tokens):
    """A shorter task's Ω was laid over the beginning of longer sequences."""
    task = MovingWindowSum(n=3, p=10, max_num=9)
    with pytest.raises(UserError, match="sequences of mws have 7 tokens, got 9; another task's"):
        target_entries(task, tokens, 1)
    many = tokens.repeat(10, 1)
    with pytest.raises(UserError, match="sequences of mws have 7 tokens, got 9; another task's"):
        probe(make_model(), many, "window_sum", hook="hook_embed", task=task)


class WithoutTargets(MovingWindowSum):
    def attention_targets(self, tokens):
        return ()


def test_sums_over_an_attention_target_that_a_task_does_not_state(tokens):
    with pytest.raises(UserError, match="window_sum is the sum over a task's Ω; mws states none"):
        probe(
            make_model(),
            tokens,
            "window_sum",
            hook="hook_embed",
            task=WithoutTargets(n=4, p=10, max_num=9),
        )


@pytest.mark.parametrize("steps", [{}, {"fold_ln": False}])
def test_raw_and_processed_weights_do_not_mix(tokens, steps):
    """Logits are the same up to a shift, but no activation means the same."""
    raw, processed = make_model(), make_model(seed=1)
    processed.process_weights_(**steps)
    for tool in (patch_sweep, patch_parameters):
        with pytest.raises(UserError, match=r"process both or neither|same shapes only"):
            tool(raw, processed, tokens)
    other = make_model()
    other.process_weights_(**steps)
    assert (
        patch_sweep(other, processed, tokens, hooks=["hook_embed"], progress=None).table["loss"].notna().all()
    )


def test_labels_may_be_arrays(tokens):
    many = torch.cat([(tokens + shift) % 11 for shift in range(10)])
    table = probe(make_model(), many, lambda tokens: tokens[:, :8].numpy() % 2, hook="hook_embed")
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
