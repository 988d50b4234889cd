"""Low-rank matrices as tokens: what the tasks of matrix completion share. Pure functions and value objects.

Cells are numbered row by row: cell p = i · n + j lies in row i and column j. Token 0 is MASK. A value v is a whole
number of steps of 1/q, and its token is 1 + q · (v + value_max).

Source: arXiv 2410.22244, section 2 and appendix A.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechplateau.errors import ConfigError, UserError

MASK = 0
"""The token of a masked cell."""

Factors = Literal["uniform", "gaussian", "laplace", "signed_grid"]


@dataclass(frozen=True)
class Grid:
    """The values that have a token: −value_max … value_max in steps of 1/q.

    Attributes:
        q: steps in 1.
        value_max: the largest value, in whole numbers.
    """

    q: int
    value_max: int

    @property
    def n_values(self) -> int:
        """How many values there are; their tokens are 1 … n_values."""
        return 2 * self.value_max * self.q + 1

    def token(self, value: float) -> int:
        """The token of the value nearest to this one.

        Raises:
            UserError: a value off the range, or no number.
        """
        if not math.isfinite(value) or abs(round(value * self.q)) > self.value_max * self.q:
            raise UserError(f"value: expected one from {-self.value_max} to {self.value_max}, got {value}")
        return 1 + round(value * self.q) + self.value_max * self.q

    def values(self, device: torch.device | str = "cpu") -> Float[Tensor, " n_values_and_mask"]:
        """The value of each token, `[1 + n_values]`, float32; MASK's is 0."""
        steps = torch.arange(self.n_values, device=device) - self.value_max * self.q
        return torch.cat([torch.zeros(1, device=device), steps.float() / self.q])

    def rounded(
        self, matrices: Float[Tensor, "batch cell"], check: bool
    ) -> tuple[Int[Tensor, "batch cell"], Float[Tensor, "batch cell"]]:
        """Tokens and values of these numbers, each rounded to the nearest step (halves to the even one).

        Args:
            matrices: numbers.
            check: whether some may be off the range. Looking waits for the device.

        Raises:
            ConfigError: a number off the range; it is never clamped.
        """
        steps = torch.round(matrices * self.q).long()
        limit = self.value_max * self.q
        if check and bool((steps.abs() > limit).any()):
            worst = float(steps.abs().max()) / self.q
            raise ConfigError(
                f"task.value_max: expected values from {-self.value_max} to {self.value_max}, and a cell of {worst:g} "
                "came up; give a larger value_max or smaller factors"
            )
        return steps + (1 + limit), steps.float() / self.q


def factor(
    kind: Factors,
    shape: tuple[int, ...],
    scale: float,
    k: int,
    generator: torch.Generator,
    device: torch.device,
) -> Float[Tensor, ...]:
    """One factor of X = UVᵀ, independent entries.

    uniform: U[−1, 1]. gaussian: scale · N(0, 1). laplace: scale · Laplace(0, 1). signed_grid: ± a / k, with a uniform
    on 1 … k.
    """
    if kind == "gaussian":
        return scale * torch.randn(shape, generator=generator, device=device)
    if kind == "signed_grid":
        # One draw for size and sign: 1 … k with either sign, and no zero.
        drawn = torch.randint(0, 2 * k, shape, generator=generator, device=device)
        return torch.where(drawn < k, drawn + 1, k - 1 - drawn) / k
    uniform = torch.rand(shape, generator=generator, device=device)
    if kind == "uniform":
        return 2 * uniform - 1
    sign = 2 * torch.randint(0, 2, shape, generator=generator, device=device) - 1
    return -scale * sign * torch.log1p(-uniform)  # never log(0): the uniform number is below 1


def factor_square(kind: Factors, scale: float, k: int) -> float:
    """E u² of one entry of a factor, before any rounding."""
    return {
        "uniform": 1 / 3,
        "gaussian": scale**2,
        "laplace": 2 * scale**2,
        "signed_grid": (k + 1) * (2 * k + 1) / (6 * k**2),
    }[kind]


def largest_factor(kind: Factors) -> float | None:
    """The largest |u| that a factor can hold; None where there is no largest."""
    return 1.0 if kind in ("uniform", "signed_grid") else None


def same_row(m: int, n: int, device: torch.device | str = "cpu") -> Bool[Tensor, "cell cell"]:
    """Which cells lie in one row, a cell and itself left out: `[m · n, m · n]`."""
    row = torch.arange(m, device=device).repeat_interleave(n)
    return (row[:, None] == row) & ~torch.eye(m * n, dtype=torch.bool, device=device)


def same_column(m: int, n: int, device: torch.device | str = "cpu") -> Bool[Tensor, "cell cell"]:
    """Which cells lie in one column, a cell and itself left out: `[m · n, m · n]`."""
    column = torch.arange(n, device=device).repeat(m)
    return (column[:, None] == column) & ~torch.eye(m * n, dtype=torch.bool, device=device)


def neighbors(observed: Bool[Tensor, "batch cell"], m: int, n: int) -> Bool[Tensor, "batch cell cell"]:
    """Ω: for each query, the observed cells of its row and of its column, itself left out.

    Args:
        observed: whether a cell is observed.
        m, n: rows and columns.

    Returns:
        `[batch, query, key]`, for observed and masked queries alike.
    """
    cross = same_row(m, n, observed.device) | same_column(m, n, observed.device)
    return cross & observed[:, None, :]


def identifiable(
    targets: Float[Tensor, "batch cell"], observed: Bool[Tensor, "batch cell"], m: int, n: int
) -> Bool[Tensor, "batch cell"]:
    """Which cells of a matrix of rank exactly 1 its observed cells determine.

    Cell (i, j) is determined where row i and column j are connected in the graph whose edges are the observed cells
    that are not 0: along a path, x_ij is a product of quotients. Rounding is not looked at.

    Args:
        targets: the matrices.
        observed: whether a cell is observed.
        m, n: rows and columns.
    """
    edges = (observed & (targets != 0)).view(-1, m, n).float()
    # Walks from rows to rows, doubled in length until every path is covered.
    rows = ((edges @ edges.mT) + torch.eye(m, device=edges.device) > 0).float()
    for _ in range(max(m, n).bit_length()):
        rows = (rows @ rows > 0).float()
    return ((rows @ edges) > 0).flatten(1)


def require_sizes(sizes: Iterable[int], what: str) -> tuple[int, ...]:
    """Sizes of square matrices that are mixed.

    Raises:
        ValueError: fewer than two different ones, or one below 1.
    """
    given = tuple(sizes)
    if len(set(given)) != len(given) or len(given) < 2 or min(given) < 1:
        raise ValueError(
            f"{what}: expected at least two different sizes of 1 or more (or none), got {list(given)}"
        )
    return given


__all__ = [
    "MASK",
    "Factors",
    "Grid",
    "factor",
    "factor_square",
    "identifiable",
    "largest_factor",
    "neighbors",
    "require_sizes",
    "same_column",
    "same_row",
]
