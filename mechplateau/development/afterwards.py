"""What is too dear to measure while a run trains, made afterwards over its checkpoints: a second table of the run.

1. Out-of-distribution errors, for regression (`mechplateau.development.ood`).
2. Curvature: the largest eigenvalues of the Hessian and its trace, on one batch.
3. The local learning coefficient, with its verdict. A λ̂ is never given without it.

The table lies in the run's folder, one row a checkpoint and setting. It is saved after every row, so that what was
interrupted goes on, and rows that are there already are not made again.

Cost, for the regression model on one thread: seconds for 1, half a minute for 2, about 45 seconds a checkpoint for 3.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from torch import Tensor, nn

from mechplateau.development.curvature import hessian
from mechplateau.development.data import Fresh
from mechplateau.development.estimator import Estimate
from mechplateau.development.learning_coefficient import StepSizeWarning, llc
from mechplateau.development.ood import out_of_distribution
from mechplateau.errors import UserError
from mechplateau.runs.files import write_atomic
from mechplateau.tasks.in_context_regression import InContextRegression
from mechplateau.tasks.text import Text

if TYPE_CHECKING:
    from mechplateau.runs import Run
    from mechplateau.tasks.base import TaskBase

TABLE = "development.parquet"
"""The second table's name in a run's folder."""

KINDS = ("ood", "curvature", "llc")


@dataclass(frozen=True)
class ChainSettings:
    """How chains are sampled, see `mechplateau.development.llc`."""

    name: str
    step_size: float
    n_beta: float
    localization: float
    chains: int = 2
    draws: int = 150
    burn_in: int = 150
    batch_size: int = 256


PUBLISHED_LR = ChainSettings("published", step_size=3e-4, n_beta=66.667, localization=6.67)
"""The paper's settings for regression, with fewer and shorter chains. They leave the neighborhood of w*."""
LOCAL_LR = ChainSettings("local", step_size=1e-5, n_beta=1000.0, localization=1000.0)
"""Chains that stay near w*; still coarse."""
PUBLISHED_LM = ChainSettings("published", step_size=1e-3, n_beta=21.7, localization=100.0, batch_size=100)
"""The paper's settings for language models of two layers, with fewer and shorter chains."""


def afterwards(
    run: Run,
    *,
    kinds: Sequence[str] = KINDS,
    steps: Sequence[int] | None = None,
    chains: ChainSettings | None = None,
    seed: int = 0,
    progress: Callable[[int, str], None] | None = None,
) -> pd.DataFrame:
    """Make the second table of a run, or the part of it that is missing.

    Args:
        run: a run of regression in context or of text, with checkpoints.
        kinds: what to measure; out-of-distribution errors are of regression only.
        steps: kept steps; None: all.
        chains: settings of the learning coefficient; None: the paper's.
        seed: of the data, the probes and the chains; the same at every checkpoint.
        progress: called with the step and what is being measured.

    Returns:
        columns step, kind, settings (their name, or empty), then what was measured; NaN where a row has no such number.

    Raises:
        UserError: an unknown kind, or a task that this does not measure.
    """
    settings = chains if chains is not None else _settings(run.config.task)
    if unknown := set(kinds) - set(KINDS):
        raise UserError(f"kinds: expected {', '.join(KINDS)}, got {sorted(unknown)[0]!r}")
    path = Path(run.path) / TABLE
    rows: list[Mapping[Any, Any]] = list(pd.read_parquet(path).to_dict("records")) if path.is_file() else []
    done = {(row["step"], row["kind"], row["key"]) for row in rows}
    for step in run.steps if steps is None else [run.step_of(step) for step in steps]:
        model = None
        for kind in kinds:
            if kind == "ood" and not isinstance(run.config.task, InContextRegression):
                continue
            key = _key(kind, settings, seed)
            if (step, kind, key) in done:
                continue
            if progress is not None:
                progress(step, kind)
            model = run.model(step) if model is None else model
            named = settings.name if kind == "llc" else ""
            found = _MEASURES[kind](model, run.config.task, settings, seed)
            rows.append({"step": step, "kind": kind, "settings": named, "key": key, **dict(found)})
            write_atomic(path, _sorted(rows).to_parquet)
    return _sorted(rows)


def _sorted(rows: Sequence[Mapping[Any, Any]]) -> pd.DataFrame:
    table = pd.DataFrame(rows)
    return table.sort_values(["step", "kind", "settings"], ignore_index=True) if len(table) else table


def learning_coefficient(
    model: nn.Module, task: TaskBase, settings: ChainSettings, *, seed: int = 0
) -> Estimate:
    """λ̂ of a model on a task's data, new at every step of the chains, with its verdict."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepSizeWarning)  # the verdict says it
        return _llc_of(model, task, settings, seed)


def _llc_of(model: nn.Module, task: TaskBase, settings: ChainSettings, seed: int) -> Estimate:
    return llc(
        model,
        _losses(task),
        _data(task, settings.batch_size, seed),
        step_size=settings.step_size,
        n_beta=settings.n_beta,
        localization=settings.localization,
        chains=settings.chains,
        draws=settings.draws,
        burn_in=settings.burn_in,
        seed=seed,
        trivial_loss=task.trivial_loss,
    )


def _curvature(model: nn.Module, task: TaskBase, settings: ChainSettings, seed: int) -> Mapping[str, Any]:
    found = hessian(model, _losses(task), _data(task, 1024, seed), top=3, probes=10, seed=seed)
    values: dict[str, Any] = {f"hessian_{i}": value for i, value in enumerate(found.eigenvalues, start=1)}
    return {**values, "hessian_trace": found.trace, "hessian_trace_error": found.trace_error}


def _llc(model: nn.Module, task: TaskBase, settings: ChainSettings, seed: int) -> Mapping[str, Any]:
    return learning_coefficient(model, task, settings, seed=seed).row()


def _ood(model: nn.Module, task: TaskBase, settings: ChainSettings, seed: int) -> Mapping[str, Any]:
    assert isinstance(task, InContextRegression)
    return out_of_distribution(model, task, seed=seed)


_MEASURES: Mapping[str, Callable[[nn.Module, Any, ChainSettings, int], Mapping[str, Any]]] = {
    "ood": _ood,
    "curvature": _curvature,
    "llc": _llc,
}


def _losses(task: TaskBase) -> Callable[[Any, Any], Tensor]:
    objective = task.objective
    return lambda model, batch: objective.losses(model(batch.inputs), batch)


def _data(task: TaskBase, batch_size: int, seed: int) -> Fresh:
    return Fresh(lambda n, generator: task.batch(n, generator), batch_size, seed=seed)


def _settings(task: TaskBase) -> ChainSettings:
    if isinstance(task, InContextRegression):
        return PUBLISHED_LR
    if isinstance(task, Text):
        return PUBLISHED_LM
    raise UserError(f"afterwards: expected a run of in_context_regression or text, got one of {task.name}")


def _key(kind: str, settings: ChainSettings, seed: int) -> str:
    """What decides the numbers of a row besides its step."""
    values = dataclasses.asdict(settings) if kind == "llc" else {}
    return json.dumps({"seed": seed, **values}, sort_keys=True)


__all__ = [
    "KINDS",
    "LOCAL_LR",
    "PUBLISHED_LM",
    "PUBLISHED_LR",
    "ChainSettings",
    "afterwards",
    "learning_coefficient",
]
