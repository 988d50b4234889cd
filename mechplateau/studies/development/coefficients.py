"""λ̂ over a run's checkpoints, of the whole model and of its components, and a scan of the settings on the plateau.

All is kept beside the run by `llc_over_run` and `calibrate_run`. Chains are short, since five seeds at ten checkpoints
are to fit into half an hour: what that costs is in the verdicts. Components get no second set of chains at 2nβ, so the
best that their verdict can be is `undetermined`. At the paper's size: before, during and after, the whole model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from mechplateau.development import calibrate_run, kept_scans, llc_over_run
from mechplateau.progress import Progress
from mechplateau.runs import Run
from mechplateau.signs import progress_column
from mechplateau.studies.figures import CheckpointMeasure
from mechplateau.studies.recipes import PAPER

CHECKPOINTS = 10
WHOLE = "whole"
PARTS: Mapping[str, tuple[str, ...]] = {
    "attention": ("blocks.*.attn.*",),
    "mlp": ("blocks.*.mlp.*",),
    "embeddings": ("embed.*", "pos_embed.*"),
}
"""Of the window sum's model; the encoder is only measured as a whole."""
_WITH_PARTS = "mws"
CHAINS: Mapping[str, Any] = {
    "n_beta": 1000.0,
    "localization": 1000.0,
    "chains": 2,
    "burn_in": 10,
    "draws": 40,
    "batch_size": 32,
}
CHAINS_AT_PAPER: Mapping[str, Any] = {**CHAINS, "draws": 30, "batch_size": 64}
SCAN: Mapping[str, Any] = {
    "n_betas": (100.0, 1e3, 1e4),
    "localizations": (10.0, 1e3, 1e5),
    "shares": (0.1, 0.5),
    "chains": 2,
    "burn_in": 20,
    "draws": 40,
    "batch_size": 32,
}
_KEPT = (
    *("loss", "mean_loss", "trivial_loss", "llc", "paired", "chain_sd"),
    *("elasticity", "distance", "stability", "verdict"),
)
ORDER = ("recipe", "seed", "scale", "step", "part", "attention_progress", *_KEPT)


def chosen_steps(run: Run, scale: str) -> list[int]:
    """Ten kept steps, evenly in their order, the first and the last among them; at the paper's size the phases."""
    if scale == PAPER:
        phases = run.phases
        return [step for step in (phases.before, phases.during, phases.after) if step is not None]
    steps = run.steps
    if len(steps) <= CHECKPOINTS:
        return list(steps)
    return [steps[round(i * (len(steps) - 1) / (CHECKPOINTS - 1))] for i in range(CHECKPOINTS)]


def parts_of(run: Run, scale: str) -> dict[str, Sequence[str] | None]:
    """Component → its weights; `WHOLE` → None."""
    whole: dict[str, Sequence[str] | None] = {WHOLE: None}
    return whole | (dict(PARTS) if run.task.name == _WITH_PARTS and scale != PAPER else {})


def estimated(run: Run, scale: str, *, progress: Progress | str | None = None) -> pd.DataFrame:
    """One line a checkpoint and component; what is kept beside the run already is only read.

    Columns: step, part, attention_progress (the run's own at that step), and those of `Estimate.row` that are kept.
    """
    settings = CHAINS_AT_PAPER if scale == PAPER else CHAINS
    tables = []
    for name, weights in parts_of(run, scale).items():
        found = llc_over_run(
            run,
            chosen_steps(run, scale),
            parts=weights,
            elasticity=weights is None,
            progress=progress,
            **settings,
        ).table
        tables.append(found[["step", *_KEPT]].assign(part=name))
    table = pd.concat(tables, ignore_index=True)
    progress_there = pd.Series([_progress(run, int(step)) for step in table["step"]], dtype=float)
    return table.assign(attention_progress=progress_there)


def scanned(run: Run, *, progress: Progress | str | None = None) -> pd.DataFrame | None:
    """The scan of settings at the checkpoint on the plateau; None where there is none."""
    return None if run.phases.during is None else calibrate_run(run, "during", progress=progress, **SCAN)


def is_measured(run: Run, scale: str) -> bool:
    """Whether `estimated`, and below the paper's size `scanned`, are beside the run, so that they need no chains."""
    settings = CHAINS_AT_PAPER if scale == PAPER else CHAINS
    steps, done = set(chosen_steps(run, scale)), []
    for notes in run.all_notes("llc"):
        same = all(notes.settings.get(name) == value for name, value in settings.items())
        if same and steps <= set(notes.steps()):
            done.append(notes.settings["parts"])
    wanted = [None if weights is None else list(weights) for weights in parts_of(run, scale).values()]
    during = run.phases.during
    size = len(SCAN["n_betas"]) * len(SCAN["localizations"]) * len(SCAN["shares"])
    scan_done = scale == PAPER or during is None or len(kept_scans(run).get(during, ())) >= size
    return scan_done and all(parts in done for parts in wanted)


class Coefficients(CheckpointMeasure):
    """λ̂ in a column for each component (`llc whole`, …), of the whole model with a column for each verdict too
    (`whole: saturated`, …), E[L], L* and the trivial loss."""

    def measure(
        self, run: Run, scale: str, *, jobs: int = 1, progress: Progress | str | None = None
    ) -> pd.DataFrame:
        table = estimated(run, scale, progress=progress)
        by_part = {str(name): lines.set_index("step") for name, lines in table.groupby("part", sort=False)}
        whole = by_part[WHOLE]
        columns = {f"llc {name}": lines["paired"] for name, lines in by_part.items()}
        columns |= {"chains_loss": whole["loss"], "chains_mean_loss": whole["mean_loss"]}
        for verdict in dict.fromkeys(whole["verdict"]):
            columns[f"{WHOLE}: {verdict}"] = whole["paired"].where(whole["verdict"] == verdict)
        return (
            pd.DataFrame(columns)
            .astype(float)
            .assign(chains_trivial_loss=run.task.trivial_loss)
            .reset_index()
        )

    def settings(self, scale: str) -> Mapping[str, Any]:
        return {"chains": dict(CHAINS_AT_PAPER if scale == PAPER else CHAINS)}


def _progress(run: Run, step: int) -> float | None:
    metrics = run.metrics
    name = progress_column(metrics)
    line = metrics[metrics["step"] == step]
    if name is None or line.empty or not np.isfinite(float(line[name].iloc[0])):
        return None
    return float(line[name].iloc[0])


__all__ = ["CHAINS", "ORDER", "PARTS", "SCAN", "WHOLE", "Coefficients", "estimated", "is_measured", "scanned"]
