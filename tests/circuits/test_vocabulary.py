"""QK and OV circuits: exactly the model's scores, and the circuits that were planted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mechplateau.circuits.vocabulary import ov_circuit, qk_circuit
from mechplateau.errors import UserError

from .conftest import VOCAB, make_model, plain_model
from .planted import N_TOKENS, empty_model, plant_copying, plant_previous_token_head


@pytest.mark.parametrize(
    "model", [make_model(), make_model("softmax"), plain_model(normalization_type="RMS")]
)
@pytest.mark.parametrize(("query", "key"), [(6, 2), (3, 3)])
def test_qk_is_the_models_scores(model, query, key, tokens):
    inputs = tokens[:, :-1]
    _, cache = model.run_with_cache(inputs)
    circuit = qk_circuit(model, 1, query_position=query, key_position=key).to_numpy()
    scores = cache["blocks.0.attn.hook_attn_scores"][:, 1, query, key]
    expected = circuit[inputs[:, query], inputs[:, key]]
    np.testing.assert_allclose(scores.detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_ov_is_the_heads_direct_effect_on_the_logits_times_the_scale(tokens):
    """With head 1 made to look at key 2 with weight 1, its share of the logits is the circuit's row, over σ."""
    from mechplateau.circuits.attribution import attribute_logits

    model = make_model(n_layers=1)
    inputs = tokens[:, :-1]

    def look(pattern, hook):
        pattern = torch.zeros_like(pattern)
        pattern[:, :, 5, 2] = 1.0
        return pattern

    with model.hooks(fwd_hooks=[("blocks.0.attn.hook_pattern", look)]):
        _, cache = model.run_with_cache(inputs)
        values = attribute_logits(model, tokens, rows=[5])
    scale = cache["ln_final.hook_scale"][:, 5, 0]
    circuit = ov_circuit(model, 1, key_position=2).to_numpy()
    expected = circuit[inputs[:, 2], tokens[:, 6]] / scale.detach().numpy()
    np.testing.assert_allclose(
        values.values[values.components.index("L0H1"), :, 0], expected, rtol=1e-4, atol=1e-5
    )


def test_a_planted_copy_circuit_is_the_identity():
    model = empty_model(1)
    plant_copying(model)
    np.testing.assert_allclose(ov_circuit(model).to_numpy(), np.eye(N_TOKENS), atol=1e-6)


def test_a_planted_previous_token_head_scores_the_previous_position_highest():
    model = empty_model(1)
    plant_previous_token_head(model)
    for key in range(5):
        scores = qk_circuit(model, query_position=4, key_position=key).to_numpy()
        np.testing.assert_allclose(scores, 50.0 if key == 3 else 0.0, atol=1e-4)


def test_labels_and_refusals():
    model = make_model()
    labels = [f"t{token}" for token in range(VOCAB)]
    frame = qk_circuit(model, labels=labels)
    assert list(frame.index) == list(frame.columns) == labels
    assert (frame.index.name, frame.columns.name) == ("query", "key")
    with pytest.raises(UserError, match="labels: expected 11"):
        ov_circuit(model, labels=labels[:3])
    with pytest.raises(UserError, match=r"head: expected 0 to 1 \(of layer 0\), got 2"):
        ov_circuit(model, 2)
    with pytest.raises(UserError, match="position: expected 0 to 8, got 9"):
        qk_circuit(model, key_position=9)
    with pytest.raises(UserError, match="rotary"):
        qk_circuit(plain_model(positional_embedding_type="rotary", rotary_dim=8))
