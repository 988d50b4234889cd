"""Losses whose learning coefficient is known exactly: to learn what an estimate means, and to test estimators.

At finite nβ and with a pull γ the chains have a known target, the mean of nβ·L under the density

    p(w) ∝ exp(−U(w)),      U = nβ·L(w) + γ‖w‖²/2,

which is what `expected` integrates; it goes to λ only as nβ grows. A finite step ε samples, to first order, from U_ε
instead, which `expected(…, step_size=ε)` integrates:

    U_ε = U − (ε/8)‖∇U‖² + (ε/4) ΔU

For a quadratic loss the stationary law is known at any step: a direction with curvature h and a = nβ·h + γ gives
½·nβ·h / (a (1 − ε·a/4)).

Each toy holds many independent copies in one set of weights, and its loss is their sum, so that a chain gives as many
estimates as there are copies: divide by `copies`.

Source: Watanabe 2009 for λ; the finite values are integrated here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_GRID = 1200
_SMALLEST, _LARGEST = -16.0, 2.5  # ln of the magnitudes that are integrated over


@dataclass(frozen=True, eq=False)
class Toy:
    """A loss with a known learning coefficient at w* = `start`.

    Attributes:
        name: its formula.
        start: w* by name, `[copy, …]`.
        losses: the loss as a function of the weights, summed over copies; takes `losses(weights)`.
        copies: how many there are.
        coefficient: λ, the limit as nβ grows; of one copy.
        expected: `expected(n_beta, localization, step_size=0)`: the mean of nβ·L of one copy.
    """

    name: str
    start: Mapping[str, Tensor]
    losses: Callable[[Mapping[str, Tensor]], Tensor]
    copies: int
    coefficient: float
    expected: Callable[..., float]


def quadratic(curvatures: Sequence[float], copies: int = 1, *, start: float = 0.0) -> Toy:
    """½ Σ h_i (w_i − start)²: λ is half the number of curvatures that are not 0; one of 0 is an unused coordinate."""
    h = torch.tensor(list(curvatures), dtype=torch.float64)

    def losses(weights: Mapping[str, Tensor]) -> Tensor:
        return 0.5 * (h * (weights["w"] - start).square()).sum()

    def expected(n_beta: float, localization: float, step_size: float = 0.0) -> float:
        a = n_beta * h + localization
        return float((0.5 * n_beta * h / (a * (1 - step_size * a / 4))).sum())

    weights = {"w": torch.full((copies, len(h)), start, dtype=torch.float64)}
    coefficient = 0.5 * float((h != 0).sum())
    return Toy("½ Σ h w²", weights, losses, copies, coefficient, expected)


def product_of_powers(first: int, second: int, copies: int = 1) -> Toy:
    """w₁^first · w₂^second, even powers: λ = 1 / the larger power."""

    def losses(weights: Mapping[str, Tensor]) -> Tensor:
        w = weights["w"]
        return (w[:, 0].pow(first) * w[:, 1].pow(second)).sum()

    def terms(x: np.ndarray, y: np.ndarray) -> _Terms:
        loss = x**first * y**second
        return _Terms(
            loss,
            (first * loss / x, second * loss / y),
            first * (first - 1) * loss / x**2 + second * (second - 1) * loss / y**2,
        )

    name = f"w₁^{first} w₂^{second}"
    weights = {"w": torch.zeros(copies, 2, dtype=torch.float64)}
    return Toy(name, weights, losses, copies, 1 / max(first, second), _Integral(terms, (1, 1)))


def sum_of_powers(first: int, second: int, copies: int = 1) -> Toy:
    """w₁^first + w₂^second, even powers: λ = 1/first + 1/second."""

    def losses(weights: Mapping[str, Tensor]) -> Tensor:
        w = weights["w"]
        return (w[:, 0].pow(first) + w[:, 1].pow(second)).sum()

    def terms(x: np.ndarray, y: np.ndarray) -> _Terms:
        return _Terms(
            x**first + y**second,
            (first * x ** (first - 1), second * y ** (second - 1)),
            first * (first - 1) * x ** (first - 2) + second * (second - 1) * y ** (second - 2),
        )

    name = f"w₁^{first} + w₂^{second}"
    weights = {"w": torch.zeros(copies, 2, dtype=torch.float64)}
    return Toy(name, weights, losses, copies, 1 / first + 1 / second, _Integral(terms, (1, 1)))


def linear_network(inputs: int, outputs: int, copies: int = 1, *, rank: int) -> Toy:
    """½‖a bᵀ − C‖², a linear network with one hidden unit and whitened inputs.

    Rank 1: C = a* b*ᵀ with unit vectors, w* = (a*, b*): one direction is flat (a → c·a, b → b/c), so
    λ = (inputs + outputs − 1)/2. Rank 0: C = 0, w* = 0: λ = min(inputs, outputs)/2.
    """
    target = torch.zeros(inputs, outputs, dtype=torch.float64)
    a = torch.zeros(copies, inputs, dtype=torch.float64)
    b = torch.zeros(copies, outputs, dtype=torch.float64)
    if rank == 1:
        target[0, 0], a[:, 0], b[:, 0] = 1.0, 1.0, 1.0
    elif rank != 0:
        raise ValueError(f"rank: expected 0 or 1, got {rank}")

    def losses(weights: Mapping[str, Tensor]) -> Tensor:
        products = weights["a"][:, :, None] * weights["b"][:, None, :]
        return 0.5 * (products - target).square().sum()

    name = f"½‖a bᵀ − C‖², rank {rank}"
    if rank == 1:
        # Exact for the quadratic part at w*: curvature 2 along both at once, 1 in the other directions.
        curvatures = [2.0] + [1.0] * (inputs + outputs - 2)
        near = quadratic(curvatures).expected
        return Toy(name, {"a": a, "b": b}, losses, copies, (inputs + outputs - 1) / 2, near)

    def terms(x: np.ndarray, y: np.ndarray) -> _Terms:  # x = ‖a‖, y = ‖b‖
        return _Terms(0.5 * x**2 * y**2, (x * y**2, x**2 * y), inputs * y**2 + outputs * x**2)

    integral = _Integral(terms, (inputs, outputs))
    return Toy(name, {"a": a, "b": b}, losses, copies, min(inputs, outputs) / 2, integral)


@dataclass(frozen=True)
class _Terms:
    """L, its gradient's two components and its Laplacian, at the points of the grid."""

    loss: np.ndarray
    gradient: tuple[np.ndarray, np.ndarray]
    laplacian: np.ndarray


class _Integral:
    """The mean of nβ·L under U or U_ε, over two magnitudes; each is the norm of that many coordinates."""

    def __init__(self, terms: Callable[[np.ndarray, np.ndarray], _Terms], dimensions: tuple[int, int]):
        self._terms = terms
        self._dimensions = dimensions

    def __call__(self, n_beta: float, localization: float, step_size: float = 0.0) -> float:
        logs = np.linspace(_SMALLEST, _LARGEST, _GRID)
        x, y = np.exp(logs)[:, None], np.exp(logs)[None, :]
        t = self._terms(x, y)
        energy = n_beta * t.loss + 0.5 * localization * (x**2 + y**2)
        slope = [n_beta * g + localization * r for g, r in zip(t.gradient, (x, y), strict=True)]
        bend = n_beta * t.laplacian  # γ adds a constant
        shift = -step_size / 8 * (slope[0] ** 2 + slope[1] ** 2) + step_size / 4 * bend
        # Volume: r^(d − 1) dr = r^d d(ln r).
        volume = self._dimensions[0] * np.log(x) + self._dimensions[1] * np.log(y)
        density = np.exp(volume - energy - np.clip(shift, -0.5 * energy, 0.5 * energy))
        return float(n_beta * (density * t.loss).sum() / density.sum())
