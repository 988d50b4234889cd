"""Linear regression in context: every context has a task of its own, to be found from the pairs before."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from mechplateau.metrics.regression import finite_prior_predictions, ridge_predictions
from mechplateau.objectives import Batch, Objective, SquaredError
from mechplateau.tasks.base import TaskBase, register_task


def _one_cycle(steps: int, lr: float) -> dict[str, Any]:
    """The paper's schedule, from a rate of nearly 0 up to `lr` at half of the steps and down again."""
    factor = steps / 2 - 1
    return {
        "steps": steps,
        "lr": lr,
        "schedule": "one_cycle",
        "pct_start": 0.5,
        "div_factor": factor,
        "final_div_factor": factor,
    }


_CHAINS = {"batch_size": 256, "chains": 2, "draws": 150, "burn_in": 150}


@dataclass(frozen=True, eq=False)
class RegressionBatch(Batch):
    """Contexts of K pairs.

    Attributes:
        inputs: real-valued tokens `[batch, 2K, D + 1]`: (0, x_k) at 2k − 2 and (y_k, 0 … 0) at 2k − 1, k from 1.
        targets: y `[batch, K]`.
        w: the contexts' tasks `[batch, D]`.
    """

    w: Float[Tensor, "batch d"]

    @property
    def x(self) -> Float[Tensor, "batch pairs d"]:
        """The contexts' x, a view."""
        return self.inputs[:, ::2, 1:]


@register_task
class InContextRegression(TaskBase):
    """K pairs (x_k, y_k) with y_k = w·x_k + noise; the model predicts each y_k from x_k and the pairs before.

    w and x are N(0, I_D), the noise N(0, σ²). With `n_tasks`, w is one of so many tasks, drawn once. The loss is the
    mean of (ŷ_k − y_k)² over contexts and k, the first pair included.

    Source: arXiv 2402.02364, section 3.2.
    """

    name: Literal["in_context_regression"] = "in_context_regression"
    d: int = Field(4, ge=1, le=2**12)
    """D, numbers an x."""
    n_pairs: int = Field(8, ge=1, le=2**12)
    """K, pairs a context."""
    noise: float = Field(0.125, ge=0)
    """σ², the variance of the noise of y."""
    n_tasks: int | None = Field(None, ge=1, le=2**20)
    """M, how many tasks there are; null: a new one for every context."""
    tasks_seed: int = Field(0, ge=0, lt=2**63)
    """Seed of the M tasks, which are the same in all runs."""

    words: ClassVar = "In-context regression"
    title_fields: ClassVar = ("d", "n_pairs")
    model_kinds: ClassVar = ("regressor",)
    default_training: ClassVar = {"optimizer": "adam", "lr": 0.003, "batch_size": 256}
    default_evaluation: ClassVar = {"at": "checkpoints", "samples": 2048}
    presets: ClassVar = {
        "lr-true": {
            "training": _one_cycle(500_000, 0.003),
            "checkpoints": {"log_spaced": 100, "linear_spaced": 100, "rounding": "down"},
        },
        "lr-fast": {
            "training": {**_one_cycle(62_500, 0.024), "batch_size": 128, "stop_at": 3000},
            "checkpoints": {"log_spaced": 60},
        },
    }
    """lr-true: the paper's schedule, whose 190 checkpoints are the released curves' steps; about 35 ms a step on one
    thread, so give training.stop_at (12221: seven minutes) or run it on a GPU. lr-fast: eight times the rate on an
    eighth of the steps, so that step s is about the paper's 8s: about a minute, the first two stages only."""

    llc_settings: ClassVar = {
        "published": {"step_size": 3e-4, "n_beta": 66.667, "localization": 6.67, **_CHAINS},
        "local": {"step_size": 1e-5, "n_beta": 1000.0, "localization": 1000.0, **_CHAINS},
    }
    """published: the paper's, with fewer and shorter chains. They leave the neighborhood of w*, and the verdict says
    so. local: chains that stay near w*. Still coarse."""

    @property
    def objective(self) -> Objective:
        return SquaredError()

    @property
    def measurement_names(self) -> tuple[str, ...]:
        return ("loss", "regression_predictions", "regression_weights", "regression_attention")

    @property
    def trivial_loss(self) -> float:
        """That of answering 0 to everything: D + σ², or with M tasks their mean square and σ²."""
        if self.n_tasks is None:
            return self.d + self.noise
        return float(self.tasks().square().sum(1).mean()) + self.noise

    @property
    def n_ctx(self) -> int:
        """Tokens a context, 2K."""
        return 2 * self.n_pairs

    @property
    def d_token(self) -> int:
        """Numbers a token, D + 1."""
        return self.d + 1

    def tasks(self, device: str | torch.device = "cpu") -> Float[Tensor, "tasks d"]:
        """The M tasks.

        Raises:
            ValueError: every context has a new one.
        """
        if self.n_tasks is None:
            raise ValueError("tasks: n_tasks is null, so that every context has a new task")
        return _tasks(self.n_tasks, self.d, self.tasks_seed).to(device)

    def ridge(self, batch: RegressionBatch) -> Float[Tensor, "batch pairs"]:
        """The best predictions for new tasks, see `mechplateau.metrics.regression`."""
        return ridge_predictions(batch.x, batch.targets, self.noise)

    def finite_prior(self, batch: RegressionBatch) -> Float[Tensor, "batch pairs"] | None:
        """The best predictions for M known tasks; None where there are not M of them, or no noise to weigh them by."""
        if self.n_tasks is None or self.noise == 0:
            return None
        return finite_prior_predictions(batch.x, batch.targets, self.tasks(batch.inputs.device), self.noise)

    def evaluation_batch(
        self, n: int, generator: torch.Generator | None = None, device: str | torch.device = "cpu"
    ) -> RegressionBatch:
        """A fixed set of contexts, the same at every step of every run of this task."""
        batch = self.batch(n, torch.Generator().manual_seed(_EVALUATION_SEED))
        assert isinstance(batch, RegressionBatch)
        return batch.to(device)

    def _batch(self, n: int, generator: torch.Generator, device: torch.device) -> RegressionBatch:
        if self.n_tasks is None:
            w = torch.randn(n, self.d, generator=generator, device=device)
        else:
            chosen = torch.randint(self.n_tasks, (n,), generator=generator, device=device)
            w = self.tasks(device)[chosen]
        x = torch.randn(n, self.n_pairs, self.d, generator=generator, device=device)
        noise = torch.randn(n, self.n_pairs, generator=generator, device=device)
        return context_of(w, x, (x @ w[..., None])[..., 0] + math.sqrt(self.noise) * noise)


def context_of(
    w: Float[Tensor, "batch d"], x: Float[Tensor, "batch pairs d"], y: Float[Tensor, "batch pairs"]
) -> RegressionBatch:
    """Contexts of these pairs, as tokens."""
    tokens = x.new_zeros(len(x), 2 * x.shape[1], x.shape[2] + 1)
    tokens[:, ::2, 1:] = x
    tokens[:, 1::2, 0] = y
    return RegressionBatch(tokens, y, w)


_EVALUATION_SEED = 20_240_202


@lru_cache(maxsize=4)
def _tasks(n: int, d: int, seed: int) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


__all__ = ["InContextRegression", "RegressionBatch", "context_of"]
