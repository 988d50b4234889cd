"""Parity with TransformerLens's own components, and the check of its version."""

from __future__ import annotations

import warnings

import pytest
import torch
from transformer_lens import HookedTransformer

from mechplateau.errors import UserError
from mechplateau.models import lens


def plain_twin(model):
    """TransformerLens's own, unmodified HookedTransformer with the same configuration and weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        twin = HookedTransformer(model.cfg)
    missing, unexpected = twin.load_state_dict(model.state_dict(), strict=False)
    assert unexpected == []
    assert {name.rpartition(".")[2] for name in missing} == {"mask", "IGNORE"}
    return twin


def test_the_softmax_model_is_transformer_lens_own(softmax_model, tokens):
    twin = plain_twin(softmax_model)
    torch.testing.assert_close(softmax_model(tokens), twin(tokens), rtol=0, atol=1e-6)


def test_gradients_of_the_softmax_model_are_transformer_lens_own(softmax_model, tokens):
    twin = plain_twin(softmax_model)
    for model in (softmax_model, twin):
        model(tokens, return_type="loss").backward()
    theirs = dict(twin.named_parameters())
    for name, parameter in softmax_model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-4, atol=1e-6)


def test_full_processing_keeps_log_probabilities_of_the_softmax_model(softmax_model, tokens):
    before = softmax_model(tokens).log_softmax(-1)
    softmax_model.process_weights_(refactor_factored_attn_matrices=True)
    torch.testing.assert_close(softmax_model(tokens).log_softmax(-1), before, rtol=0, atol=1e-5)
    assert (softmax_model.b_V == 0).all()  # value biases were folded, as TransformerLens does


def test_linear_attention_is_not_softmax_attention(linear_model, tokens):
    assert (plain_twin(linear_model)(tokens) - linear_model(tokens)).abs().max() > 1e-2


@pytest.mark.parametrize("version", ["4.0.0", "4.1.0rc1", "2.16.1", "3.8.2"])
def test_another_transformer_lens_is_one_clear_message(monkeypatch, version):
    monkeypatch.setattr(lens.metadata, "version", lambda name: version)
    with pytest.raises(
        UserError, match=rf"needs transformer-lens>=3\.9,<4 .*{version} is installed; run: pip install"
    ):
        lens.check_transformer_lens()


@pytest.mark.parametrize("version", ["3.9.0", "3.10.2"])
def test_the_supported_line_passes(monkeypatch, version):
    monkeypatch.setattr(lens.metadata, "version", lambda name: version)
    lens.check_transformer_lens()
