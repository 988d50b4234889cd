"""Regression in context: baselines against slow formulas and known numbers, measures by hand."""

import math

import numpy as np
import pytest
import torch

from mechplateau.metrics import regression as r

RIDGE = (4.125, 3.178, 2.280, 1.488, 0.894, 0.573, 0.409, 0.322)
"""Squared errors of the best predictor for D 4, K 8, noise σ² = 0.125: the mean of σ²(1 + tr (XᵀX + σ²I)⁻¹) over
400,000 draws of X. The paper's (4.12, 3.13, 2.26, 1.47, .888, .592, .412, .330) are of 20,000 contexts."""


def contexts(n: int, generator: torch.Generator, noise: float = 0.125, pairs: int = 8, d: int = 4):
    w = torch.randn(n, d, generator=generator)
    x = torch.randn(n, pairs, d, generator=generator)
    y = (x @ w[..., None])[..., 0] + math.sqrt(noise) * torch.randn(n, pairs, generator=generator)
    return w, x, y


def test_the_ridge_predictor_has_the_known_errors(generator):
    _, x, y = contexts(60_000, generator)
    errors = r.squared_errors(r.ridge_predictions(x, y, 0.125), y)
    assert errors.tolist() == pytest.approx(RIDGE, rel=0.03)
    assert float(errors.mean()) == pytest.approx(1.659, rel=0.03)


@pytest.mark.parametrize("noise", [0.125, 0.0])
def test_the_ridge_predictor_is_regression_on_the_pairs_before(generator, noise):
    _, x, y = contexts(3, generator, noise, pairs=5, d=2)
    found = r.ridge_predictions(x, y, noise)
    for b in range(3):
        for k in range(5):
            xs, ys = x[b, :k].double().numpy(), y[b, :k].double().numpy()
            rows = np.concatenate([xs, math.sqrt(noise) * np.eye(2)])
            sides = np.concatenate([ys, np.zeros(2)])
            w = np.linalg.lstsq(rows, sides, rcond=None)[0]
            assert float(found[b, k]) == pytest.approx(float(w @ x[b, k].double().numpy()), abs=1e-4)


def test_a_finite_prior_of_one_task_answers_with_it_and_of_two_weighs_their_fit():
    x = torch.tensor([[[1.0], [2.0]]])
    y = torch.tensor([[1.0, 5.0]])
    assert r.finite_prior_predictions(x, y, torch.tensor([[3.0]]), 0.5).tolist() == [[3.0, 6.0]]
    found = r.finite_prior_predictions(x, y, torch.tensor([[1.0], [2.0]]), 0.5)[0]
    weight = 1 / (1 + math.exp(-1))  # the first pair fits task 1 exactly and task 2 with a squared error of 1
    assert found.tolist() == pytest.approx([1.5, 2 * weight + 4 * (1 - weight)])


def test_many_tasks_in_blocks_are_many_tasks_at_once_and_come_near_ridge(generator, monkeypatch):
    _, x, y = contexts(64, generator)
    tasks = torch.randn(8_000, 4, generator=generator)
    at_once = r.finite_prior_predictions(x, y, tasks, 0.125)
    monkeypatch.setattr(r, "_ENTRIES_AT_ONCE", 64 * 8 * 3_000)
    torch.testing.assert_close(r.finite_prior_predictions(x, y, tasks, 0.125), at_once, atol=1e-4, rtol=1e-4)
    assert float(r.ridge_gap(at_once, r.ridge_predictions(x, y, 0.125))) < 0.1


def test_the_measures_by_hand():
    predictions = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    y = torch.tensor([[0.0, 2.0], [1.0, 4.0]])
    errors = r.squared_errors(predictions, y)
    assert errors.tolist() == [2.5, 8.0]
    assert float(r.in_context_gain(errors, 1, 2)) == 5.5
    assert r.in_context_gain(errors, 1, 4) is None
    assert float(r.prediction_norm(predictions)) == 3.5
    assert float(r.ridge_gap(predictions, y)) == float(r.prior_gap(predictions, y)) == 5.25
    x = torch.tensor([[[1.0], [1.0]], [[1.0], [2.0]]])
    assert float(r.task_prior_distance(predictions, x)) == (1 + 4 + 9 + 0) / 2
    assert float(r.task_prior_distance(predictions, x, torch.tensor([1.0]))) == (0 + 1 + 4 + 4) / 2


def test_what_does_not_fit_is_said_in_a_line():
    x, y = torch.zeros(2, 3, 4), torch.zeros(2, 3)
    with pytest.raises(ValueError, match="noise"):
        r.ridge_predictions(x, y, -1.0)
    with pytest.raises(ValueError, match=r"\[2, 2\]"):
        r.ridge_predictions(x, torch.zeros(2, 2), 0.1)
    with pytest.raises(ValueError, match="above 0"):
        r.finite_prior_predictions(x, y, torch.zeros(1, 4), 0.0)
    with pytest.raises(ValueError, match="at least one task"):
        r.finite_prior_predictions(x, y, torch.zeros(0, 4), 0.1)
    with pytest.raises(ValueError, match="counted from 1"):
        r.in_context_gain(torch.zeros(4), 0, 4)
