"""Probes: certain where the label is there, at chance where it is not, and split by sample."""

from __future__ import annotations

import numpy as np
import pytest

from mechplateau.errors import UserError
from mechplateau.metrics.probe import fit_probe


def decodable(samples=120, rows=4, width=8, n_labels=3, seed=0):
    """Noise in which one direction a label is marked."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_labels, (samples, rows))
    features = rng.normal(size=(samples, rows, width))
    features[..., :n_labels] += 20 * np.eye(n_labels)[labels]
    return features, labels


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_a_linearly_decodable_label_is_read_and_its_shuffled_control_is_not(kind):
    result = fit_probe(*decodable(), kind=kind, hidden=16)
    assert result.test_accuracy == 1.0
    assert result.train_accuracy == 1.0
    # 240 test rows at chance 1/3: 5 standard deviations are 0.15.
    assert abs(result.shuffled_accuracy - 1 / 3) < 0.15
    assert result.converged
    assert (result.n_train, result.n_test, result.n_labels) == (240, 240, 3)


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_noise_is_at_chance(kind):
    rng = np.random.default_rng(1)
    features, labels = rng.normal(size=(200, 4, 6)), rng.integers(0, 2, (200, 4))
    result = fit_probe(features, labels, kind=kind, hidden=8, max_iter=200)
    assert abs(result.test_accuracy - 0.5) < 5 * 0.5 / np.sqrt(400)


def test_only_an_mlp_reads_a_product():
    rng = np.random.default_rng(2)
    features = rng.choice([-1.0, 1.0], size=(300, 2, 2))
    labels = (features[..., 0] * features[..., 1] > 0).astype(int)
    assert fit_probe(features, labels, kind="linear", control=False).test_accuracy < 0.65
    assert fit_probe(features, labels, kind="mlp", hidden=16, control=False).test_accuracy == 1.0


def test_the_split_is_by_sample():
    """Each sample has a mark of its own and a random label: read in the samples trained on, never in others."""
    rng = np.random.default_rng(3)
    marks = rng.normal(size=(60, 1, 40)) * 5
    features = np.repeat(marks, 5, axis=1) + rng.normal(size=(60, 5, 40)) * 0.01
    labels = np.repeat(rng.integers(0, 2, (60, 1)), 5, axis=1)
    result = fit_probe(features, labels, control=False)
    assert result.train_accuracy == 1.0
    assert result.test_accuracy < 0.9
    assert (result.n_train, result.n_test) == (150, 150)
    first = fit_probe(features, labels, n_train=20, control=False)
    assert (first.n_train, first.n_test) == (100, 200)


def test_the_majority_is_that_of_the_training_rows():
    features, _ = decodable(samples=4, rows=2)
    labels = np.array([[0, 0], [0, 1], [1, 1], [1, 0]])
    result = fit_probe(features, labels, control=False)
    assert result.majority == 0.25
    assert result.shuffled_accuracy is None


def test_an_unfinished_fit_is_said_and_constant_features_do_no_harm():
    features, labels = decodable(n_labels=3)
    features[..., 7] = 1e6
    assert not fit_probe(features / 20, labels, kind="mlp", hidden=4, max_iter=1, control=False).converged
    assert fit_probe(features, labels, control=False).test_accuracy == 1.0


def test_a_fit_that_is_interrupted_is_no_result(monkeypatch):
    """scikit-learn itself takes Ctrl-C for the end of training and returns the probe as far as it is."""
    from sklearn.neural_network import MLPClassifier

    original, calls = MLPClassifier._backprop, []

    def interrupted_later(*arguments, **options):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(MLPClassifier, "_backprop", interrupted_later)
    with pytest.raises(KeyboardInterrupt):
        fit_probe(*decodable(), kind="mlp", hidden=4)
    assert len(calls) == 3


def test_refusals():
    features, labels = decodable()
    with pytest.raises(UserError, match=r"got \[120, 4, 8\] and \[120, 3\]"):
        fit_probe(features, labels[:, :3])
    with pytest.raises(UserError, match="all training rows have the label 1"):
        fit_probe(features, np.ones_like(labels))
    with pytest.raises(UserError, match="n_train: expected 1 to 119 of 120 samples, got 120"):
        fit_probe(features, labels, n_train=120)
    with pytest.raises(UserError, match="kind: expected linear or mlp"):
        fit_probe(features, labels, kind="tree")
    features[0, 0, 0] = -np.inf
    with pytest.raises(UserError, match="NaN or infinity"):
        fit_probe(features, labels)


def operands(samples=150, rows=2, n=6, seed=0):
    """Two operands a row, each marked in directions of its own."""
    random = np.random.default_rng(seed)
    a, b = random.integers(0, n, (2, samples, rows))
    return a, b, np.concatenate([np.eye(n)[a], np.eye(n)[b]], axis=-1)


def test_a_label_that_is_there_is_selective_and_a_random_label_of_the_same_inputs_is_not():
    a, b, marked = operands()
    total = a + b
    only_the_sum = np.eye(11)[total]
    there = fit_probe(only_the_sum, total, inputs=a * 6 + b)
    assert there.test_accuracy == 1.0
    # A random label of the pair cannot be read off the sum: little more than the most frequent of 11 labels.
    assert there.selectivity > 0.6
    assert there.selectivity == there.test_accuracy - there.control_accuracy

    # Of many labels, and inputs that are never the same: chance is near 0, and selectivity near 1.
    labels = np.random.default_rng(0).integers(0, 40, (600, 2))
    alone = fit_probe(np.eye(40)[labels], labels, inputs=np.arange(1200).reshape(600, 2), draws=1)
    assert alone.test_accuracy == 1.0
    assert alone.selectivity > 0.95

    a, b, marked = operands()
    by_pair = np.random.default_rng(5).integers(0, 2, 36)[a * 6 + b]
    both = fit_probe(marked, by_pair, inputs=a * 6 + b, kind="mlp", hidden=32, draws=1)
    assert both.test_accuracy > 0.85
    assert abs(both.selectivity) < 0.15


def test_an_mlp_computes_the_sum_by_itself_and_selectivity_says_so():
    """Two operands are there, their sum is not: the probe adds. A random label of the pair is read as well."""
    a, b, marked = operands(samples=200)
    mlp = fit_probe(marked, (a + b) % 6, inputs=a * 6 + b, kind="mlp", hidden=32, draws=1)
    linear = fit_probe(marked, (a + b) % 6, inputs=a * 6 + b)
    assert mlp.test_accuracy > 0.9
    assert mlp.selectivity < 0.3
    assert linear.test_accuracy < 0.5


def test_the_control_is_drawn_several_times():
    features, labels = decodable()
    inputs = labels * 5
    several = fit_probe(features, labels, inputs=inputs, draws=4)
    assert several.shuffled_sd > 0
    alone = [fit_probe(features, labels, inputs=inputs, draws=1, seed=seed) for seed in range(4)]
    assert several.shuffled_accuracy == pytest.approx(np.mean([one.shuffled_accuracy for one in alone]))
    assert several.shuffled_sd == pytest.approx(np.std([one.shuffled_accuracy for one in alone], ddof=1))
    assert (alone[0].shuffled_sd, alone[0].control_sd) == (None, None)
    spared = fit_probe(features, labels, inputs=inputs, draws=1, shuffled=False)
    assert (spared.shuffled_accuracy, spared.shuffled_sd) == (None, None)
    assert spared.control_accuracy == alone[0].control_accuracy
    without = fit_probe(features, labels, control=False, inputs=inputs)
    assert without.shuffled_accuracy is without.control_accuracy is without.selectivity is None


def test_samples_whose_group_is_trained_on_are_not_tested_on():
    features, labels = decodable(samples=10, rows=2)
    groups = np.array([0, 1, 2, 3, 4, 0, 1, 5, 6, 7])
    result = fit_probe(features, labels, groups=groups, control=False)
    assert (result.n_train, result.n_test, result.repeated) == (10, 6, 0.4)
    with pytest.warns(UserWarning, match="every test sample's prompt is also trained on"):
        all_known = fit_probe(features, labels, groups=np.zeros(10, dtype=int), control=False)
    assert (all_known.n_test, all_known.repeated) == (10, 1.0)


def test_refusals_of_controls():
    features, labels = decodable(samples=10, rows=2)
    with pytest.raises(UserError, match="it is no function of them"):
        fit_probe(features, labels, inputs=np.zeros_like(labels))
    with pytest.raises(UserError, match=r"inputs: expected \[10, 2\], as labels, got \[10\]"):
        fit_probe(features, labels, inputs=np.zeros(10))
    with pytest.raises(UserError, match=r"groups: expected \[10\], one a sample, got \[3\]"):
        fit_probe(features, labels, groups=np.zeros(3))
    with pytest.raises(UserError, match="draws: expected at least 1, got 0"):
        fit_probe(features, labels, draws=0)
    for name in ("hidden", "max_iter"):
        with pytest.raises(UserError, match=f"{name}: expected at least 1, got 0"):
            fit_probe(features, labels, kind="mlp", **{name: 0})
