"""Probes: how much of a label can be read off a vector by a linear classifier, or by a small MLP.

Plain arrays in, accuracies out. The split is by sample (sequence): all rows of one sequence are on the same side,
so that nothing is learned from rows that share their input. A probe of labels shuffled over the training rows is
the control: it has as many parameters and the same label frequencies, and should come out at chance.

linear: logistic regression (L2, C = 1, lbfgs); mlp: one hidden layer of ReLUs (Adam, scikit-learn's defaults).
Inputs are standardized with the training rows' mean and deviation, unless asked otherwise.

Source: Alain & Bengio 2016 (linear probes); Hewitt & Liang 2019 (control tasks); the MLP is that of arXiv 2506.13688.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from mechplateau.errors import UserError


@dataclass(frozen=True)
class ProbeResult:
    """What a probe reads.

    Attributes:
        train_accuracy, test_accuracy: share of rows classified rightly, of samples trained on and of others.
        shuffled_accuracy: test accuracy of the control; None where it was not asked for.
        majority: test accuracy of always giving the training rows' most frequent label.
        n_train, n_test: rows of each.
        n_labels: different labels in the training rows.
        converged: whether fitting stopped by itself, not at `max_iter` (of the probe, not the control).
    """

    train_accuracy: float
    test_accuracy: float
    shuffled_accuracy: float | None
    majority: float
    n_train: int
    n_test: int
    n_labels: int
    converged: bool


def fit_probe(
    features: np.ndarray,
    labels: np.ndarray,
    *,
    kind: str = "linear",
    n_train: int | None = None,
    hidden: int = 256,
    max_iter: int = 2000,
    standardize: bool = True,
    control: bool = True,
    seed: int = 0,
) -> ProbeResult:
    """Fit a probe on some samples and test it on the others.

    Args:
        features: `[sample, row, width]`, finite.
        labels: integers `[sample, row]`.
        kind: "linear" or "mlp".
        n_train: samples to train on, the first ones (they are exchangeable); the others test. None: half.
        hidden: width of the MLP.
        max_iter: iterations at most.
        standardize: divide features by their deviation, after subtracting their mean.
        control: also fit on shuffled labels.
        seed: of the MLP's weights and the shuffling.

    Raises:
        UserError: shapes that do not fit, features that are not finite, fewer than two labels among the training
            rows (there is nothing to tell apart), or no sample to train or test on.
    """
    if features.ndim != 3 or labels.shape != features.shape[:2]:
        raise UserError(
            "probe: expected features [sample, row, width] and labels [sample, row]; got "
            f"{list(features.shape)} and {list(labels.shape)}"
        )
    if not np.isfinite(features).all():
        raise UserError(
            "probe: features hold NaN or infinity (attention scores do, where masked); probe another place"
        )
    if kind not in ("linear", "mlp"):
        raise UserError(f"probe: kind: expected linear or mlp, got {kind!r}")
    n_samples = len(features)
    n_first = n_samples // 2 if n_train is None else n_train
    if not 0 < n_first < n_samples:
        raise UserError(
            f"probe: n_train: expected 1 to {n_samples - 1} of {n_samples} samples, got {n_first}"
        )
    train, test = _flat(features[:n_first]), _flat(features[n_first:])
    own, right = labels[:n_first].ravel(), labels[n_first:].ravel()
    values, counts = np.unique(own, return_counts=True)
    if len(values) < 2:
        raise UserError(f"probe: all training rows have the label {values[0]}; a probe needs at least two")
    if standardize:
        mean, deviation = train.mean(axis=0), train.std(axis=0)
        # A constant feature tells nothing; divided by itself it would be rounding noise blown up.
        deviation[deviation <= 1e-7 * np.abs(mean)] = np.inf
        deviation[deviation == 0] = np.inf
        train, test = (train - mean) / deviation, (test - mean) / deviation
    if kind == "mlp":
        # Fitted in single precision, like the models that are probed: half as long again in double.
        train, test = train.astype(np.float32), test.astype(np.float32)

    probe, converged = _fitted(train, own, kind, hidden, max_iter, seed)
    shuffled = None
    if control:
        order = np.random.default_rng(seed).permutation(len(own))
        shuffled_probe, _ = _fitted(train, own[order], kind, hidden, max_iter, seed)
        shuffled = float((shuffled_probe.predict(test) == right).mean())
    return ProbeResult(
        train_accuracy=float((probe.predict(train) == own).mean()),
        test_accuracy=float((probe.predict(test) == right).mean()),
        shuffled_accuracy=shuffled,
        majority=float((right == values[counts.argmax()]).mean()),
        n_train=len(own),
        n_test=len(right),
        n_labels=len(values),
        converged=converged,
    )


def _flat(features: np.ndarray) -> np.ndarray:
    return features.reshape(-1, features.shape[-1]).astype(np.float64)


def _fitted(
    features: np.ndarray, labels: np.ndarray, kind: str, hidden: int, max_iter: int, seed: int
) -> tuple[Any, bool]:
    # scikit-learn takes a second to import, and only probes need it.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier

    if kind == "linear":
        classifier: Any = LogisticRegression(max_iter=max_iter)
    else:
        classifier = MLPClassifier((hidden,), max_iter=max_iter, random_state=seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        classifier.fit(features, labels)
    if any("interrupted by user" in str(warning.message) for warning in caught):
        # scikit-learn takes Ctrl-C for the end of training; a probe half fitted is no finding.
        raise KeyboardInterrupt
    stopped_early = any(issubclass(warning.category, ConvergenceWarning) for warning in caught)
    for warning in caught:
        if not issubclass(warning.category, ConvergenceWarning):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return classifier, not stopped_early
