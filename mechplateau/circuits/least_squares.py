"""Linear probes of numbers: least squares without intercept, fitted on some matrices and tested on others.

Examples and positions are pooled. Cost: one factorization of a `[row, width]` matrix.

Source: arXiv 2410.22244, section 4 (element, row and singular-vector probes).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechplateau.errors import UserError


@dataclass(frozen=True)
class Fit:
    """How well a linear map reads a target off a vector, on data it was not fitted to.

    Attributes:
        error: mean squared error of an entry of the target.
        baseline: that of always giving 0.
        cosine: mean |cosine| of a row's prediction and its target; None for a target of one number.
        n_train, n_test: rows.
    """

    error: float
    baseline: float
    cosine: float | None
    n_train: int
    n_test: int


def least_squares(
    train: Float[Tensor, "train width"],
    train_targets: Float[Tensor, "train out"],
    test: Float[Tensor, "test width"],
    test_targets: Float[Tensor, "test out"],
) -> Fit:
    """Fit target ≈ W · x on the training rows, and look at the test rows. In float64.

    Raises:
        UserError: no rows, rows of different widths, or numbers that are not finite.
    """
    given = (train, train_targets, test, test_targets)
    if min(len(train), len(test)) < 1 or len(train) != len(train_targets) or len(test) != len(test_targets):
        raise UserError(
            f"probe: expected as many targets as rows and at least one, got {[len(part) for part in given]}"
        )
    x, y, x_test, y_test = (part.double() for part in given)
    if not all(bool(torch.isfinite(part).all()) for part in (x, y, x_test, y_test)):
        raise UserError("probe: expected finite numbers, got NaN or infinity")
    # The minimum-norm solution, also where features depend on each other.
    weights = (
        torch.linalg.lstsq(x, y, driver="gelsd").solution
        if x.device.type == "cpu"
        else torch.linalg.pinv(x) @ y
    )
    predicted = x_test @ weights
    cosine = None
    if y.shape[1] > 1:
        cosine = float(torch.nn.functional.cosine_similarity(predicted, y_test, dim=1).abs().mean())
    return Fit(
        error=float((predicted - y_test).square().mean()),
        baseline=float(y_test.square().mean()),
        cosine=cosine,
        n_train=len(x),
        n_test=len(x_test),
    )


def pooled(
    values: Float[Tensor, "batch pos width"], chosen: Bool[Tensor, "batch pos"] | None = None
) -> Float[Tensor, "row width"]:
    """Examples and positions as rows, only the chosen ones where a mask is given."""
    return values.flatten(0, 1) if chosen is None else values[chosen]


__all__ = ["Fit", "least_squares", "pooled"]
