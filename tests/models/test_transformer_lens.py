"""Parity with TransformerLens's own components, and the check of its version."""

from __future__ import annotations

import copy

import pytest
import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig

from .conftest import plain_twin


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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_plain_model_with_the_cfg_of_linear_attention_is_refused(linear_model):
    """Which would run softmax on weights that were trained without it."""
    assert linear_model.cfg.attn_types == ["linear", "linear"]
    for cfg in (
        linear_model.cfg,
        copy.deepcopy(linear_model.cfg),
        HookedTransformerConfig.from_dict(dict(linear_model.cfg.to_dict())),
        dict(linear_model.cfg.to_dict()),
    ):
        with pytest.raises(ValueError, match="Invalid attention type: linear"):
            HookedTransformer(cfg)


def test_a_plain_softmax_model_does_not_take_linear_weights_strictly(linear_model, softmax_model):
    with pytest.raises(RuntimeError, match=r"Missing key.*attn\.mask"):
        plain_twin(softmax_model).load_state_dict(linear_model.state_dict())


@pytest.mark.parametrize("buffers", ["there", "absent", "of an older version"])
def test_the_softmax_model_loads_a_plain_ones_state_dict_strictly(softmax_model, tokens, buffers):
    state = plain_twin(softmax_model).state_dict()
    names = [name for name in state if name.rpartition(".")[2] in ("mask", "IGNORE")]
    assert len(names) == 4
    for name in names:
        if buffers == "absent":
            del state[name]
        elif name.endswith("mask") and buffers == "of an older version":
            state[name] = torch.ones(9, 9, dtype=torch.bool).tril()
    before = softmax_model(tokens)
    with torch.no_grad():
        for parameter in softmax_model.parameters():
            parameter.zero_()
    softmax_model.load_state_dict(state)
    assert torch.equal(softmax_model(tokens), before)
    softmax_model.load_and_process_state_dict(state, False, False, False, False)
    assert torch.equal(softmax_model(tokens), before)
