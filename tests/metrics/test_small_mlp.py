"""The small MLP of probes: the same fit as scikit-learn's, step by step."""

from __future__ import annotations

import numpy as np
import pytest

from mechplateau.errors import UserError
from mechplateau.metrics import small_mlp
from mechplateau.metrics.small_mlp import fit_small_mlp


def marked(n_labels, rows=450, width=12):
    """Noise, and which of its first three entries is the largest."""
    features = np.random.default_rng(0).normal(size=(rows, width)).astype(np.float32)
    return features, features[:, :3].argmax(axis=1) % n_labels + 5


@pytest.mark.parametrize("n_labels", [2, 3])
def test_a_fit_is_that_of_scikit_learn_but_for_rounding(n_labels):
    """450 rows: two batches of 200 and one of 50. Two labels have one output."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    features, labels = marked(n_labels)
    with pytest.warns(ConvergenceWarning):
        theirs = MLPClassifier((16,), max_iter=12, random_state=3).fit(features, labels)
    ours = fit_small_mlp(features, labels, hidden=16, max_iter=12, seed=3)
    assert (ours.epochs, ours.converged) == (12, False)
    for one, other in zip((*ours.weights, *ours.biases), theirs.coefs_ + theirs.intercepts_, strict=True):
        np.testing.assert_allclose(one.numpy(), other, atol=2e-6)
    fresh = np.random.default_rng(1).normal(size=(300, 12)).astype(np.float32)
    assert (ours.predict(fresh) == theirs.predict(fresh)).all()
    assert set(ours.predict(fresh)) == set(labels)


def test_it_stops_when_scikit_learns_does():
    from sklearn.neural_network import MLPClassifier

    features, labels = marked(3, rows=60, width=4)
    features *= 5
    theirs = MLPClassifier((32,), max_iter=4000, random_state=0).fit(features, labels)
    ours = fit_small_mlp(features, labels, hidden=32, max_iter=4000)
    assert ours.converged
    assert abs(ours.epochs - theirs.n_iter_) <= 0.01 * theirs.n_iter_


def test_a_fit_that_is_interrupted_is_no_result(monkeypatch):
    original, calls = small_mlp._epoch, []

    def interrupted_later(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(small_mlp, "_epoch", interrupted_later)
    with pytest.raises(KeyboardInterrupt):
        fit_small_mlp(*marked(3), hidden=4)


def test_weights_that_are_no_numbers_are_no_probe():
    features, labels = marked(3, rows=40)
    with pytest.raises(UserError, match="leave standardize on"):
        fit_small_mlp(np.sign(features) * np.float32(3e38), labels, hidden=4, max_iter=2)
