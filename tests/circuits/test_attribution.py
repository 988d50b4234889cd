"""Attribution sums to the logits, and finds what was planted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mechplateau.circuits.attribution import attribute_logits
from mechplateau.errors import UserError

from .conftest import make_model, plain_model
from .planted import N_POSITIONS, copied_tokens, empty_model, plant_previous_token_head


@pytest.mark.parametrize("of", ["logit", "difference"])
def test_components_sum_to_the_logits(two_models, tokens, of):
    model = two_models[0]
    rows = (2, 5, 7)
    with torch.no_grad():
        logits = model(tokens[:, :-1])[:, rows].double()
    right = tokens[:, [row + 1 for row in rows]]
    own = logits.gather(-1, right[..., None])[..., 0]
    expected = own if of == "logit" else own - (logits.sum(-1) - own) / (logits.shape[-1] - 1)
    result = attribute_logits(model, tokens, rows=rows, of=of)
    np.testing.assert_allclose(result.total, expected, atol=1e-5)
    np.testing.assert_allclose(result.values.sum(axis=0), expected, rtol=1e-4, atol=2e-5)
    assert result.components[0] == "embed"
    assert result.components[-1] == "bias"
    assert ("L1 MLP" in result.components) == (not model.cfg.attn_only and model.cfg.n_layers == 2)


def test_an_edit_of_one_component_moves_its_own_share_only(tokens):
    """Without a norm attribution is exact for interventions too: zeroing a component takes its share away."""
    model = plain_model(n_layers=1, normalization_type=None)
    before = attribute_logits(model, tokens)
    with torch.no_grad():
        model.blocks[0].attn.W_O[1] = 0
    after = attribute_logits(model, tokens)
    changed = {
        c
        for c, a, b in zip(before.components, before.values, after.values, strict=True)
        if not np.allclose(a, b)
    }
    assert changed == {"L0H1", "L0 MLP"}  # the MLP reads what the head wrote
    assert np.abs(after.values[after.components.index("L0H1")]).max() == 0


def test_a_planted_head_has_all_of_the_logit(generator):
    model = empty_model(1)
    plant_previous_token_head(model)
    tokens = copied_tokens(generator)
    result = attribute_logits(model, tokens, rows=range(1, N_POSITIONS))
    shares = dict(zip(result.components, result.values.mean(axis=(1, 2)), strict=True))
    assert shares["L0H0"] == pytest.approx(1.0, abs=1e-6)
    assert all(value == pytest.approx(0.0, abs=1e-6) for name, value in shares.items() if name != "L0H0")
    line = result.table.query("component == 'L0H0' and position == 3")
    assert line["contribution"].item() == pytest.approx(1.0, abs=1e-6)


def test_what_does_not_sum_is_refused(tokens):
    model = make_model()
    model.blocks[0].register_forward_hook(lambda module, inputs, output: output + 1.7 * output.roll(1, -1))
    with pytest.raises(UserError, match="do not sum to the model's logits"):
        attribute_logits(model, tokens)


def test_positions_beside_the_stream_are_no_component(tokens):
    model = plain_model(positional_embedding_type="shortformer")
    assert "pos_embed" not in attribute_logits(model, tokens).components
