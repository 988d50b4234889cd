"""Probes: how much of a label can be read off a vector by a linear classifier, or by a small MLP.

Plain arrays in, accuracies out. The split is by sample (sequence): all rows of one sequence are on the same side,
so that nothing is learned from rows that share their input. Test samples of a group (equal prompts, say) that is also
trained on can be left out.

Two controls, each drawn several times, with as many parameters and the label frequencies of the training rows:
- shuffled: labels shuffled over the training rows. It should come out at chance.
- control task: a random label for each distinct input of the label function, the same in training and test. What the
  probe reads of it, it has learned by itself. Selectivity is its accuracy on the label minus that on the control task:
  near 0 says that the probe would read any function of those inputs as well.

linear: logistic regression (L2, C = 1, lbfgs); mlp: one hidden layer of ReLUs (Adam, scikit-learn's defaults).
Inputs are standardized with the training rows' mean and deviation, unless `standardize` is off.

Source: Alain & Bengio 2016 (linear probes); Hewitt & Liang 2019 (control tasks); the MLP is that of arXiv 2506.13688.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from mechplateau.errors import UserError
from mechplateau.schema import whole_number


@dataclass(frozen=True)
class ProbeResult:
    """What a probe reads.

    Attributes:
        train_accuracy, test_accuracy: share of rows classified rightly, of samples trained on and of others.
        shuffled_accuracy: test accuracy of the shuffled control, mean over draws; None where it was not requested.
        shuffled_sd: its standard deviation over draws; None with fewer than two.
        control_accuracy, control_sd: the same of the control task; None without `inputs`.
        selectivity: test_accuracy minus control_accuracy; None without.
        majority: test accuracy of always giving the training rows' most frequent label.
        n_train, n_test: rows of each.
        n_labels: different labels in the training rows.
        repeated: share of the test samples whose group is trained on too; they are left out, unless all are.
        converged: whether fitting stopped by itself, not at `max_iter` (of the probe, not the controls).
    """

    train_accuracy: float
    test_accuracy: float
    shuffled_accuracy: float | None
    shuffled_sd: float | None
    control_accuracy: float | None
    control_sd: float | None
    selectivity: float | None
    majority: float
    n_train: int
    n_test: int
    n_labels: int
    repeated: float
    converged: bool


def fit_probe(
    features: np.ndarray,
    labels: np.ndarray,
    *,
    inputs: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    kind: str = "linear",
    n_train: int | None = None,
    hidden: int = 256,
    max_iter: int = 2000,
    standardize: bool = True,
    control: bool = True,
    shuffled: bool = True,
    draws: int = 3,
    seed: int = 0,
) -> ProbeResult:
    """Fit a probe on some samples and test it on the others.

    Args:
        features: `[sample, row, width]`, finite.
        labels: integers `[sample, row]`.
        inputs: integers `[sample, row]`, equal where the label function has equal inputs: for the control task.
        groups: integers `[sample]`; test samples of a group that is trained on are left out.
        kind: "linear" or "mlp".
        n_train: samples to train on, the first ones (they are exchangeable); the others test. None: half.
        hidden: width of the MLP.
        max_iter: iterations at most.
        standardize: divide features by their deviation, after subtracting their mean.
        control: also fit the controls.
        shuffled: of these also the shuffled one; False: only the control task, which spares half of the fits.
        draws: of each control.
        seed: of the MLP's weights and the controls.

    Raises:
        UserError: shapes that do not fit, features that are not finite, fewer than two labels among the training
            rows (there is nothing to distinguish), no sample to train or test on, or a label that is no function of
            its inputs.
    """
    _check(features, labels, inputs, groups, kind)
    for name, number in (("draws", draws), ("hidden", hidden), ("max_iter", max_iter)):
        if whole_number(number, f"probe: {name}") < 1:
            end = " (control=False leaves controls out)" if name == "draws" else ""
            raise UserError(f"probe: {name}: expected at least 1, got {number}{end}")
    n_samples = len(features)
    n_first = n_samples // 2 if n_train is None else n_train
    if not 0 < n_first < n_samples:
        raise UserError(
            f"probe: n_train: expected 1 to {n_samples - 1} of {n_samples} samples, got {n_first}"
        )
    tested, repeated = _tested(groups, n_first, n_samples)
    train, test = _flat(features[:n_first]), _flat(features[tested])
    own, right = labels[:n_first].ravel(), labels[tested].ravel()
    values, counts = np.unique(own, return_counts=True)
    if len(values) < 2:
        raise UserError(f"probe: all training rows have the label {values[0]}; a probe needs at least two")
    if standardize:
        train, test = _standardized(train, test)
    if kind == "mlp":
        # Fitted in single precision, like the models that are probed: half as long again in double.
        train, test = train.astype(np.float32), test.astype(np.float32)

    def accuracy_on(own: np.ndarray, right: np.ndarray) -> float:
        return float((_fitted(train, own, kind, hidden, max_iter, seed)[0].predict(test) == right).mean())

    probe, converged = _fitted(train, own, kind, hidden, max_iter, seed)
    test_accuracy = float((probe.predict(test) == right).mean())
    of_shuffled, controlled = [], []
    for draw in range(draws if control else 0):
        random = np.random.default_rng(seed + draw)
        order = random.permutation(len(own))
        if shuffled:
            of_shuffled.append(accuracy_on(own[order], right))
        if inputs is not None:
            drawn = _control_labels(inputs, own, random)
            controlled.append(accuracy_on(drawn[:n_first].ravel(), drawn[tested].ravel()))
    control_accuracy = _mean(controlled)
    return ProbeResult(
        train_accuracy=float((probe.predict(train) == own).mean()),
        test_accuracy=test_accuracy,
        shuffled_accuracy=_mean(of_shuffled),
        shuffled_sd=_deviation(of_shuffled),
        control_accuracy=control_accuracy,
        control_sd=_deviation(controlled),
        selectivity=None if control_accuracy is None else test_accuracy - control_accuracy,
        majority=float((right == values[counts.argmax()]).mean()),
        n_train=len(own),
        n_test=len(right),
        n_labels=len(values),
        repeated=repeated,
        converged=converged,
    )


def _check(
    features: np.ndarray,
    labels: np.ndarray,
    inputs: np.ndarray | None,
    groups: np.ndarray | None,
    kind: str,
) -> None:
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
    if groups is not None and groups.shape != features.shape[:1]:
        raise UserError(f"probe: groups: expected [{len(features)}], one a sample, got {list(groups.shape)}")
    if inputs is not None:
        if inputs.shape != labels.shape:
            raise UserError(
                f"probe: inputs: expected {list(labels.shape)}, as labels, got {list(inputs.shape)}"
            )
        if not is_function_of(labels, inputs):
            raise UserError(
                "probe: inputs: the label differs where they are equal, so it is no function of them"
            )


def is_function_of(labels: np.ndarray, inputs: np.ndarray) -> bool:
    """Whether equal inputs always have equal labels."""
    pairs = np.unique(np.stack([inputs.ravel(), labels.ravel()], axis=1), axis=0)
    return len(pairs) == len(np.unique(inputs))


def _tested(groups: np.ndarray | None, n_first: int, n_samples: int) -> tuple[np.ndarray, float]:
    """Samples to test on, and the share of those after the training samples whose group is trained on."""
    after = np.arange(n_first, n_samples)
    if groups is None:
        return after, 0.0
    known = np.isin(groups[n_first:], groups[:n_first])
    if known.all():
        warnings.warn(
            "probe: every test sample's prompt is also trained on, so what is read may be remembered: there are too "
            "few different prompts",
            UserWarning,
            stacklevel=3,
        )
        return after, 1.0
    return after[~known], float(known.mean())


def _standardized(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both, less the training samples' mean and divided by their deviation."""
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    # A constant feature has no information; divided by its deviation, only rounding noise would be left.
    deviation[deviation <= 1e-7 * np.abs(mean)] = np.inf
    deviation[deviation == 0] = np.inf
    return (train - mean) / deviation, (test - mean) / deviation


def _control_labels(inputs: np.ndarray, labels: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A random label for each distinct input, as frequent as the labels are (Hewitt & Liang 2019).

    Drawn again where all training rows come out equal, as few distinct inputs may: there would be nothing to fit.
    """
    distinct, index = np.unique(inputs, return_inverse=True)
    while True:
        drawn = random.choice(labels, size=len(distinct))[index.reshape(inputs.shape)]
        if len(np.unique(drawn.ravel()[: len(labels)])) > 1:
            return drawn


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _deviation(values: list[float]) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


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
