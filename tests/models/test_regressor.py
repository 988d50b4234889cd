"""The regression model: the authors' initial weights, TransformerLens's names, and a short way that is exact."""

import pytest
import torch
from torch import nn

from mechplateau.errors import UserError
from mechplateau.models.regressor import build_regressor
from mechplateau.models.regressor_config import RegressorConfig

FINGERPRINTS = (
    (0, 24.909, 0.11195),
    (1, 24.931, 0.13411),
    (2, 24.898, 0.11880),
    (3, 24.974, 0.12611),
    (4, 24.944, 0.13814),
)
"""Seed, norm of all weights and smallest share of the embedding, of the models that the authors released."""


def released(seed: int):
    return build_regressor(
        RegressorConfig(), d_token=5, n_pairs=8, generator=torch.Generator().manual_seed(seed)
    )


@pytest.fixture(scope="module")
def model():
    return released(1)


def small(**sizes):
    settings = {"n_layers": 2, "n_heads": 2, "d_model": 8, "d_mlp": 12, **sizes}
    return build_regressor(RegressorConfig(**settings), d_token=3, n_pairs=3)


def contexts(n: int = 4, pairs: int = 3, d: int = 2, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.zeros(n, 2 * pairs, d + 1)
    tokens[:, ::2, 1:] = torch.randn(n, pairs, d, generator=generator)
    tokens[:, 1::2, 0] = torch.randn(n, pairs, generator=generator)
    return tokens


@pytest.mark.parametrize(("seed", "norm", "share"), FINGERPRINTS)
def test_initial_weights_are_those_of_the_released_models(seed, norm, share):
    model = released(seed)
    with torch.no_grad():
        squares = torch.linalg.svdvals(model.embed.W_E).square()
        total = torch.stack([parameter.square().sum() for parameter in model.parameters()]).sum().sqrt()
    assert float(total) == pytest.approx(norm, abs=5e-4)
    assert float(squares.min() / squares.sum()) == pytest.approx(share, abs=5e-6)


def test_heads_are_grouped_as_in_the_released_model(model):
    tokens = torch.zeros(1, 16, 5)
    for k in range(8):
        tokens[0, 2 * k, 1:3] = torch.tensor([1.0, k / 8])
        tokens[0, 2 * k + 1, 0] = 1
    known = (-0.37887, 0.25232, 0.27564, 0.38281, 0.37197, -0.00391, 0.29608, 0.81257)
    assert model(tokens).tolist()[0] == pytest.approx(known, abs=1e-4)


def test_the_draws_are_torch_linears_own_to_the_bit(model):
    state = torch.get_rng_state()
    try:
        torch.manual_seed(1)
        layers = [nn.Linear(5, 64, bias=False), nn.Linear(16, 64, bias=False)]
        for _ in range(2):
            layers += [
                nn.Linear(64, 192, bias=False),
                nn.Linear(64, 64, bias=False),
                nn.Linear(64, 64),
                nn.Linear(64, 64),
            ]
        last = nn.Linear(64, 5)
    finally:
        torch.set_rng_state(state)
    assert torch.equal(model.embed.W_E, layers[0].weight.T)
    assert torch.equal(model.blocks[1].attn.W_K[2], layers[6].weight.view(4, 3, 16, 64)[2, 1].T)
    assert torch.equal(model.blocks[1].mlp.b_out, layers[9].bias)
    assert torch.equal(model.unembed.b_U, last.bias)


def test_the_number_of_parameters_is_the_papers(model):
    assert model.n_parameters == 51_717
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {f"blocks.{layer}.attn.b_{kind}" for layer in (0, 1) for kind in "QKVO"}


@pytest.mark.parametrize("gain", [1, 2])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_short_way_is_the_whole_way(gain, layers):
    model = small(residual_gain=gain, n_layers=layers)
    tokens = contexts()
    torch.testing.assert_close(model(tokens), model.outputs(tokens)[:, ::2, 0], atol=3e-7, rtol=1e-6)
    # The last y has no say, and may be missing.
    torch.testing.assert_close(model(tokens[:, :5]), model(tokens), atol=3e-7, rtol=1e-6)


def test_gradients_of_the_short_way_are_those_of_the_whole_way():
    model, tokens = small(), contexts()
    grads = []
    for predictions in (model(tokens), model.outputs(tokens)[:, ::2, 0]):
        model.zero_grad()
        predictions.square().sum().backward()
        grads.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys()
    for name, grad in grads[0].items():
        torch.testing.assert_close(grad, grads[1][name], atol=1e-5, rtol=1e-4)
    # Only the first output is ever read: the rest of the unembedding is flat.
    assert not grads[0]["unembed.W_U"][:, 1:].any()
    assert not grads[0]["unembed.b_U"][1:].any()


@torch.no_grad()
def test_a_block_adds_its_input_as_often_as_its_gain():
    once, twice = (small(residual_gain=gain, n_layers=1) for gain in (1, 2))
    tokens = contexts()
    (_, cache), (_, other) = once.run_with_cache(tokens), twice.run_with_cache(tokens)
    stream, attention, mlp = (cache[f"blocks.0.hook_{part}"] for part in ("resid_pre", "attn_out", "mlp_out"))
    torch.testing.assert_close(cache["blocks.0.hook_resid_post"], stream + attention + mlp)
    torch.testing.assert_close(other["blocks.0.hook_resid_post"], 2 * stream + attention + mlp)
    torch.testing.assert_close(other["blocks.0.hook_resid_mid"], stream + attention)


@torch.no_grad()
def test_a_hook_takes_effect_and_leaves_nothing_behind():
    model, tokens = small(), contexts()
    before = model(tokens)

    def no_attention(z, hook):
        return torch.zeros_like(z)

    without = model.run_with_hooks(tokens, fwd_hooks=[("blocks.1.attn.hook_z", no_attention)])
    assert not torch.allclose(without, before)
    assert torch.equal(model(tokens), before)
    handle = model.blocks[0].register_forward_hook(lambda module, given, out: torch.zeros_like(out))
    assert not torch.allclose(model(tokens), before)
    handle.remove()
    assert torch.equal(model(tokens), before)


@torch.no_grad()
def test_patterns_are_causal_and_sum_to_1():
    _, cache = small().run_with_cache(contexts())
    for layer in (0, 1):
        pattern = cache[f"blocks.{layer}.attn.hook_pattern"]
        assert pattern.shape == (4, 2, 6, 6)
        torch.testing.assert_close(pattern.sum(-1), torch.ones(4, 2, 6))
        assert not pattern.triu(1).any()


@pytest.mark.parametrize("wrong", [torch.zeros(2, 7, 3), torch.zeros(2, 6, 4), torch.zeros(2, 6), "text"])
def test_inputs_that_are_no_contexts_are_said_in_a_line(wrong):
    with pytest.raises(UserError, match=r"expected real numbers \[batch, 1 to 6, 3\]"):
        small()(wrong)
    with pytest.raises(UserError, match="expected real numbers"):
        small()(torch.zeros(2, 6, 3, dtype=torch.int64))
