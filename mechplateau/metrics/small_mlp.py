"""A classifier with one hidden layer of ReLUs, fitted as scikit-learn's `MLPClassifier` fits it with its defaults.

The same algorithm step by step: first weights, order of batches, L2 of 1e-4, Adam and when it stops, so that a fit
differs from scikit-learn's by rounding alone (a test compares the two). Written here because probes fit thousands of
epochs, of which scikit-learn spends most outside of matrix products: about a third of its time is left.

Cost: an epoch is 4 · rows · hidden · (width + labels) multiplications; some 15 ms for 4,096 rows of width 256 on one
thread, and a few hundred epochs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from mechplateau.errors import UserError

BATCH = 200
DECAY = 1e-4
"""The L2 penalty, divided by the rows of a batch."""
LEARNING_RATE = 1e-3
BETAS = (0.9, 0.999)
EPSILON = 1e-8
TOLERANCE = 1e-4
PATIENCE = 10
"""It stops when the loss has not fallen by the tolerance for more than so many epochs."""


@dataclass(frozen=True)
class SmallMLP:
    """A fitted classifier.

    Attributes:
        weights: `[width, hidden]` and `[hidden, out]`; out is 1 for two labels, else the number of labels.
        biases: `[hidden]` and `[out]`.
        labels: what the outputs stand for, sorted.
        epochs: how many it was fitted for.
        converged: whether it stopped by itself, not at `max_iter`.
    """

    weights: tuple[Tensor, Tensor]
    biases: tuple[Tensor, Tensor]
    labels: np.ndarray
    epochs: int
    converged: bool

    def predict(self, features: np.ndarray) -> np.ndarray:
        """The label of each row of `[row, width]`."""
        outputs = _outputs(torch.from_numpy(features), self.weights, self.biases)
        if len(self.labels) == 2:
            return self.labels[(outputs[:, 0] > 0.5).int().numpy()]
        return self.labels[outputs.argmax(dim=1).numpy()]


@torch.no_grad()
def fit_small_mlp(
    features: np.ndarray, labels: np.ndarray, *, hidden: int = 256, max_iter: int = 2000, seed: int = 0
) -> SmallMLP:
    """Fit to some rows.

    Args:
        features: float32 `[row, width]`, standardized as a rule.
        labels: integers `[row]`, at least two different ones.
        hidden: ReLUs.
        max_iter: epochs at most.
        seed: of the first weights and of the order of rows.

    Raises:
        UserError: the weights became NaN or infinite.
    """
    random = np.random.RandomState(seed)
    names, classes = np.unique(labels, return_inverse=True)
    # Two labels have one output, as a logistic regression has.
    given = torch.from_numpy(np.eye(len(names), dtype=np.float32)[classes])
    given = given[:, 1:] if len(names) == 2 else given
    rows = torch.from_numpy(features)
    net = _Net(random, (rows.shape[1], hidden, given.shape[1]))
    order = np.arange(len(rows))
    # Filled anew each epoch: fresh memory of this size would cost as much as the products.
    x, y = torch.empty_like(rows), torch.empty_like(given)
    best, waited, epochs, converged = np.inf, 0, 0, False
    while epochs < max_iter and not converged:
        order = order[_shuffled(random, len(rows))]
        chosen = torch.from_numpy(order)
        loss = _epoch(
            torch.index_select(rows, 0, chosen, out=x), torch.index_select(given, 0, chosen, out=y), net
        )
        epochs += 1
        waited = waited + 1 if loss > best - TOLERANCE else 0
        best = min(best, loss)
        converged = waited > PATIENCE
    if not bool(torch.isfinite(net.all).all()):
        raise UserError(
            "probe: the MLP's weights became NaN or infinite: features are too large; leave standardize on"
        )
    return SmallMLP(net.weights, net.biases, names, epochs, converged)


class _Net:
    """Weights that are parts of one vector, so that a step of Adam is one call."""

    def __init__(self, random: np.random.RandomState, sizes: tuple[int, int, int]) -> None:
        width, hidden, out = sizes
        layers = [_first(random, width, hidden), _first(random, hidden, out)]
        self._shapes = [(width, hidden), (hidden,), (hidden, out), (out,)]
        self.all = torch.cat([part.flatten() for layer in layers for part in layer])
        self.all.grad = torch.zeros_like(self.all)
        self.weights, self.biases = self._parts(self.all)
        self._weight_slopes, self._bias_slopes = self._parts(self.all.grad)
        self.hidden, self.delta = torch.empty(2, BATCH, hidden).unbind()
        self._adam = torch.optim.Adam([self.all], lr=LEARNING_RATE, betas=BETAS, fused=True)
        self._steps = 0

    def _parts(self, vector: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        split = vector.split([prod(shape) for shape in self._shapes])
        first, bias, second, other = (
            part.view(shape) for part, shape in zip(split, self._shapes, strict=True)
        )
        return (first, second), (bias, other)

    def slope(self, layer: int, seen: Tensor, delta: Tensor) -> None:
        """Note the slopes of one layer, from what it saw and how the loss changes with what it gave."""
        w, n = self.weights[layer], len(seen)
        torch.addmm(w, seen.T, delta, beta=DECAY / n, alpha=1 / n, out=self._weight_slopes[layer])
        torch.sum(delta, 0, out=self._bias_slopes[layer]).div_(n)

    def step(self) -> None:
        """Along the slopes. scikit-learn adds ε before it corrects the second moment's bias, torch after."""
        self._steps += 1
        self._adam.param_groups[0]["eps"] = EPSILON / (1 - BETAS[1] ** self._steps) ** 0.5
        self._adam.step()


def _epoch(rows: Tensor, given: Tensor, net: _Net) -> float:
    """One step a batch; returns the mean loss of a row, with the penalty, each batch's before its step."""
    total = 0.0
    for x, y in zip(rows.split(BATCH), given.split(BATCH), strict=True):
        hidden, delta = net.hidden[: len(x)], net.delta[: len(x)]
        p = _outputs(x, net.weights, net.biases, hidden)
        squares = sum(float(w.flatten().dot(w.flatten())) for w in net.weights)
        total += float(_loss(p, y)) + 0.5 * DECAY * squares
        net.slope(1, hidden, p.sub_(y))
        torch.mm(p, net.weights[1].T, out=delta)
        net.slope(0, x, delta.mul_(hidden.sign_()))  # sign: the slope of a ReLU
        net.step()
    return total / len(rows)


def _outputs(
    rows: Tensor, weights: tuple[Tensor, Tensor], biases: tuple[Tensor, Tensor], hidden: Tensor | None = None
) -> Tensor:
    """The probabilities of each row; what the ReLUs give comes to `hidden`."""
    hidden = torch.addmm(biases[0], rows, weights[0], out=hidden).relu_()
    raw = torch.addmm(biases[1], hidden, weights[1])
    return raw.sigmoid_() if raw.shape[1] == 1 else raw.softmax(dim=1)


def _loss(p: Tensor, y: Tensor) -> Tensor:
    """The sum of −log p of the right labels; p is cut off where its logarithm would be infinite."""
    smallest = torch.finfo(p.dtype).eps
    p = p.clamp(smallest, 1 - smallest)
    found = y * p.log()
    return -(found + (1 - y) * (1 - p).log() if p.shape[1] == 1 else found).sum()


def _first(random: np.random.RandomState, fan_in: int, fan_out: int) -> tuple[Tensor, Tensor]:
    """The first weights and biases (Glorot and Bengio 2010)."""
    bound = np.sqrt(6.0 / (fan_in + fan_out))
    weights = random.uniform(-bound, bound, (fan_in, fan_out)).astype(np.float32)
    biases = random.uniform(-bound, bound, fan_out).astype(np.float32)
    return torch.from_numpy(weights), torch.from_numpy(biases)


def _shuffled(random: np.random.RandomState, n: int) -> np.ndarray:
    order = np.arange(n)
    random.shuffle(order)
    return order


__all__ = ["SmallMLP", "fit_small_mlp"]
