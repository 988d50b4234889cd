"""The model: initialization, strict loading, and which weight processing is allowed."""

from __future__ import annotations

import math

import pytest
import torch

from mechplateau.errors import CheckpointError, UserError
from mechplateau.models import ModelConfig, build_model
from mechplateau.models.transformer import load_weights, parameters_of


def test_initialization_is_the_papers():
    config = ModelConfig(n_layers=2, n_heads=2, d_model=128)
    weights = parameters_of(build_model(config, vocab_size=40, n_ctx=33))
    for name, tensor in weights.items():
        kind = name.rpartition(".")[2]
        if kind.startswith("b"):
            assert (tensor == 0).all(), name
        elif kind == "w":
            assert (tensor == 1).all(), name
        else:
            std = 0.02 / math.sqrt(4) if kind in ("W_O", "W_out") else 0.02
            # 6 standard errors of a standard deviation estimated from n values.
            assert abs(tensor.std() / std - 1) < 6 / math.sqrt(2 * tensor.numel()), name
            assert abs(tensor.mean()) < 6 * std / math.sqrt(tensor.numel()), name


def test_init_scale_multiplies_weights_only():
    small = parameters_of(build_model(ModelConfig(d_model=16), vocab_size=5, n_ctx=4))
    large = parameters_of(build_model(ModelConfig(d_model=16, init_scale=10), vocab_size=5, n_ctx=4))
    for name in small:
        expected = small[name] * (10 if ".W_" in name else 1)
        torch.testing.assert_close(large[name], expected)


def test_a_seed_gives_the_same_weights_and_the_global_generator_is_not_read():
    config = ModelConfig(d_model=16)
    state = torch.get_rng_state()
    models = [
        build_model(config, vocab_size=5, n_ctx=4, generator=torch.Generator().manual_seed(seed))
        for seed in (3, 3, 4)
    ]
    assert torch.equal(torch.get_rng_state(), state)
    same, again, other = (m.W_E for m in models)
    assert torch.equal(same, again)
    assert not torch.equal(same, other)


def test_sizes_follow_the_configuration():
    config = ModelConfig(n_layers=3, n_heads=4, d_model=24, d_head=5, d_mlp=7)
    model = build_model(config, vocab_size=9, n_ctx=6)
    assert model.W_Q.shape == (3, 4, 24, 5)
    assert model.W_O.shape == (3, 4, 5, 24)
    assert model.W_in.shape == (3, 24, 7)
    assert model.W_pos.shape == (6, 24)
    assert model(torch.zeros(2, 6, dtype=torch.long)).shape == (2, 6, 9)
    assert not model.unembed.b_U.requires_grad


def test_loading_is_strict_and_leaves_the_model_alone_on_failure(linear_model):
    weights = {name: tensor.clone() for name, tensor in parameters_of(linear_model).items()}
    before = {name: tensor.clone() for name, tensor in weights.items()}
    renamed = {**weights, "blocks.0.attn.W_q": weights["blocks.0.attn.W_Q"]}
    del renamed["blocks.0.attn.W_Q"]
    misshapen = {**weights, "unembed.W_U": weights["unembed.W_U"].T}
    changed = {name: tensor + 1 for name, tensor in weights.items()}
    with pytest.raises(CheckpointError, match=r"missing blocks\.0\.attn\.W_Q; unknown blocks\.0\.attn\.W_q"):
        load_weights(linear_model, renamed, "file")
    with pytest.raises(CheckpointError, match=r"unembed\.W_U has shape \[11, 16\], expected \[16, 11\]"):
        load_weights(linear_model, misshapen, "file")
    with pytest.raises(CheckpointError, match=r"missing ln_final\.b"):
        load_weights(linear_model, {n: t for n, t in changed.items() if n != "ln_final.b"}, "file")
    for name, tensor in parameters_of(linear_model).items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("step", ["fold_value_biases", "refactor_factored_attn_matrices"])
def test_processing_that_assumes_softmax_is_refused_on_linear_attention(linear_model, tokens, step):
    before = linear_model(tokens)
    with pytest.raises(UserError, match=f"{step} assumes that attention rows sum to 1"):
        linear_model.load_and_process_state_dict(linear_model.state_dict(), **{step: True})
    with pytest.raises(UserError, match=step):
        getattr(linear_model, step)(linear_model.state_dict())
    assert torch.equal(linear_model(tokens), before)


@pytest.mark.parametrize(
    "steps",
    [
        {"fold_ln": True, "center_writing_weights": False, "center_unembed": False},
        {"fold_ln": False, "center_writing_weights": True, "center_unembed": False},
        {"fold_ln": False, "center_writing_weights": False, "center_unembed": True},
        {},
    ],
)
def test_exact_processing_keeps_log_probabilities(model, tokens, steps):
    before = model(tokens).log_softmax(-1)
    model.process_weights_(**steps)
    after = model(tokens).log_softmax(-1)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-5)
    assert model.weights_processed


@pytest.mark.parametrize("attention", ["linear", "softmax"])
@pytest.mark.parametrize("sizes", [{"vocab_size": 16}, {"d_mlp": 16}, {"vocab_size": 16, "d_mlp": 16}])
def test_processing_is_exact_where_widths_coincide(attention, sizes, tokens):
    """Where d_vocab or d_mlp equals d_model, a weight's shape does not tell its orientation."""
    config = ModelConfig(attention=attention, n_layers=2, n_heads=2, d_model=16, d_mlp=sizes.get("d_mlp"))
    model = build_model(config, vocab_size=sizes.get("vocab_size", 11), n_ctx=9)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    before = model(tokens).log_softmax(-1)
    for _ in range(2):
        model.process_weights_()
        torch.testing.assert_close(model(tokens).log_softmax(-1), before, rtol=0, atol=1e-5)


def test_a_models_own_weights_load_back(linear_model, tokens):
    before = linear_model(tokens)
    weights = parameters_of(linear_model)
    assert set(linear_model.state_dict()) == set(weights)
    linear_model.load_and_process_state_dict(dict(weights), False, False, False)
    assert torch.equal(linear_model(tokens), before)
    assert not linear_model.weights_processed


def test_another_dtype_is_named(linear_model):
    weights = {**parameters_of(linear_model), "ln_final.w": torch.ones(16, dtype=torch.float16)}
    with pytest.raises(CheckpointError, match=r"ln_final\.w is float16, expected float32"):
        load_weights(linear_model, weights, "file")


def test_processing_a_misnamed_state_dict_is_an_error(linear_model):
    state = linear_model.state_dict()
    state["blocks.0.attn.W_Q_"] = state.pop("blocks.0.attn.W_Q")
    with pytest.raises(CheckpointError, match=r"missing blocks\.0\.attn\.W_Q;"):
        linear_model.load_and_process_state_dict(state)


def test_a_tensor_whose_name_only_ends_like_a_buffer_is_unknown(softmax_model):
    state = {**softmax_model.state_dict(), "blocks.0.mlp.mask": torch.zeros(1)}
    with pytest.raises(CheckpointError, match=r"unknown blocks\.0\.mlp\.mask"):
        softmax_model.load_and_process_state_dict(state)


def logit_attributions(model, tokens):
    """By TransformerLens: each component's part of the right tokens' logits at the last position, and the logits."""
    logits, cache = model.run_with_cache(tokens)
    stack = cache.decompose_resid(mode="all")[:, :, -1:]
    right = tokens[:, -1:]
    parts = cache.logit_attrs(stack, right, pos_slice=slice(-1, None))
    return parts, logits[:, -1:].gather(-1, right[..., None])[..., 0]


def test_transformer_lens_attribution_on_raw_weights_warns_once(model, tokens):
    with pytest.warns(UserWarning, match=r"leaves the last LayerNorm's gain and bias out.*process_weights_"):
        parts, logits = logit_attributions(model, tokens)
    assert (parts.sum(0) - logits).abs().max() > 0.1  # what the warning is about
    again, _ = logit_attributions(model, tokens)  # warnings are errors here: it does not warn again
    assert torch.equal(again, parts)


def test_transformer_lens_attribution_on_processed_weights_is_exact(model, tokens):
    model.process_weights_()
    parts, logits = logit_attributions(model, tokens)
    right = tokens[:, -1:]
    torch.testing.assert_close(parts.sum(0) + model.b_U[right], logits, rtol=0, atol=1e-5)


def test_a_fresh_model_has_no_final_gain_to_leave_out(tokens):
    logit_attributions(build_model(ModelConfig(d_model=16), vocab_size=11, n_ctx=9), tokens)
