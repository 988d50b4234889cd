"""A thing compared with itself is refused or said; what only looks the same is let through."""

from __future__ import annotations

import warnings

import jaxtyping
import pytest
import torch

from mechplateau.circuits import (
    Patch,
    ablate_attention,
    ablate_heads,
    ablate_positions,
    activations,
    patch_parameters,
    patch_sweep,
    run_patched,
)
from mechplateau.errors import UserError
from mechplateau.tasks import MovingWindowSum

from .conftest import make_model

HOOKS = ["hook_embed"]


def sweep(recipient, donor, tokens, **options):
    return patch_sweep(recipient, donor, tokens, hooks=HOOKS, progress=None, **options)


def test_clean_and_corrupted_sequences_of_a_task_make_a_difference():
    """What the documentation's example does, with neither seed nor generator."""
    task = MovingWindowSum(n=4, p=10, max_num=9)
    model = make_model(n_ctx=task.n_ctx)
    clean, corrupted = task.sample(8), task.sample(8)
    result = sweep(model, model, corrupted, donor_tokens=clean)
    assert (result.table["loss"] != result.recipient["loss"]).any()


@pytest.mark.parametrize("given", [lambda tokens: None, torch.clone, lambda tokens: tokens.int()])
def test_one_model_that_sees_the_same_tokens_is_refused(tokens, given):
    model = make_model()
    with pytest.raises(UserError, match=r"one model that sees the same tokens .* or say identity=True"):
        sweep(model, model, tokens, donor_tokens=given(tokens))
    result = sweep(model, model, tokens, donor_tokens=given(tokens), identity=True)
    # The donor is looked at and the recipient is not: both ways agree to rounding.
    assert result.recipient == pytest.approx(result.donor, rel=1e-6)


def test_the_last_token_is_seen_by_no_model_and_one_other_sequence_is_enough(tokens):
    model = make_model()
    last = tokens.clone()
    last[:, -1] = (last[:, -1] + 1) % 11
    with pytest.raises(UserError, match="all but the last"):
        sweep(model, model, tokens, donor_tokens=last)
    one = tokens.clone()
    one[0, 3] = (one[0, 3] + 1) % 11
    assert (
        sweep(model, model, tokens, donor_tokens=one).donor != sweep(model, make_model(seed=1), tokens).donor
    )


def test_the_same_checkpoint_twice_is_said(tokens):
    recipient, donor = make_model(), make_model()
    with pytest.warns(UserWarning, match="recipient and donor have equal weights") as heard:
        result = sweep(recipient, donor, tokens)
    assert heard[0].filename == __file__
    assert result.table["recovered_loss"].isna().all()
    with pytest.warns(UserWarning, match="equal weights, so that moving them changes nothing"):
        table = patch_parameters(recipient, donor, tokens)
    assert table["recovered_loss"].isna().all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sweep(recipient, donor, tokens, identity=True)
        patch_parameters(recipient, donor, tokens, identity=True)
        # Equal weights under an intervention are another model.
        donor.blocks[0].attn.scale_on(torch.ones(9, 9, dtype=torch.bool), 3.0)
        assert sweep(recipient, donor, tokens).donor != result.donor


def test_a_compiled_model_is_the_model_inside(tokens, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # torch.compile cannot trace its checks
    model = make_model()
    compiled = torch.compile(model, backend="eager")
    with pytest.raises(UserError, match="one model that sees the same tokens"):
        sweep(compiled, model, tokens)
    with pytest.raises(UserError, match="one model, so that moving weights changes nothing"):
        patch_parameters(model, compiled, tokens)
    with pytest.warns(UserWarning, match="equal weights, so that moving them changes nothing"):
        patch_parameters(make_model(), compiled, tokens)


def test_a_models_weights_are_not_moved_into_itself(tokens):
    model = make_model()
    with pytest.raises(UserError, match="one model, so that moving weights changes nothing"):
        patch_parameters(model, model, tokens)
    assert patch_parameters(model, model, tokens, identity=True)["loss"].nunique() == 1
    for nothing in ({}, {"mine": []}):
        with pytest.raises(UserError, match="moved: expected at least one label, and weights for each"):
            patch_parameters(model, make_model(seed=1), tokens, moved=nothing)


def test_a_single_patch_of_a_models_own_is_never_refused(tokens):
    model, inputs = make_model(), tokens[:, :-1]
    own = activations(model, inputs, HOOKS)
    patched = run_patched(model, inputs, [Patch("hook_embed", own["hook_embed"])])
    assert torch.equal(patched, model(inputs))


@pytest.mark.parametrize("method", ["mean", "resample"])
def test_what_stands_in_for_an_activation_must_differ_from_it(tokens, method):
    """The mean over one sequence is that sequence's own, and so is another sequence's that is equal."""
    model = make_model()
    everything = {0: torch.ones(1, 8, 8, dtype=torch.bool)}
    for same in (tokens[:1], tokens[:1].repeat(4, 1)):
        with pytest.raises(UserError, match=f"{method}: expected at least 2 different sequences"):
            ablate_heads(model, same, method=method)
        with pytest.raises(UserError, match=f"{method}: expected at least 2 different sequences"):
            ablate_attention(model, same, everything, method=method)
    assert len(ablate_heads(model, tokens[:1], method="zero")) == 4 * 8


@pytest.mark.parametrize("method", ["mean", "permuted"])
def test_one_position_has_no_other_to_take_its_embedding_from(tokens, method):
    with pytest.raises(UserError, match=f"{method}: expected sequences of at least 3 tokens"):
        ablate_positions(make_model(), tokens[:, :2], methods=[method])
    assert len(ablate_positions(make_model(), tokens[:, :2], methods=["zero"])) == 1
