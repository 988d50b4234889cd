"""Edges between heads: known circuits with and without flow, and one edge by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mechplateau.circuits._effects import others
from mechplateau.circuits.composition import composition_scores
from mechplateau.circuits.edges import edge_effects
from mechplateau.errors import UserError

from .conftest import make_model, plain_model
from .planted import (
    COPY,
    N_TOKENS,
    TOKEN,
    copied_tokens,
    empty_model,
    plant_copying,
    plant_previous_token_head,
)


def induction_model():
    """The second layer attends to positions whose previous token is the present one, and copies what stands there."""
    model = empty_model(2)
    plant_previous_token_head(model)
    reader = model.blocks[1].attn
    with torch.no_grad():
        model.unembed.W_U[COPY] = 0
        # The reader copies to the token space, which alone is unembedded.
        reader.W_K[0, COPY, :N_TOKENS] = torch.eye(N_TOKENS) * 30 * reader.attn_scale
        reader.W_Q[0, TOKEN, :N_TOKENS] = torch.eye(N_TOKENS)
        plant_copying(model, layer=1)
        reader.W_O[0, :N_TOKENS] = 0
        reader.W_O[0, :N_TOKENS, TOKEN] = torch.eye(N_TOKENS) * 9
        model.unembed.W_U[TOKEN] = torch.eye(N_TOKENS)
    return model


def test_an_induction_circuit_flows_through_its_keys(generator):
    tokens = copied_tokens(generator, batch=40)
    table = composition_scores(induction_model(), tokens, rows=[3, 4, 5]).set_index("kind")
    assert table.loc["K", "effect"] > 0.5
    assert table.loc["K", "effect"] > 5 * table.loc["K", "effect_se"]
    assert abs(table.loc["Q", "effect"]) < 1e-6
    assert abs(table.loc["V", "effect"]) < 1e-6
    assert set(table["n"]) == {40}


def test_a_score_without_flow_has_no_effect(generator):
    """The reader reads as before, but nothing of what it does reaches the logits."""
    model = induction_model()
    with torch.no_grad():
        model.unembed.W_U[TOKEN] = 0
    table = composition_scores(model, copied_tokens(generator, batch=10)).set_index("kind")
    assert table.loc["K", "score"] == pytest.approx(0.5)
    assert table.loc["K", "effect"] == 0
    assert table.loc["K", "effect_se"] == 0


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
@pytest.mark.parametrize("make", [lambda: make_model(n_layers=3), lambda: plain_model(n_layers=3)])
def test_one_edge_by_hand(make, kind, generator):
    """The reader's own projection is computed again from its changed input, and put in place of the old one."""
    model = make()
    tokens = torch.randint(0, model.cfg.d_vocab, (6, 7), generator=generator)
    inputs, rows = tokens[:, :-1], [2, 5]
    source, reader = (0, 1), (2, 0)
    with torch.no_grad():
        logits, cache = model.run_with_cache(inputs)
        z = cache["blocks.0.attn.hook_z"][:, :, 1]
        change = (z[others(6, 3)] - z) @ model.blocks[0].attn.W_O[1]
        stream = cache["blocks.2.hook_resid_pre"] + change
        block = model.blocks[2]
        weight, bias = (getattr(block.attn, f"{name}_{kind}")[0] for name in "Wb")
        projected = block.ln1(stream) @ weight + bias

        def put(x, hook):
            x = x.clone()
            x[:, :, 0] = projected
            return x

        edited = model.run_with_hooks(inputs, fwd_hooks=[(f"blocks.2.attn.hook_{kind.lower()}", put)])

        def loss(logits):
            p = logits.double().log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
            return -p[:, rows].mean(1)

        rise = loss(edited) - loss(logits)
        found = edge_effects(model, tokens, [(kind, source, reader)], rows=rows, seed=3)
    assert found[0, 0] == pytest.approx(float(rise.mean()), rel=1e-4)
    assert found[0, 1] == pytest.approx(float(rise.std() / 6**0.5), rel=1e-4)
    assert not model.cfg.use_split_qkv_input


def test_many_edges_at_once_are_each_alone(generator):
    model = plain_model(n_layers=3)
    tokens = torch.randint(0, model.cfg.d_vocab, (5, 7), generator=generator)
    edges = [
        ("Q", (0, 0), (1, 1)),
        ("V", (0, 1), (2, 0)),
        ("K", (1, 0), (2, 1)),
        ("V", (0, 1), (2, 1)),
    ]
    together = edge_effects(model, tokens, edges)
    alone = np.concatenate([edge_effects(model, tokens, [edge], at_once=1) for edge in edges])
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_refusals_of_effects(generator):
    tokens = torch.randint(0, 4, (1, 7), generator=generator)
    with pytest.raises(UserError, match="expected at least 2 different sequences"):
        composition_scores(induction_model(), tokens)
    grouped = plain_model(n_layers=2, n_heads=4, n_key_value_heads=2)
    with pytest.raises(UserError, match="groups their keys and values"):
        composition_scores(grouped, torch.randint(0, 4, (3, 7), generator=generator))
