"""The whole analysis of one set of weights in one call: chains, a second set at 2nβ, the step check, the verdict."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mechplateau.development.curvature import hessian
from mechplateau.development.data import Batches, Fresh, as_batches
from mechplateau.development.estimator import Estimate, estimate_from, stability_of
from mechplateau.development.sgld import sample
from mechplateau.development.traces import AllChainsLost, Sampling
from mechplateau.development.verdicts import STEP_LIMIT
from mechplateau.development.weights import Losses, Model, Parts
from mechplateau.errors import UserError
from mechplateau.objectives import Batch
from mechplateau.progress import Progress, bars, part_of
from mechplateau.tasks import TaskBase


class StepSizeWarning(UserWarning):
    """The step is too large for the stiffest direction at w*."""


def llc(
    model: Model,
    losses: Losses | TaskBase,
    data: Batches | Sequence[Any] | None = None,
    *,
    step_size: float,
    n_beta: float | None = None,
    localization: float = 1.0,
    chains: int = 4,
    draws: int = 200,
    burn_in: int = 0,
    seed: int = 0,
    batch_size: int = 256,
    trivial_loss: float | None = None,
    elasticity: bool = True,
    step_check: bool = True,
    h_max: float | None = None,
    parts: Parts | None = None,
    paired: bool = True,
    stacked: bool | None = None,
    chains_at_once: int | None = None,
    progress: Progress | str | None = None,
) -> Estimate:
    """The local learning coefficient at a model's weights, with its verdict.

        estimate = llc(model, losses, Rows(tokens, batch_size=256), step_size=1e-5, localization=100.0,
                       trivial_loss=math.log(vocab))
        print(estimate.llc, estimate.verdict, estimate.reason)
        estimate = llc(run.model("during"), run.task, step_size=1e-5, n_beta=1000.0, localization=100.0)

    Args:
        model: a module, or parameters by name. It is as before afterwards, mode, hooks and device included.
        losses: a task, whose objective, data and trivial loss are taken; or `losses(model, batch)` → a tensor whose
            mean is the loss; `losses(model)` where `data` is None.
        data: `Rows`, `Fresh`, a list of batches (of the task's), or None: with a task, fresh ones.
        step_size, localization: ε and γ.
        n_beta: nβ; None: n / ln n, with the data's n.
        chains, draws, burn_in, seed: as in `Sampling`.
        batch_size: samples a batch of a task's own data.
        trivial_loss: the loss of a model that does not look at its input; `math.inf`: there is none. Without it no
            estimate is called local; None: the task's.
        elasticity: sample a second set of chains at 2nβ, which costs as much again. It keeps ε, so that its own
            ε(nβ·h_max + γ) is twice as large.
        step_check: measure h_max and warn where ε(nβ·h_max + γ) ≥ 0.4; about 20 Hessian-vector products.
        h_max: the largest eigenvalue of the Hessian, where it is known.
        parts: which weights move; None: all that are not frozen.
        paired, stacked, chains_at_once: as for `sample`.
        progress: makes a bar of chain steps of both sets, as tqdm does (`mechplateau.progress`); "stderr": tqdm's own;
            None: silent.

    Returns:
        The estimate. The same seed gives the same bits.

    Raises:
        UserError: settings, data or parts that make no sense.
        AllChainsLost: every chain went to infinity.
    """
    if isinstance(losses, TaskBase):
        task, losses = losses, task_losses(losses)
        trivial_loss = task.trivial_loss if trivial_loss is None else trivial_loss
        data = fresh_of(task, batch_size, seed) if data is None else data
    batches = as_batches(data)
    sampling = Sampling(
        step_size=step_size,
        n_beta=default_n_beta(batches.n) if n_beta is None else n_beta,
        localization=localization,
        chains=chains,
        draws=draws,
        burn_in=burn_in,
        seed=seed,
    )
    if step_check and h_max is None:
        h_max = hessian(model, losses, batches, top=1, probes=0, parts=parts, tolerance=1e-2).eigenvalues[0]
    if h_max is not None:
        _warn_of_large_steps(sampling, h_max)
    sets = 2 if elasticity else 1
    how: dict[str, Any] = {
        "parts": parts, "paired": paired, "stacked": stacked, "chains_at_once": chains_at_once
    }  # fmt: skip
    doubled, lost = None, False
    with closing(bars(progress)(total=sets * sampling.chains * sampling.steps, desc="chain steps")) as bar:
        trace = sample(model, losses, batches, sampling, **how, progress=part_of(bar))
        if elasticity:
            try:
                twice = dataclasses.replace(sampling, n_beta=2 * sampling.n_beta)
                doubled = sample(model, losses, batches, twice, **how, same=trace, progress=part_of(bar))
            except AllChainsLost:
                lost = True  # the estimate stays as it is, without an elasticity
    return estimate_from(trace, trivial_loss=trivial_loss, doubled=doubled, doubled_lost=lost, h_max=h_max)


def task_losses(task: TaskBase) -> Losses:
    """`losses(model, batch)` of a task: each entry's loss, times its weight where entries count differently."""
    objective = task.objective

    def losses(model: Any, batch: Any) -> Tensor:
        outputs = model(batch.inputs)
        each, weights = objective.losses(outputs, batch), objective.weights(batch)
        # The mean of what is returned is the objective's weighted mean.
        return each if weights is None else each * (weights * (weights.numel() / weights.sum()))

    return losses


def fresh_of(task: TaskBase, batch_size: int, seed: int) -> Fresh:
    """A task's data, new at every step."""
    return Fresh(partial(_made, task), batch_size, seed=seed)


def _made(task: TaskBase, n: int, generator: torch.Generator) -> Batch:
    return task.batch(n, generator)


def default_n_beta(n: int | None) -> float:
    """nβ = n / ln n (β = 1 / ln n, Watanabe 2013).

    Raises:
        UserError: no n, or one without a β.
    """
    if n is None:
        raise UserError(
            "n_beta: expected a number, since these data have no n; give n_beta, or Fresh(…, n=…) to say what n means"
        )
    if n < 2:
        raise UserError(f"n_beta: expected at least 2 rows for n / ln n, got {n}; give n_beta")
    return n / math.log(n)


def _warn_of_large_steps(sampling: Sampling, h_max: float) -> None:
    stability = stability_of(sampling, h_max)
    if stability >= STEP_LIMIT:
        warnings.warn(
            f"step_size (n_beta h_max + localization) = {stability:.3g}, which should be below {STEP_LIMIT} "
            f"(h_max {h_max:.3g}): estimates come out too high, and from 4 on chains are lost",
            StepSizeWarning,
            stacklevel=3,
        )
