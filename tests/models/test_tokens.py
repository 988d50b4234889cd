"""Tokens that a model cannot take are one line, from whatever runs it."""

from __future__ import annotations

import jaxtyping
import pytest
import torch

from mechplateau.errors import UserError
from mechplateau.models import generate, observe


@pytest.fixture(autouse=True)
def as_users_run_it():
    """Without the tests' own checks of shapes and types, which would come first."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


def test_sequences_longer_than_the_model_sees(model, tokens):
    wrong = tokens.repeat(1, 2)
    message = (
        rf": this model sees {model.cfg.n_ctx} positions \(n_ctx\), got sequences of {wrong.shape[1]} tokens"
    )
    with pytest.raises(UserError, match=f"tokens{message}"):
        observe(model, wrong)
    with pytest.raises(UserError, match=f"prompt{message}"):
        generate(model, wrong, 1)
    for run in (model, model.run_with_cache, lambda tokens: model.run_with_hooks(tokens, fwd_hooks=[])):
        with pytest.raises(UserError, match=f"tokens{message}"):
            run(wrong)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tokens: tokens.float(),
            r"integers, got torch\.float32; a model that reads real values has no tokens",
        ),
        (lambda tokens: tokens[0], r"expected \[batch, seq\] with at least 1 token each, got \[8\]"),
        (lambda tokens: tokens[:, :0], r"with at least 1 token each, got \[\d+, 0\]"),
        (
            lambda tokens: tokens.tolist(),
            r"expected a tensor of integers, got list; use torch\.tensor\(tokens\)",
        ),
    ],
)
def test_what_is_no_batch_of_tokens(model, tokens, change, message):
    for call in (observe, lambda model, wrong: generate(model, wrong, 1)):
        with pytest.raises(UserError, match=message):
            call(model, change(tokens))


def test_a_prompt_of_tokens_that_are_not_there(model, tokens):
    with pytest.raises(
        UserError, match=r"prompt: this model knows tokens 0 to .*; undefined, or another task's"
    ):
        generate(model, torch.full_like(tokens[:, :2], -1), 1)


def test_integers_of_any_width(model, tokens):
    narrow = tokens.to(torch.uint8)
    assert torch.equal(observe(model, narrow).logits, observe(model, tokens).logits)
    assert torch.equal(generate(model, narrow[:, :2], 2), generate(model, tokens[:, :2], 2))
