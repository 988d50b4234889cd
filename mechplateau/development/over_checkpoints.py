"""Learning coefficients over checkpoints, of a run or of anything else that has some: the settings shared, each result
kept, the work done here or by an executor.

1. Without a step size, the largest curvature at any of the checkpoints says which step is safe at all of them.
2. The same batches and the same noise at every checkpoint, so that what changes is the weights.
3. Each checkpoint's numbers and chains are a note, and are not made twice.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mechplateau.development.curvature import hessian
from mechplateau.development.data import Batches
from mechplateau.development.estimator import Estimate
from mechplateau.development.learning_coefficient import StepSizeWarning, llc
from mechplateau.development.llc_table import Found, LlcTable, table_of
from mechplateau.development.traces import AllChainsLost, Sampling
from mechplateau.development.verdicts import STEP_LIMIT
from mechplateau.development.weights import Losses, Model
from mechplateau.errors import UserError
from mechplateau.progress import Bar, Progress, bars
from mechplateau.runs.notes import Notes
from mechplateau.training.executor import Executor, Job, JobResult, submit
from mechplateau.training.loop import torch_threads

Settings = dict[str, Any]


class Checkpoints(Protocol):
    """Whose checkpoints they are.

    Attributes:
        losses: as for `llc`.
        trivial_loss: the loss of a model that does not look at its input; None: not said.
        function: name of the job function that does `make_note` in another process.
        arguments: plain values from which that function has these checkpoints again.
        stacked: as for `llc`.
    """

    @property
    def losses(self) -> Losses: ...

    @property
    def trivial_loss(self) -> float | None: ...

    @property
    def function(self) -> str: ...

    @property
    def arguments(self) -> Mapping[str, Any]: ...

    @property
    def stacked(self) -> bool | None: ...

    def model(self, step: int) -> Model:
        """The model of a checkpoint."""

    def data(self, batch_size: int, seed: int) -> Batches:
        """The data, the same for every checkpoint."""

    def notes(self, kind: str, settings: Settings) -> Notes:
        """Where results are kept."""

    def reads(self, step: int) -> tuple[Path, ...]:
        """Files that are read for a checkpoint."""


@dataclass(frozen=True)
class Workers:
    """Who does the work.

    Attributes:
        jobs: processes at a time; None: as many as the executor has room for.
        threads: CPU threads of each.
        executor: where they are; None: on this machine.
    """

    jobs: int | None = None
    threads: int = 1
    executor: Executor | None = None


def workers(jobs: int | None, threads: int, executor: Executor | None) -> Workers | None:
    """Processes of their own, where they are asked for; None: the work is done in this process."""
    return None if jobs is None and executor is None else Workers(jobs, threads, executor)


def over_checkpoints(
    checkpoints: Checkpoints,
    steps: Sequence[int],
    settings: Settings,
    *,
    by: Workers | None = None,
    progress: Progress | str | None = None,
) -> LlcTable:
    """The estimates at these checkpoints.

    Args:
        checkpoints: whose they are.
        steps: which, each once.
        settings: step_size (None: the largest that is safe at all of these checkpoints, 0.2 / (nβ·h_max + γ), with the
            largest curvature that is measured at any of them), n_beta, localization, chains, draws, burn_in, seed,
            batch_size, elasticity; parts as a list.
        by: who does the work; None: this process.
        progress: makes bars.

    Raises:
        UserError: settings that make no sense, or a checkpoint could not be measured.
    """
    _check(settings)
    given = {name: settings[name] for name in ("batch_size", "seed", "parts")}
    curved: dict[int, float] = {}
    if settings["step_size"] is None:
        curved = curvatures(checkpoints, steps, given, by=by, progress=progress)
        safe = STEP_LIMIT / 2 / (settings["n_beta"] * max(*curved.values(), 0.0) + settings["localization"])
        settings = {**settings, "step_size": safe}
    kept = checkpoints.notes("llc", settings)
    missing = [step for step in steps if step not in curved and kept.read(step) is None]
    curved |= curvatures(checkpoints, missing, given, by=by, progress=progress)
    found = _found(checkpoints, "llc", steps, settings, curved, by, progress)
    return table_of(found, settings)


def _check(settings: Settings) -> None:
    """Refuse settings that make no sense before anything is measured with them."""
    chains = {
        name: settings[name] for name in ("n_beta", "localization", "chains", "draws", "burn_in", "seed")
    }
    Sampling(step_size=1.0 if settings["step_size"] is None else settings["step_size"], **chains)
    if settings["batch_size"] < 1:
        raise UserError(f"batch_size: expected at least 1, got {settings['batch_size']}")


def curvatures(
    checkpoints: Checkpoints,
    steps: Sequence[int],
    settings: Settings,
    *,
    by: Workers | None = None,
    progress: Progress | str | None = None,
) -> dict[int, float]:
    """The largest curvature at each of these checkpoints, which is kept too.

    Args:
        checkpoints, steps, by, progress: as for `over_checkpoints`.
        settings: batch_size, seed and parts.
    """
    found = _found(checkpoints, "curvature", steps, settings, {}, by, progress)
    return {step: float(numbers["h_max"]) for step, (numbers, _) in found.items()}


def make_note(
    checkpoints: Checkpoints,
    folder: Path,
    threads: int,
    *,
    kind: str,
    step: int,
    settings: Settings,
    h_max: float | None,
) -> None:
    """What a job does: the note of one checkpoint, written to a folder of its own."""
    with torch_threads(threads):
        numbers, arrays = _MEASURES[kind](checkpoints, step, settings, h_max, None)
    checkpoints.notes(kind, settings).at(folder).write(step, numbers, arrays)


def kept_note(notes: Notes, step: int) -> Found | None:
    """A note as numbers and arrays; None where there is none."""
    found = notes.read(step)
    return None if found is None else (found[0], {name: tensor.numpy() for name, tensor in found[1].items()})


def _found(
    checkpoints: Checkpoints,
    kind: str,
    steps: Sequence[int],
    settings: Settings,
    h_max: Mapping[int, float],
    by: Workers | None,
    progress: Progress | str | None,
) -> dict[int, Found]:
    """The notes of a kind at these steps; those that are missing are made."""
    notes = checkpoints.notes(kind, settings)
    found = {}
    if by is not None:
        missing = [step for step in steps if notes.read(step) is None]
        given = {"kind": kind, "settings": settings}
        each = {step: {**given, "step": step, "h_max": h_max.get(step)} for step in missing}
        _made_by(by, checkpoints, notes, each, kind, progress)
    for step in steps:
        kept = kept_note(notes, step)
        if kept is None:
            kept = _MEASURES[kind](checkpoints, step, settings, h_max.get(step), progress)
            notes.write(step, *kept)
        found[step] = kept
    return found


def _made_by(
    by: Workers,
    checkpoints: Checkpoints,
    notes: Notes,
    arguments: Mapping[int, Mapping[str, Any]],
    what: str,
    progress: Progress | str | None,
) -> None:
    """Have other processes make notes: each writes to a folder of its own, from which it is taken.

    Args:
        by: who.
        checkpoints, notes: of whose checkpoints, and where they are kept.
        arguments: by step; as for `make_note`.
        what: is done, for the bar.
        progress: makes it.

    Raises:
        UserError: one of them failed; the others are kept.
    """
    work = {
        notes.draft(step): (
            step,
            Job(
                checkpoints.function,
                {**checkpoints.arguments, **given},
                notes.draft(step),
                by.threads,
                reads=checkpoints.reads(step),
            ),
        )
        for step, given in arguments.items()
    }
    with closing(bars(progress)(total=len(work), desc=f"{what} at checkpoints")) as bar:

        def ended(result: JobResult) -> None:
            bar.update(1)

        try:
            results = submit(
                [job for _, job in work.values()], workers=by.jobs, executor=by.executor, on_result=ended
            )
        finally:
            for step in arguments:
                notes.take(step)
    for result in results:
        if result.outcome == "failed":
            step, said = work[result.job.folder][0], result.message.removeprefix("mechplateau: ")
            raise UserError(f"step {step}: {said}; rerun the same command to resume")


def _curvature(
    checkpoints: Checkpoints,
    step: int,
    settings: Settings,
    h_max: float | None,
    progress: Progress | str | None,
) -> Found:
    """h_max of a checkpoint."""
    data = checkpoints.data(settings["batch_size"], settings["seed"])
    parts = _parts(settings["parts"])
    measured = hessian(
        checkpoints.model(step), checkpoints.losses, data, top=1, probes=0, parts=parts, tolerance=1e-2
    )
    return {"h_max": measured.eigenvalues[0]}, {}


def _measured(
    checkpoints: Checkpoints,
    step: int,
    settings: Settings,
    h_max: float | None,
    progress: Progress | str | None,
) -> Found:
    """Numbers and traces of one checkpoint, whose largest curvature is known."""
    make_bar = bars(progress)

    def named(**given: Any) -> Bar:
        return make_bar(**{**given, "desc": f"step {step}: {given['desc']}"})

    sampling = {name: value for name, value in settings.items() if name in _SAMPLING}
    data = checkpoints.data(settings["batch_size"], settings["seed"])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StepSizeWarning)  # it is in the table, as stability and verdict
            estimate = llc(
                checkpoints.model(step),
                checkpoints.losses,
                data,
                trivial_loss=checkpoints.trivial_loss,
                h_max=h_max,
                parts=_parts(settings["parts"]),
                stacked=checkpoints.stacked,
                progress=named,
                **sampling,
            )
    except AllChainsLost as error:
        lost = {name: settings[name] for name in ("n_beta", "step_size", "localization", "chains", "seed")}
        lost |= {name: settings[name] for name in ("draws", "burn_in")}
        return {**lost, "lost": settings["chains"], "verdict": "chain lost", "reason": str(error)}, {}
    return _plain(estimate), _arrays(estimate)


_MEASURES: Mapping[
    str, Callable[[Checkpoints, int, Settings, float | None, Progress | str | None], Found]
] = {
    "curvature": _curvature,
    "llc": _measured,
}
_SAMPLING = ("step_size", "n_beta", "localization", "chains", "draws", "burn_in", "seed", "elasticity")


def plain_parts(parts: Any) -> list[Any] | None:
    """Parts as plain values, for settings.

    Raises:
        UserError: masks, which are not taken here.
    """
    if parts is None:
        return None
    if not isinstance(parts, Sequence) or isinstance(parts, str):
        raise UserError("parts: expected a list of names, patterns or (name, index) here")
    return [part if isinstance(part, str) else list(part) for part in parts]


def _parts(plain: Sequence[Any] | None) -> list[Any] | None:
    return None if plain is None else [part if isinstance(part, str) else tuple(part) for part in plain]


def _plain(estimate: Estimate) -> dict[str, Any]:
    """The numbers as JSON can hold them; inf (no trivial loss) as text."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in estimate.row().items()
    }


def _arrays(estimate: Estimate) -> dict[str, np.ndarray]:
    arrays = {"losses": estimate.losses}
    return arrays if estimate.distances is None else {**arrays, "distances": estimate.distances}


__all__ = [
    "Checkpoints",
    "Workers",
    "curvatures",
    "kept_note",
    "make_note",
    "over_checkpoints",
    "plain_parts",
    "workers",
]
