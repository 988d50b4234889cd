"""A solved model whose parts are known, taken apart by every tool: each finds what was put in."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mechplateau.circuits.ablation import target_entries
from mechplateau.circuits.by_hand import PHASES, model_by_hand
from mechplateau.circuits.contributions import (
    balance_over_rows,
    mean_contributions,
    place_symmetry,
    token_contributions,
    token_entries,
)
from mechplateau.circuits.frequency_ablation import ablate_frequencies
from mechplateau.circuits.positional_map import evenness, fixed_map, same_sign, window_weights
from mechplateau.circuits.tuning import logits_of_the_sum, neuron_tuning, phase_lock, token_spectrum
from mechplateau.errors import UserError
from mechplateau.tasks import MovingWindowSum

P, WEIGHT = 17, -0.7
TASK = MovingWindowSum(n=3, k=2, p=P, max_num=P - 1)
ROWS = TASK.output_rows[1:]
THETA = 2 * math.pi * np.outer(np.arange(1, 9), np.arange(P)) / P
"""θ_q(t), `[q, t]`."""


@pytest.fixture(scope="module")
def model():
    return model_by_hand(TASK, weight=WEIGHT)


@pytest.fixture(scope="module")
def tokens():
    """Every pair of inputs in both windows: x y x, in an order at random."""
    pairs = torch.cartesian_prod(torch.arange(1, P), torch.arange(1, P))
    pairs = pairs[torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0))]
    x = torch.cat([pairs, pairs[:, :1]], dim=1)
    y = torch.cat([x[:, :1], (x[:, 1:] + x[:, :-1]) % P], dim=1)
    return torch.cat([x, torch.full((len(x), 1), P), y], dim=1)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def neurons():
    """Activations of every neuron for every pair of inputs, `[a, b, q, phase]`, by the formula."""
    phases = 2 * np.pi * np.arange(PHASES) / PHASES
    waves = np.cos(THETA[:, :, None] - phases).transpose(1, 0, 2)
    return gelu((waves[:, None] + waves[None]) / 2)


def test_it_is_right_everywhere(model, tokens):
    with torch.no_grad():
        logits = model(tokens[:, :-1])[:, list(TASK.output_rows)]
    assert bool((logits.argmax(-1) == tokens[:, 1:][:, list(TASK.output_rows)]).all())


def test_attention_is_a_fixed_map_with_even_weights_and_the_copy_against_them(model, tokens):
    table = fixed_map(model, tokens, rows=TASK.output_rows)
    assert table["r2"].tolist() == pytest.approx([1.0, 1.0])
    assert table["accuracy_fixed"].tolist() == [1.0, 1.0]
    weights = window_weights(model, tokens, TASK)
    found = [(int(line.row), int(line.key)) for line in weights.itertuples()]
    assert found == [(3, 0), (4, 0), (4, 1), (5, 1), (5, 2)]
    assert weights["weight"].tolist() == pytest.approx([-WEIGHT] + [WEIGHT] * 4, abs=1e-6)
    assert weights["sd"].tolist() == pytest.approx([0.0] * 5, abs=1e-6)
    assert (evenness(weights), same_sign(weights)) == (pytest.approx(1.0), (1.0, 1.0))


def test_the_separator_cancels_the_inputs_mean(model, tokens):
    windows, separators = target_entries(TASK, tokens, 1), token_entries(model, tokens, TASK.separator)
    table = mean_contributions(model, tokens, windows, separators, rows=ROWS)
    for name, value in (("correlation", -1.0), ("ratio", 1.0), ("cancelled", 1.0)):
        assert table[name].tolist() == pytest.approx([value] * 2, abs=1e-3)

    # Row by row as well, the copy's row among them: what the inputs add along its value, it takes away.
    every = balance_over_rows(model, tokens, windows, separators, rows=TASK.output_rows)
    assert every[["correlation", "slope"]].iloc[0].tolist() == pytest.approx([-1.0, -1.0], abs=1e-3)
    assert every["left"][0] == pytest.approx(0.0, abs=1e-6)
    alike = balance_over_rows(model, tokens, {0: windows[0] & False}, separators, rows=TASK.output_rows)
    assert alike["correlation"].isna().all()


def test_a_token_adds_its_waves_at_both_places(model, tokens):
    added = token_contributions(model, tokens, TASK)
    assert added.isnan().any(dim=2).tolist() == [[True] + [False] * 16] * 2  # 0 is no input
    waves = np.stack([np.cos(THETA), np.sin(THETA)], axis=2).transpose(1, 0, 2).reshape(P, -1)[1:]
    begin = model.cfg.d_model // 2 - 16 - 1 - 17  # the part of the stream for sums
    for place in added:
        read = place[1:, begin : begin + 16].numpy()
        assert read == pytest.approx(WEIGHT * (waves - waves.mean(axis=0)), abs=1e-4)
    assert place_symmetry(added) == pytest.approx(1.0)
    opposite = torch.stack([added[0], -added[1]])
    assert place_symmetry(opposite) == pytest.approx(-1.0)


def test_the_embeddings_spectrum_is_flat_though_they_are_waves(model):
    table = token_spectrum(model.W_E[:P])
    assert table["share"].tolist() == pytest.approx([1 / 8] * 8, abs=1e-6)
    assert table["flat"].tolist() == [1 / 8] * 8


def test_every_neuron_has_its_frequency_share_and_phases(model, tokens):
    table = neuron_tuning(model, tokens, TASK)
    assert table["frequency"].tolist() == [1 + neuron // PHASES for neuron in range(8 * PHASES)]
    phases = 2 * np.pi * (np.arange(8 * PHASES) % PHASES) / PHASES
    for name, times in (("in_phase", 1), ("out_phase", 2)):
        off = table[name].to_numpy(float) - times * phases
        assert np.cos(off) == pytest.approx(np.ones(64), abs=1e-4)
    assert phase_lock(table) == (pytest.approx(1.0, abs=1e-4), pytest.approx(1.0, abs=1e-4))
    a, b = (part.ravel() for part in np.meshgrid(np.arange(1, P), np.arange(1, P), indexing="ij"))
    activity = neurons()[a, b].reshape(len(a), -1)
    curves = np.stack([activity[(a + b) % P == s].mean(axis=0) for s in range(P)])
    power = np.abs(np.fft.rfft(curves, axis=0))[1:] ** 2
    share = (power / power.sum(axis=0)).max(axis=0)
    assert table["share"].to_numpy(float) == pytest.approx(share, abs=2e-3)
    assert share.min() > 0.7
    assert table["control_share"].astype(float).median() < 0.55


def test_the_logits_share_is_that_of_the_formula(model, tokens):
    a, b = (part.ravel() for part in np.meshgrid(np.arange(1, P), np.arange(1, P), indexing="ij"))
    phases = 2 * np.pi * np.arange(PHASES) / PHASES
    written = 2.5 * (neurons()[a, b] * np.exp(2j * phases)).sum(axis=2)
    waves = np.exp(1j * THETA).T
    written -= waves[a] + waves[b] - 2 * waves[1:].mean(axis=0)
    logits = (written[:, None] * np.exp(-1j * THETA).T).real.sum(axis=2)
    shifts = ((a + b)[:, None] - np.arange(P)) % P
    mean = np.array([logits[shifts == d].mean() for d in range(P)])
    even = (mean + mean[-np.arange(P)]) / 2
    expected = (even[shifts] ** 2).sum() / (logits**2).sum()
    assert logits_of_the_sum(model, tokens, TASK) == pytest.approx(expected, abs=2e-3)


def test_its_own_frequency_is_needed_and_enough(model, tokens):
    table = ablate_frequencies(model, tokens, TASK)
    found = table.set_index(["edit", "wave"])["accuracy"]
    assert table["accuracy"][0] == found["keep", "own"] == 1.0
    assert found["remove", "own"] < 0.15
    assert found["keep", "other"] < 0.2
    assert found["remove", "other"] > 0.98
    assert found["keep", "renamed"] < 0.5
    assert found["remove", "renamed"] > 0.9
    assert table["n"].tolist() == [128] * 7


def test_so_are_all_waves_of_the_terms_at_its_frequency(model, tokens):
    """A neuron is a bent sum of two waves: products of them at its frequency hold most of it."""
    found = ablate_frequencies(model, tokens, TASK, of="terms").set_index(["edit", "wave"])["accuracy"]
    assert found["keep", "own"] > 0.98
    assert found["remove", "own"] < 0.15
    assert found["keep", "other"] < 0.2
    assert found["remove", "other"] > 0.98
    assert found["remove", "renamed"] > 0.9


def test_outputs_that_are_moved_to_other_neurons_lose_the_lock(model, tokens):
    moved = model_by_hand(TASK, weight=WEIGHT)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        moved.blocks[0].mlp.W_out.copy_(model.blocks[0].mlp.W_out[order])
    length, _ = phase_lock(neuron_tuning(moved, tokens, TASK, permutations=1))
    assert length < 0.6


@pytest.mark.parametrize("settings", [{"k": 3}, {"p": 18, "max_num": 16}, {"k": 1}])
def test_other_windows_are_refused(settings):
    with pytest.raises(UserError, match="task: expected mws with k = 2 and an odd p of at least 5, got mws"):
        model_by_hand(MovingWindowSum(**{"n": 4, "k": 2, "p": P, "max_num": 16, **settings}))
    with pytest.raises(UserError, match=r"weight: expected one of size 0\.5 to 2, got 0"):
        model_by_hand(TASK, weight=0)
