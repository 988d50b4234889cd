"""Learning coefficients of a run's checkpoints: the same batches and noise at each, kept beside the run.

Every checkpoint is a note of its own (`Run.notes`): an interrupted call resumes where it stopped, and the same call
again costs nothing. What n in nβ means: data are new at every step, so there is no data set; n is the samples that the
whole run trains on, steps × batch size, unless nβ is given.

Cost: `llc` times the checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechplateau.development.data import Batches
from mechplateau.development.learning_coefficient import default_n_beta, fresh_of, task_losses
from mechplateau.development.llc_table import LlcTable, table_of
from mechplateau.development.over_checkpoints import (
    Settings,
    curvatures,
    kept_note,
    make_note,
    over_checkpoints,
    plain_parts,
    workers,
)
from mechplateau.development.weights import Losses, Model, Parts
from mechplateau.errors import UserError
from mechplateau.progress import Progress
from mechplateau.runs import Run, load_run
from mechplateau.runs.notes import Notes
from mechplateau.schema import whole_number
from mechplateau.training.executor import Executor, job_function

if TYPE_CHECKING:
    from mechplateau.runs.phases import Phase


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
    jobs: int | None = None,
    threads: int = 1,
    executor: Executor | None = None,
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
        jobs: checkpoints that are done side by side, each in a process of its own; None: one after the other in this
            one, or with an `executor` as many as it has room for. The numbers are the same to the bit with as many
            threads.
        threads: CPU threads of each such process.
        executor: who does them, such as `mechplateau.training.cluster.on_ray.RayCluster`.
        progress: makes a bar for each checkpoint, as tqdm does (`mechplateau.progress`); "stderr": tqdm's own; None:
            silent.

    Returns:
        the table, one line a checkpoint, with the traces and the check against the loss.

    Raises:
        UserError: settings that make no sense, or a checkpoint that was not kept.
    """
    chosen = [run.step_of(step) for step in steps] if steps is not None else list(run.steps)
    if not chosen:
        raise UserError(f"{run.path}: no checkpoint was kept")
    training = run.config.training
    settings: dict[str, Any] = {
        "step_size": step_size,
        "n_beta": default_n_beta(training.steps * training.batch_size) if n_beta is None else float(n_beta),
        "localization": localization,
        "chains": chains,
        "draws": draws,
        "burn_in": burn_in,
        "seed": seed,
        "batch_size": training.batch_size if batch_size is None else whole_number(batch_size, "batch_size"),
        "elasticity": elasticity,
        "parts": plain_parts(parts),
    }
    return over_checkpoints(
        _OfRun(run, device),
        list(dict.fromkeys(chosen)),
        settings,
        by=workers(jobs, threads, executor),
        progress=progress,
    )


@dataclass(frozen=True)
class _OfRun:
    """A run's checkpoints, as `over_checkpoints` asks for them."""

    run: Run
    device: str
    function = "llc_of_run"
    stacked = None

    @property
    def losses(self) -> Losses:
        return task_losses(self.run.task)

    @property
    def trivial_loss(self) -> float | None:
        return self.run.task.trivial_loss

    @property
    def arguments(self) -> Mapping[str, Any]:
        return {"run": str(self.run.path), "device": self.device}

    def model(self, step: int) -> Model:
        return self.run.model(step, device=self.device)

    def data(self, batch_size: int, seed: int) -> Batches:
        return fresh_of(self.run.task, batch_size, seed)

    def notes(self, kind: str, settings: Settings) -> Notes:
        return self.run.notes(kind, settings)

    def reads(self, step: int) -> tuple[Path, ...]:
        return self.run.files_for(step)


def curvature_of(run: Run, step: int, batch_size: int, seed: int, parts: Parts | None, device: str) -> float:
    """h_max of a checkpoint, kept beside the run: chains at other settings, and scans of settings, use it again."""
    given = {"batch_size": batch_size, "seed": seed, "parts": plain_parts(parts)}
    return curvatures(_OfRun(run, device), [step], given)[step]


@job_function(_OfRun.function)
def _llc_of_run(folder: Path, threads: int, *, run: str, device: str, **given: Any) -> None:
    """The note of one checkpoint of a run."""
    make_note(_OfRun(load_run(run), device), folder, threads, **given)


def kept_llcs(run: Run) -> list[LlcTable]:
    """What `llc_over_run` has found of a run so far, one table for each of its settings: those of the whole model
    first, the fullest first."""
    tables = []
    for notes in run.all_notes("llc"):
        found = {step: note for step in notes.steps() if (note := kept_note(notes, step)) is not None}
        if found:
            tables.append(table_of(found, notes.settings))
    return sorted(tables, key=lambda table: (table.parts is not None, -len(table.table)))


__all__ = ["curvature_of", "kept_llcs", "llc_over_run"]
