"""Learning coefficients of a run's checkpoints: the same batches and noise at each, kept beside the run.

Every checkpoint is a note of its own (`Run.notes`): a call that was cut off goes on where it stopped, and the same call
again costs nothing. What n in nβ means: data are new at every step, so there is no data set; n is the samples that the
whole run trains on, steps × batch size, unless nβ is given.

Cost: `llc` times the checkpoints.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mechplateau.development.affine import AffineCheck, affine_check
from mechplateau.development.curvature import hessian
from mechplateau.development.estimator import COLUMNS, Estimate
from mechplateau.development.learning_coefficient import (
    StepSizeWarning,
    default_n_beta,
    fresh_of,
    llc,
    task_losses,
)
from mechplateau.development.traces import AllChainsLost
from mechplateau.development.verdicts import STEP_LIMIT
from mechplateau.development.weights import Parts
from mechplateau.errors import UserError
from mechplateau.progress import Bar, Progress, bars
from mechplateau.schema import whole_number

if TYPE_CHECKING:
    from mechplateau.runs import Run
    from mechplateau.runs.phases import Phase

_WHOLE = ("lost", "n", "draws", "burn_in", "chains", "seed")


def llc_over_run(
    run: Run,
    steps: Sequence[int | Phase] | None = None,
    *,
    step_size: float | None = None,
    n_beta: float | None = None,
    localization: float = 100.0,
    chains: int = 4,
    draws: int = 200,
    burn_in: int = 0,
    seed: int = 0,
    batch_size: int | None = None,
    elasticity: bool = True,
    parts: Parts | None = None,
    device: str = "cpu",
    progress: Progress | str | None = None,
) -> LlcTable:
    """The local learning coefficient at a run's checkpoints, each with its verdict.

    Args:
        run: a run with checkpoints.
        steps: kept steps or phases; None: all kept steps.
        step_size: ε; None: the largest that is safe at all of these checkpoints, 0.2 / (nβ·h_max + γ), with the largest
            curvature that is measured at any of them.
        localization, chains, draws, burn_in, seed, elasticity, parts: as for `llc`; masks by name are not
            taken here.
        n_beta: nβ, the same at all checkpoints; None: n / ln n, with n the samples that the whole run trains on.
        batch_size: samples a batch; None: the run's.
        device: where chains run.
        progress: makes a bar for each checkpoint, as tqdm does (`mechplateau.progress`); "stderr": tqdm's own; None:
            silent.

    Returns:
        the table, one line a checkpoint, with the traces and the check against the loss.

    Raises:
        UserError: settings that make no sense, or a checkpoint that was not kept.
    """
    if parts is not None and not (isinstance(parts, Sequence) and not isinstance(parts, str)):
        raise UserError("parts: expected a list of names, patterns or (name, index) here")
    chosen = [run.step_of(step) for step in steps] if steps is not None else list(run.steps)
    if not chosen:
        raise UserError(f"{run.path}: no checkpoint was kept")
    training = run.config.training
    size = training.batch_size if batch_size is None else whole_number(batch_size, "batch_size")
    beta = default_n_beta(training.steps * training.batch_size) if n_beta is None else float(n_beta)
    listed = None if parts is None else [part if isinstance(part, str) else list(part) for part in parts]
    chosen = list(dict.fromkeys(chosen))
    if step_size is None:
        stiffest = max(curvature_of(run, step, size, seed, parts, listed, device) for step in chosen)
        step_size = STEP_LIMIT / 2 / (beta * max(stiffest, 0.0) + localization)
    settings: dict[str, Any] = {
        "step_size": step_size,
        "n_beta": beta,
        "localization": localization,
        "chains": chains,
        "draws": draws,
        "burn_in": burn_in,
        "seed": seed,
        "batch_size": size,
        "elasticity": elasticity,
        "parts": listed,
    }
    notes = run.notes("llc", settings)
    lines, traces = [], {}
    for step in chosen:
        found = notes.read(step)
        if found is None:
            h_max = curvature_of(run, step, size, seed, parts, listed, device)
            numbers, arrays = _measured(run, step, settings, parts, h_max, device, progress)
            notes.write(step, numbers, arrays)
            found = numbers, {name: _tensor(array) for name, array in arrays.items()}
        numbers, tensors = found
        lines.append({"step": step, **_numbers(numbers)})
        traces[step] = {name: tensor.numpy() for name, tensor in tensors.items()}
    return LlcTable(_frame(lines), traces, beta)


def kept_llcs(run: Run) -> list[LlcTable]:
    """What `llc_over_run` has found of a run so far, one table for each of its settings, the fullest first."""
    tables = []
    for notes in run.all_notes("llc"):
        lines, traces = [], {}
        for step in notes.steps():
            if (found := notes.read(step)) is not None:
                lines.append({"step": step, **_numbers(found[0])})
                traces[step] = {name: tensor.numpy() for name, tensor in found[1].items()}
        if lines:
            tables.append(LlcTable(_frame(lines), traces, float(notes.settings["n_beta"])))
    return sorted(tables, key=lambda table: len(table.table), reverse=True)


class LlcTable:
    """Learning coefficients over checkpoints.

    Attributes:
        table: one line a checkpoint: step, and the columns of `Estimate.row`; verdict "chain lost" with null numbers
            where every chain went to infinity.
        traces: step → losses `[chain, draw]`, burn-in included; distances likewise.
        n_beta: nβ.
        affine: whether λ̂ is nothing but the loss, see `affine_check`.
    """

    def __init__(self, table: pd.DataFrame, traces: dict[int, dict[str, np.ndarray]], n_beta: float):
        self.table, self.traces, self.n_beta = table, traces, n_beta

    @property
    def affine(self) -> AffineCheck:
        # λ̂ as published, not the paired one: it is what the check is about.
        return affine_check(
            self.table["llc"].to_numpy(float, na_value=np.nan).tolist(),
            self.table["loss"].to_numpy(float, na_value=np.nan).tolist(),
            self.n_beta,
        )

    @property
    def beside_the_loss(self) -> str:
        """What the check against the loss says, in a sentence."""
        check = self.affine
        if check.r is None or check.saturated is None:
            return "Too few checkpoints to hold λ̂ against the loss."
        number = f"r = {check.r:.4f}, slope {check.slope:.4g} against −nβ = {-self.n_beta:.4g}"
        if check.saturated:
            return (
                f"Over these checkpoints λ̂ is a straight line in the loss ({number}): it says nothing more."
            )
        return f"Over these checkpoints λ̂ is not just the loss ({number})."

    def running(self, step: int) -> np.ndarray:
        """λ̂ of each chain over its draws so far, `[chain, draw]`, as the paper plots it.

        Raises:
            UserError: no such step, or every chain was lost there.
        """
        line = self.table[self.table["step"] == step]
        if line.empty or "losses" not in self.traces.get(step, {}):
            raise UserError(f"step {step}: no chains here; there are {sorted(self.traces)}")
        kept = self.traces[step]["losses"][:, int(line["burn_in"].iloc[0]) :]
        means = np.cumsum(kept, axis=1) / np.arange(1, kept.shape[1] + 1)
        return self.n_beta * (means - float(line["loss"].iloc[0]))


def curvature_of(
    run: Run, step: int, batch_size: int, seed: int, parts: Parts | None, listed: Any, device: str
) -> float:
    """h_max of a checkpoint, kept beside the run: chains at other settings, and a scan of them, ask for it again."""
    notes = run.notes("curvature", {"batch_size": batch_size, "seed": seed, "parts": listed})
    found = notes.read(step)
    if found is None:
        data = fresh_of(run.task, batch_size, seed)
        model = run.model(step, device=device)
        measured = hessian(model, task_losses(run.task), data, top=1, probes=0, parts=parts, tolerance=1e-2)
        found = {"h_max": measured.eigenvalues[0]}, {}
        notes.write(step, found[0])
    return float(found[0]["h_max"])


def _measured(
    run: Run,
    step: int,
    settings: dict[str, Any],
    parts: Parts | None,
    h_max: float,
    device: str,
    progress: Progress | str | None,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Numbers and traces of one checkpoint, whose largest curvature is known."""
    make_bar = bars(progress)

    def named(**given: Any) -> Bar:
        return make_bar(**{**given, "desc": f"step {step}: {given['desc']}"})

    sampling = {name: value for name, value in settings.items() if name != "parts"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StepSizeWarning)  # it is in the table, as stability and verdict
            model = run.model(step, device=device)
            estimate = llc(model, run.task, parts=parts, h_max=h_max, progress=named, **sampling)
    except AllChainsLost as error:
        lost = {name: settings[name] for name in ("n_beta", "step_size", "localization", "chains", "seed")}
        lost |= {name: settings[name] for name in ("draws", "burn_in")}
        return {**lost, "lost": settings["chains"], "verdict": "chain lost", "reason": str(error)}, {}
    return _plain(estimate), _arrays(estimate)


def _plain(estimate: Estimate) -> dict[str, Any]:
    """The numbers as JSON can hold them; inf (no trivial loss) as text."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in estimate.row().items()
    }


def _arrays(estimate: Estimate) -> dict[str, np.ndarray]:
    arrays = {"losses": estimate.losses}
    return arrays if estimate.distances is None else {**arrays, "distances": estimate.distances}


def _numbers(numbers: dict[str, Any]) -> dict[str, Any]:
    texts = ("verdict", "reason")
    return {
        name: float(value) if isinstance(value, str) and name not in texts else value
        for name, value in numbers.items()
    }


def _tensor(array: np.ndarray) -> Any:
    import torch

    return torch.as_tensor(array)


def _frame(lines: list[dict[str, Any]]) -> pd.DataFrame:
    table = pd.DataFrame(lines).reindex(columns=["step", *COLUMNS])
    kinds = {
        column: "string" if column in ("verdict", "reason") else "Int64" if column in _WHOLE else "Float64"
        for column in table.columns
        if column != "step"
    }
    return table.astype(kinds)


__all__ = ["LlcTable", "curvature_of", "kept_llcs", "llc_over_run"]
