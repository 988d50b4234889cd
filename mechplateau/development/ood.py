"""How a regression model does on inputs or tasks of another size than it was trained on.

x or w is multiplied by g, so that its covariance is g² (the "scale" of arXiv 2402.02364 is g²). y follows from them.
The errors of two sizes cannot be compared as they are, so they are also given over g² and over E[y²] (1: no better
than answering 0). Source: arXiv 2402.02364, appendix D.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from mechplateau.errors import UserError
from mechplateau.tasks.in_context_regression import InContextRegression, RegressionBatch, context_of

FACTORS = (3, 5, 10, 100)
"""The paper's g."""


def scaled(batch: RegressionBatch, what: Literal["inputs", "tasks"], g: float) -> RegressionBatch:
    """These contexts with x (inputs) or w (tasks) multiplied by g, and the same noise of y."""
    clean = (batch.x @ batch.w[..., None])[..., 0]
    noise = batch.targets - clean
    x, w = (batch.x * g, batch.w) if what == "inputs" else (batch.x, batch.w * g)
    return context_of(w, x, g * clean + noise)


@torch.no_grad()
def out_of_distribution(
    model: nn.Module,
    task: InContextRegression,
    *,
    factors: Sequence[float] = FACTORS,
    contexts: int = 8192,
    seed: int = 0,
) -> dict[str, float]:
    """Errors on inputs and on tasks of other sizes.

    Returns:
        for each g: `ood_{inputs or tasks}_x{g}`, the error; with `_per_g2` over g², with `_per_y2` over the mean of y².

    Raises:
        UserError: a factor that is not above 0.
    """
    if not all(g > 0 for g in factors):
        raise UserError(f"factors: expected numbers above 0, got {list(factors)}")
    device = next(model.parameters()).device
    batch = task.batch(contexts, seed=seed).to(device)
    assert isinstance(batch, RegressionBatch)
    values = {}
    for what in ("inputs", "tasks"):
        for g in factors:
            changed = scaled(batch, what, g)
            found = torch.cat([model(inputs) for inputs in changed.inputs.split(512)])
            error = float((found - changed.targets).square().mean())
            name = f"ood_{what}_x{g:g}"
            values[name] = error
            values[f"{name}_per_g2"] = error / g**2
            values[f"{name}_per_y2"] = error / float(changed.targets.square().mean())
    return values


__all__ = ["FACTORS", "out_of_distribution", "scaled"]
