"""Measures of in-context regression, and the predictors that a model is compared with, as pure functions.

A context is K pairs (x_k, y_k), k counted from 1, with y_k = w·x_k + noise of variance σ². A prediction of y_k may use
x_k and the pairs before k. B contexts, D numbers an x.

| name | formula | unit |
|---|---|---|
| `ridge_predictions` | ŵ_k·x_k, ŵ_k = (XᵀX + σ²I)⁻¹Xᵀy on the pairs before k | that of y |
| `finite_prior_predictions` | the same with the posterior mean over M known tasks | that of y |
| `squared_errors` | mean over B of (ŷ_k − y_k)², for each k | y² |
| `in_context_gain` | l_b − l_a; below 0 where later pairs are predicted better | y² |
| `prediction_norm` | mean of ŷ² | y² |
| `ridge_gap` | mean of (ŷ − ŷ_ridge)²; the noise of y is not in it | y² |
| `prior_gap` | mean of (ŷ − ŷ_prior)², ŷ_prior the finite prior's answers | y² |
| `task_prior_distance` | mean over B of Σ_k (ŷ_k − t̄·x_k)², t̄ the mean task | y² |

Source: arXiv 2402.02364, section 5.1 and appendix D; Raventós et al. 2023 for the finite prior.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

_ENTRIES_AT_ONCE = 2**24


def ridge_predictions(
    x: Float[Tensor, "batch pairs d"], y: Float[Tensor, "batch pairs"], noise: float
) -> Float[Tensor, "batch pairs"]:
    """What is best on average for tasks w ~ N(0, I): ridge regression on the pairs before, with weight σ².

    Without noise it is the limit, the shortest ŵ that fits the pairs before. Computed in float64.

    Args:
        x, y: the contexts.
        noise: σ², a variance, at least 0.

    Raises:
        ValueError: shapes that do not fit, or a noise below 0.
    """
    _require_contexts("ridge_predictions", x, y)
    if noise < 0:
        raise ValueError(f"ridge_predictions: expected a noise (a variance) of at least 0, got {noise}")
    wide, right = x.double(), y.double()
    products = _before(wide[..., :, None] * wide[..., None, :])
    sides = _before(wide * right[..., None])
    if noise > 0:
        identity = torch.eye(x.shape[-1], dtype=products.dtype, device=x.device)
        weights = torch.linalg.solve(products + noise * identity, sides)
    else:
        weights = (torch.linalg.pinv(products, hermitian=True) @ sides[..., None])[..., 0]
    return (weights * wide).sum(-1).to(x.dtype)


def finite_prior_predictions(
    x: Float[Tensor, "batch pairs d"],
    y: Float[Tensor, "batch pairs"],
    tasks: Float[Tensor, "tasks d"],
    noise: float,
) -> Float[Tensor, "batch pairs"]:
    """What is best on average where w is one of M known tasks, each as likely: their mean, weighted by
    exp(−SSE/2σ²) of the pairs before.

    Computed in blocks of tasks, so that 2^20 of them fit; time grows as B·K·M.

    Args:
        x, y: the contexts.
        tasks: the M tasks.
        noise: σ², a variance, above 0.

    Raises:
        ValueError: shapes that do not fit, no task, or a noise that is not above 0.
    """
    _require_contexts("finite_prior_predictions", x, y)
    if tasks.dim() != 2 or len(tasks) < 1 or tasks.shape[1] != x.shape[2]:
        raise ValueError(
            f"finite_prior_predictions: expected at least one task [tasks, {x.shape[2]}], got {list(tasks.shape)}"
        )
    if noise <= 0:
        raise ValueError(
            f"finite_prior_predictions: expected a noise (a variance) above 0, got {noise}: without noise the weights "
            "of tasks that fit equally well are undefined"
        )
    largest = x.new_full(y.shape, -torch.inf)
    total, weighted = torch.zeros_like(y), torch.zeros_like(y)
    for block in tasks.to(x).split(max(1, _ENTRIES_AT_ONCE // max(1, y.numel()))):
        answers = x @ block.T
        evidence = _before((y[..., None] - answers).square()).div_(-2 * noise)
        peak = torch.maximum(largest, evidence.amax(-1))
        scale = (largest - peak).exp()
        shares = (evidence - peak[..., None]).exp()
        total = total * scale + shares.sum(-1)
        weighted = weighted * scale + (shares * answers).sum(-1)
        largest = peak
    return weighted / total


def squared_errors(
    predictions: Float[Tensor, "batch pairs"], y: Float[Tensor, "batch pairs"]
) -> Float[Tensor, " pairs"]:
    """l_k: mean over contexts of (ŷ_k − y_k)², for each k; their mean is the loss."""
    _require_predictions("squared_errors", predictions, y)
    return (predictions - y).square().mean(0)


def in_context_gain(errors: Float[Tensor, " pairs"], a: int, b: int) -> Float[Tensor, ""] | None:
    """I_{a:b} = l_b − l_a with a and b counted from 1; None where there are fewer pairs.

    Raises:
        ValueError: a or b below 1.
    """
    if a < 1 or b < 1:
        raise ValueError(f"in_context_gain: pairs are counted from 1, got a = {a}, b = {b}")
    return None if max(a, b) > len(errors) else errors[b - 1] - errors[a - 1]


def prediction_norm(predictions: Float[Tensor, "batch pairs"]) -> Float[Tensor, ""]:
    """Mean of ŷ²: near 0 where the model answers 0 to everything."""
    return predictions.square().mean()


def ridge_gap(
    predictions: Float[Tensor, "batch pairs"], ridge: Float[Tensor, "batch pairs"]
) -> Float[Tensor, ""]:
    """Mean of (ŷ − ŷ_ridge)², how far the model is from the best answers."""
    _require_predictions("ridge_gap", predictions, ridge)
    return (predictions - ridge).square().mean()


def prior_gap(
    predictions: Float[Tensor, "batch pairs"], prior: Float[Tensor, "batch pairs"]
) -> Float[Tensor, ""]:
    """Mean of (ŷ − ŷ_prior)², how far the model is from the best answers where the M tasks are known."""
    _require_predictions("prior_gap", predictions, prior)
    return (predictions - prior).square().mean()


def task_prior_distance(
    predictions: Float[Tensor, "batch pairs"],
    x: Float[Tensor, "batch pairs d"],
    mean_task: Float[Tensor, " d"] | None = None,
) -> Float[Tensor, ""]:
    """Mean over contexts of Σ_k (ŷ_k − t̄·x_k)²: how far the model is from always answering with the mean task t̄.

    Args:
        predictions: ŷ.
        x: the contexts' x.
        mean_task: t̄; None: 0, the mean of tasks w ~ N(0, I).
    """
    prior = 0.0 if mean_task is None else x @ mean_task.to(x)
    return (predictions - prior).square().sum(1).mean()


def _before(values: Float[Tensor, "batch pairs *rest"]) -> Float[Tensor, "batch pairs *rest"]:
    """The sum over all earlier pairs; 0 for the first."""
    sums = values.cumsum(1)
    return torch.cat([torch.zeros_like(sums[:, :1]), sums[:, :-1]], dim=1)


def _require_contexts(name: str, x: Tensor, y: Tensor) -> None:
    if x.dim() != 3 or y.shape != x.shape[:2] or not y.numel():
        raise ValueError(
            f"{name}: expected x [batch, pairs, d] and y [batch, pairs], got {list(x.shape)} and {list(y.shape)}"
        )


def _require_predictions(name: str, predictions: Tensor, y: Tensor) -> None:
    if predictions.dim() != 2 or predictions.shape != y.shape or not y.numel():
        raise ValueError(
            f"{name}: expected two tensors [batch, pairs] of one shape, got {list(predictions.shape)} and "
            f"{list(y.shape)}"
        )


__all__ = [
    "finite_prior_predictions",
    "in_context_gain",
    "prediction_norm",
    "ridge_gap",
    "ridge_predictions",
    "squared_errors",
    "task_prior_distance",
]
