"""How learning coefficients depend on how they are sampled: on the noise, on the settings, on the loss.

On few checkpoints and with short chains, since each setting costs as much as another learning coefficient. What was
sampled is kept beside the run.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from mechplateau.development import StepSizeWarning, llc, llc_over_run
from mechplateau.development.data import Fresh
from mechplateau.development.of_runs import LlcTable
from mechplateau.progress import Progress
from mechplateau.runs import Run
from mechplateau.studies.figures import CheckpointMeasure
from mechplateau.studies.stages.checkpoints import chosen_steps
from mechplateau.tasks.in_context_regression import InContextRegression, RegressionBatch

CHECKPOINTS = 4
_SHORT = {"draws": 100, "burn_in": 50, "elasticity": False}
GRID = {"step_size": (1e-5, 3e-4, 1e-3), "n_beta": (20.0, 66.667, 200.0), "localization": (1.0, 6.67, 100.0)}
"""Values of each setting; the others are the paper's."""


def paper_settings(run: Run) -> dict[str, Any]:
    """The paper's settings for the task, with shorter chains."""
    return {**run.task.llc_settings["published"], **_SHORT}


def inspected(run: Run) -> int:
    """The kept step, near the middle of the chosen ones, at which settings are compared."""
    steps = chosen_steps(run.steps, CHECKPOINTS)
    return steps[len(steps) // 2]


def settings_compared(run: Run) -> dict[str, dict[str, Any]]:
    """Name → settings: the paper's, local ones, and a step size that loses the chains."""
    paper = paper_settings(run)
    local = {**run.task.llc_settings.get("local", paper), **_SHORT}
    return {
        "the paper's": paper,
        "local": local,
        "100 times its step": {**paper, "step_size": 100 * paper["step_size"]},
    }


def compared(run: Run, progress: Progress | str | None = None) -> dict[str, LlcTable]:
    """Chains with each of `settings_compared`, at one checkpoint."""
    step = inspected(run)
    return {
        name: llc_over_run(run, [step], progress=progress, **settings)
        for name, settings in settings_compared(run).items()
    }


class Traces(CheckpointMeasure):
    """λ̂ and verdict of chains with different settings, at one checkpoint."""

    def measure(
        self, run: Run, scale: str, *, jobs: int = 1, progress: Progress | str | None = None
    ) -> pd.DataFrame:
        row: dict[str, Any] = {"step": inspected(run)}
        for name, found in compared(run, progress).items():
            row |= _told(name, found)
        return pd.DataFrame([row])


class Grid(CheckpointMeasure):
    """λ̂ and verdict when one of ε, γ and nβ is changed, at one checkpoint."""

    def measure(
        self, run: Run, scale: str, *, jobs: int = 1, progress: Progress | str | None = None
    ) -> pd.DataFrame:
        step = inspected(run)
        row: dict[str, Any] = {"step": step}
        for name, values in GRID.items():
            for value in values:
                settings = {**paper_settings(run), name: value}
                row |= _told(f"{name} {value:g}", llc_over_run(run, [step], progress=progress, **settings))
        return pd.DataFrame([row])


class ResetNoise(CheckpointMeasure):
    """λ̂ with the same batches and noise at every checkpoint, and with others at each."""

    def measure(
        self, run: Run, scale: str, *, jobs: int = 1, progress: Progress | str | None = None
    ) -> pd.DataFrame:
        rows = []
        for place, step in enumerate(chosen_steps(run.steps, CHECKPOINTS)):
            row: dict[str, Any] = {"step": step}
            for name, seed in (("same", 0), ("new", 1 + place)):
                settings = {**paper_settings(run), "seed": seed}
                row |= _told(f"{name} noise", llc_over_run(run, [step], progress=progress, **settings))
            rows.append(row)
        return pd.DataFrame(rows)


@dataclass(frozen=True, eq=False)
class OnePair(RegressionBatch):
    """Contexts with the pair of each whose loss counts.

    Attributes:
        pair: from 0.
    """

    pair: Int[Tensor, " batch"]


class RandomPrefix(CheckpointMeasure):
    """λ̂ of the loss over all pairs, and of the loss of one pair a context, drawn at random.

    The two losses have the same mean, so only the noise of the gradients differs.
    """

    def measure(
        self, run: Run, scale: str, *, jobs: int = 1, progress: Progress | str | None = None
    ) -> pd.DataFrame:
        rows = []
        for step in chosen_steps(run.steps, CHECKPOINTS):
            found = llc_over_run(run, [step], progress=progress, **paper_settings(run))
            row = {"step": step} | _told("all pairs", found)
            notes = run.notes("stages-one-pair", paper_settings(run))
            kept = notes.read(step)
            if kept is None:
                # The mean loss is the same, and so is its curvature.
                kept = _of_one_pair(run, step, float(found.table["h_max"].iloc[0])), {}
                notes.write(step, kept[0])
            rows.append(row | {f"a random pair {name}": value for name, value in kept[0].items()})
        return pd.DataFrame(rows)


def _of_one_pair(run: Run, step: int, h_max: float) -> dict[str, Any]:
    task, settings = run.task, paper_settings(run)
    assert isinstance(task, InContextRegression)

    def made(n: int, generator: torch.Generator) -> OnePair:
        batch = task.batch(n, generator)
        assert isinstance(batch, RegressionBatch)
        pair = torch.randint(task.n_pairs, (n,), generator=generator)
        return OnePair(batch.inputs, batch.targets, batch.w, pair)

    def losses(model: Any, batch: OnePair) -> Tensor:
        return task.objective.losses(model(batch.inputs), batch).gather(1, batch.pair[:, None])

    size = settings.pop("batch_size")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepSizeWarning)  # the verdict says it
        found = llc(
            run.model(step),
            losses,
            Fresh(made, size),
            trivial_loss=task.trivial_loss,
            h_max=h_max,
            **settings,
        )
    return {"llc": found.llc, "chain_sd": found.chain_sd, "verdict": found.verdict}


def _told(name: str, found: LlcTable) -> dict[str, Any]:
    """λ̂, the standard deviation of the chains' means, and the verdict; None where it is undefined."""
    line = found.table.iloc[0]
    values = {part: None if pd.isna(line[part]) else line[part] for part in ("llc", "chain_sd", "verdict")}
    return {f"{name} {part}": value for part, value in values.items()}


__all__ = [
    "GRID",
    "Grid",
    "OnePair",
    "RandomPrefix",
    "ResetNoise",
    "Traces",
    "compared",
    "inspected",
    "paper_settings",
    "settings_compared",
]
