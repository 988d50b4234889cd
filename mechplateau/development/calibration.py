"""A scan of ε, γ and nβ at one set of weights: which settings give an estimate that means something, if any do.

`calibrate` is for any model, `calibrate_run` for a checkpoint of a run, beside which what it found is kept.

Source: the grid of the paper's figure A.4 (arXiv 2402.02364); the verdicts are ours.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from contextlib import closing
from itertools import product
from typing import TYPE_CHECKING, Any

import pandas as pd

from mechplateau.development.curvature import hessian
from mechplateau.development.data import Batches
from mechplateau.development.learning_coefficient import StepSizeWarning, fresh_of, llc, task_losses
from mechplateau.development.of_runs import curvature_of
from mechplateau.development.traces import AllChainsLost
from mechplateau.development.verdicts import STEP_LIMIT
from mechplateau.development.weights import Losses, Model, Parts
from mechplateau.errors import UserError
from mechplateau.progress import Progress, bars
from mechplateau.tasks import TaskBase

if TYPE_CHECKING:
    from mechplateau.runs import Run
    from mechplateau.runs.phases import Phase

_KIND = "calibration"
"""Of the notes beside a run."""


def calibrate(
    model: Model,
    losses: Losses | TaskBase,
    data: Batches | Sequence[Any] | None = None,
    *,
    step_sizes: Sequence[float],
    localizations: Sequence[float],
    n_betas: Sequence[float],
    parts: Parts | None = None,
    progress: Progress | str | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Estimate at every combination of settings. All see the same batches and noise.

    Args:
        model, losses, data, parts: as for `llc`; losses may be a task.
        step_sizes, localizations, n_betas: the values of ε, γ and nβ.
        progress: makes a bar of combinations, as tqdm does (`mechplateau.progress`); "stderr": tqdm's own;
            None: silent.
        settings: what else `llc` takes.

    Returns:
        One line a combination, in the order nβ, γ, ε: the columns of `Estimate.row()`. Where all chains were lost the
        verdict is "chain lost" and the numbers are null.

    Raises:
        UserError: an empty list, or settings that make no sense.
    """
    grid = list(product(n_betas, localizations, step_sizes))
    if not grid:
        raise UserError("step_sizes, localizations and n_betas: expected at least one value each")
    if isinstance(losses, TaskBase):
        task, losses = losses, task_losses(losses)
        if settings.get("trivial_loss") is None:
            settings["trivial_loss"] = task.trivial_loss
        batch_size = settings.pop("batch_size", 256)
        data = fresh_of(task, batch_size, settings.get("seed", 0)) if data is None else data
    if settings.get("step_check", True) and settings.get("h_max") is None:
        # Curvature at w* depends on none of the three, so it is measured once.
        settings["h_max"] = hessian(
            model, losses, data, top=1, probes=0, parts=parts, tolerance=1e-2
        ).eigenvalues[0]
    lines: list[dict[str, Any]] = []
    with closing(bars(progress)(total=len(grid), desc="settings")) as bar:
        for n_beta, localization, step_size in grid:
            chosen: dict[str, Any] = {"step_size": step_size, "localization": localization, "n_beta": n_beta}
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", StepSizeWarning)  # it is in the table
                    lines.append(llc(model, losses, data, parts=parts, **chosen, **settings).row())
            except AllChainsLost as error:
                lines.append({**chosen, "verdict": "chain lost", "reason": str(error)})
            bar.update(1)
    return _in_order(lines)


def calibrate_run(
    run: Run,
    step: int | Phase = "during",
    *,
    localizations: Sequence[float] = (10.0, 1e3, 1e5),
    n_betas: Sequence[float] = (100.0, 1e3, 1e4),
    shares: Sequence[float] = (0.1, 0.5),
    chains: int = 2,
    draws: int = 100,
    burn_in: int = 50,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Progress | str | None = None,
) -> pd.DataFrame:
    """`calibrate` at a checkpoint of a run, kept beside it; an interrupted scan resumes where it stopped.

    Args:
        run: a run with checkpoints.
        step: a kept step, or a phase.
        localizations, n_betas: the values of γ and nβ.
        shares: ε, as a share of the largest step that passes the step check, 0.4 / (nβ·h_max + γ). Above a half, the
            second set of chains, at 2nβ, does not pass it.
        chains, draws, burn_in, seed, progress: as for `llc`.
        batch_size: samples a batch; None: the run's.

    Returns:
        The table of `calibrate`, with `share` after the step size.

    Raises:
        UserError: settings that make no sense, or no such checkpoint.
    """
    if not all(share > 0 for share in shares):
        raise UserError(f"shares: expected numbers above 0, got {list(shares)}")
    at = run.step_of(step)
    size = run.config.training.batch_size if batch_size is None else batch_size
    kept: dict[str, Any] = {
        "chains": chains,
        "draws": draws,
        "burn_in": burn_in,
        "seed": seed,
        "batch_size": size,
    }
    asked = {"localizations": list(localizations), "n_betas": list(n_betas), "shares": list(shares)}
    notes = run.notes(_KIND, kept | asked)
    found = notes.read(at)
    lines = [] if found is None else list(found[0]["lines"])
    grid = list(product(n_betas, localizations, shares))
    if not grid:
        raise UserError("shares, localizations and n_betas: expected at least one value each")
    if len(lines) < len(grid):
        h_max, model = curvature_of(run, at, size, seed, None, "cpu"), run.model(at)
        with closing(bars(progress)(total=len(grid) - len(lines), desc=f"step {at}: settings")) as bar:
            for n_beta, localization, share in grid[len(lines) :]:
                table = calibrate(
                    model,
                    run.task,
                    step_sizes=[share * STEP_LIMIT / (n_beta * max(h_max, 0.0) + localization)],
                    localizations=[localization],
                    n_betas=[n_beta],
                    h_max=h_max,
                    **kept,
                )
                (line,) = table.to_dict("records")
                lines.append({"share": share, **{str(name): _plain(value) for name, value in line.items()}})
                notes.write(at, {"lines": lines})
                bar.update(1)
    return _in_order(lines)


def kept_scans(run: Run) -> dict[int, pd.DataFrame]:
    """Step → what `calibrate_run` has found there so far; of several scans of a step, the fullest."""
    found: dict[int, pd.DataFrame] = {}
    for notes in run.all_notes(_KIND):
        for step in notes.steps():
            if (note := notes.read(step)) is not None and len(note[0]["lines"]) > len(found.get(step, ())):
                found[step] = _in_order(note[0]["lines"])
    return dict(sorted(found.items()))


def _in_order(lines: list[dict[str, Any]]) -> pd.DataFrame:
    table = pd.DataFrame(lines)
    first = [name for name in ("n_beta", "localization", "step_size", "share", "verdict") if name in table]
    return table[[*first, *(column for column in table.columns if column not in first)]]


def _plain(value: Any) -> Any:
    """As JSON can hold it; what is not finite is undefined."""
    if isinstance(value, str):
        return value
    return None if pd.isna(value) or value in (math.inf, -math.inf) else value
