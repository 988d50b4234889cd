"""Composition: against the full matrices, against planted circuits, and against chance."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch

from mechplateau.circuits.composition import chance_variance, composition_scores
from mechplateau.errors import UserError

from .conftest import make_model, plain_model
from .planted import COPY, N_TOKENS, empty_model, plant_previous_token_head


def by_hand(model, source, reader, kind):
    """The definition, with full d_model × d_model matrices; the reader's LayerNorm is centering, then its gain."""
    d = model.cfg.d_model

    def weights(layer, head):
        block = model.blocks[layer]
        fold = torch.eye(d).double()
        if model.cfg.normalization_type == "LN":
            fold = (fold - 1 / d) @ torch.diag(block.ln1.w.double())
        q, k, v, o = (getattr(block.attn, f"W_{name}")[head].double() for name in "QKVO")
        return fold @ q @ k.T @ fold.T, fold @ v @ o

    _, ov = weights(*source)
    qk, ov_reader = weights(*reader)
    read = {"Q": qk, "K": qk.T, "V": ov_reader}[kind]
    return ((ov @ read).norm() / (ov.norm() * read.norm())).item()


@pytest.mark.parametrize(
    "model", [make_model(), plain_model(n_layers=3), plain_model(normalization_type=None)]
)
def test_scores_are_those_of_the_full_matrices(model):
    table = composition_scores(model)
    n_layers, n_heads = model.cfg.n_layers, model.cfg.n_heads
    assert len(table) == 3 * n_heads**2 * n_layers * (n_layers - 1) / 2
    for line in table.itertuples():
        source, reader = (
            tuple(int(part) for part in name[1:].split("H")) for name in (line.source, line.reader)
        )
        assert line.score == pytest.approx(by_hand(model, source, reader, line.kind), rel=1e-9)
        assert line.random == pytest.approx(1 / math.sqrt(model.cfg.d_model))


def test_a_planted_composition_is_all_of_one_kind():
    """A reader whose keys read only what a previous-token head writes: K composition 1/√4 · √4 …, Q and V none.

    OV of the writer is a projection of rank 4 (norm 2), and the reader's QK reads that space by an isometry of rank 4
    (norm 2): the product has norm 2, and the score is 2 / (2 · 2).
    """
    model = empty_model(2)
    plant_previous_token_head(model)
    reader = model.blocks[1].attn
    with torch.no_grad():
        reader.W_K[0, COPY, :N_TOKENS] = torch.eye(N_TOKENS)
        reader.W_Q[0, :N_TOKENS, :N_TOKENS] = torch.eye(N_TOKENS)
        reader.W_V[0, 4:8, :N_TOKENS] = torch.eye(N_TOKENS)
        reader.W_O[0, :N_TOKENS, :N_TOKENS] = torch.eye(N_TOKENS)
    table = composition_scores(model).set_index("kind")
    assert table.loc["K", "score"] == pytest.approx(0.5)
    assert table.loc["Q", "score"] == 0
    assert table.loc["V", "score"] == 0
    assert table.loc["K", "z"] > 3 > 0 > table.loc["Q", "z"]


def test_a_head_of_zeros_has_no_score_and_says_why():
    model = make_model()
    with torch.no_grad():
        model.blocks[0].attn.W_O[1] = 0
        model.blocks[1].attn.W_Q[0] = 0
    table = composition_scores(model)
    undefined = table[table["undefined"].notna()]
    expected = {
        *((kind, "L0H1", reader) for kind in "QKV" for reader in ("L1H0", "L1H1")),
        *((kind, source, "L1H0") for kind in "QK" for source in ("L0H0", "L0H1")),
    }
    assert set(zip(undefined["kind"], undefined["source"], undefined["reader"], strict=True)) == expected
    assert "L0H1 writes nothing: its OV is zero" in set(undefined["undefined"])
    assert "L1H0 reads nothing: its QK is zero" in set(undefined["undefined"])
    assert undefined["score"].isna().all()
    assert all(value is pd.NA for value in undefined["score"])
    assert table.loc[table["undefined"].isna(), "score"].notna().all()


def test_one_layer_has_no_pair_and_says_so():
    with pytest.raises(UserError, match="this model has one; use qk_circuit and ov_circuit"):
        composition_scores(make_model(n_layers=1))


@pytest.mark.parametrize(
    ("a", "b"), [((1.0,), (1.0,)), ((0.7, 0.3), (0.5, 0.3, 0.2)), ((0.25,) * 4, (0.9, 0.1))]
)
def test_the_chance_level_is_exact(a, b):
    """Mean and variance of the squared score over random rotations, sampled: within 5 standard errors."""
    d, draws = 5, 40_000
    gauss = np.random.default_rng(0).normal(size=(draws, d, d))
    q, r = np.linalg.qr(gauss)
    rotation = q * np.sign(np.einsum("nii->ni", r))[:, None, :]
    squares = np.einsum("i,j,nij->n", a, b, rotation[:, : len(a), : len(b)] ** 2)
    assert squares.mean() == pytest.approx(1 / d, abs=5 * squares.std() / math.sqrt(draws))
    spread = (squares - squares.mean()) ** 2
    variance = chance_variance(torch.tensor(a).double(), torch.tensor(b).double(), d)
    assert variance == pytest.approx(spread.mean(), abs=5 * spread.std() / math.sqrt(draws))
    assert variance > 0


def test_scores_of_random_weights_are_at_chance():
    models = [plain_model(seed=seed, n_layers=2, normalization_type=None) for seed in range(30)]
    tables = pd.concat([composition_scores(model) for model in models])
    z = tables["z"].to_numpy(dtype=float)
    # 360 scores; those of one model are weakly dependent, so the bounds are wide.
    assert abs(z.mean()) < 0.25
    assert 0.8 < z.std() < 1.2
    assert (tables["score"].astype(float) ** 2).mean() == pytest.approx(1 / 16, rel=0.05)
