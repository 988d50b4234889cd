"""Opening a finished or running run: configuration, table, checkpoints, phases."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pandas as pd
import torch
from torch import Tensor

from mechplateau.config import RunConfig
from mechplateau.devices import device_named
from mechplateau.errors import CheckpointError, RunError, UserError, counted
from mechplateau.files import is_held, local_path
from mechplateau.measurements import Column, Setting, keeps_pictures
from mechplateau.models.config import ModelConfig
from mechplateau.models.kinds import build, kind_of
from mechplateau.models.versions import HOOKED, check_transformer_lens
from mechplateau.models.weights import load_weights, parameters_of
from mechplateau.runs import record, table
from mechplateau.runs.cadence import Cadence
from mechplateau.runs.checkpoints import read_description, read_tensors
from mechplateau.runs.layout import REMEDY, Layout
from mechplateau.runs.notes import Notes, all_notes
from mechplateau.runs.phases import PHASES, Phase, Phases, find_phases, solved_in
from mechplateau.runs.record import (
    Status,
    check_belongs,
    is_file,
    read_config,
    status_of,
)
from mechplateau.signs import Signs
from mechplateau.tasks import TaskBase

if TYPE_CHECKING:
    from mechplateau.models import HookedGPT
    from mechplateau.models.bridge import CausalBridge

logger = logging.getLogger("mechplateau")


class Run:
    """One run folder, read only. Made by `load_run`.

    Attributes:
        path: the folder.
        config: the whole configuration.
    """

    def __init__(self, path: Path):
        self.path = path
        self._layout = Layout(path)
        if not self.exists(path):
            raise RunError(
                f"{path}: no run here (config.yaml is missing); `mechplateau list` shows the runs there are"
            )
        self.config = read_config(self._layout.config)

    @staticmethod
    def exists(path: str | Path) -> bool:
        """Whether a run lies in this folder.

        Raises:
            RunError: the folder may not be read.
        """
        return is_file(Layout(local_path(path)).config)

    def __repr__(self) -> str:
        lost = f", {len(self.missing)} missing" if self.missing else ""
        status = self.status if self.stopped_at is None else f"stopped at {self.stopped_at}"
        return f"Run({str(self.path)!r}, {status}, {counted(len(self.steps), 'checkpoint')}{lost})"

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.name

    @property
    def task(self) -> TaskBase:
        """The task, ready to sample from."""
        return self.config.task

    def check_config(self) -> None:
        """Raise RunError where config.yaml is not what the first checkpoint was trained with: edited by hand, say."""
        for step in self.steps[:1]:
            path = self._layout.checkpoint(step)
            try:
                recorded = record.config_of(read_description(path), path)
            except CheckpointError:
                return  # whoever needs it hears what is wrong with it
            if recorded.content_hash() != self.config.content_hash():
                raise RunError(
                    f"{self._layout.config}: is of another run ({self.config.run_name}) than the checkpoints beside it "
                    f"({recorded.run_name}); put their own back"
                )

    @property
    def status(self) -> Status | None:
        """running (or killed), interrupted, failed, finished; None where the run never began."""
        return status_of(self._layout, self.config)

    @property
    def failure(self) -> str | None:
        """The error that ended the last session of a failed run, in a line; else None."""
        return record.failure_of(self._layout) if self.status == "failed" else None

    @property
    def at_work(self) -> bool | None:
        """Whether a process on this machine is training the run now; None where the system cannot tell."""
        return is_held(self._layout.lock)

    @property
    def finished(self) -> bool:
        """Whether it is trained to its own end; a run that `training.stop_at` stopped before is not."""
        return self.status == "finished" and self.stopped_at is None

    @property
    def farthest(self) -> int:
        """The last step of which the folder holds a row, a checkpoint, or what is needed to resume; 0: of none."""
        return max(self.reached, *self.steps, *self._layout.resume_steps(), 0)

    @property
    def reached(self) -> int:
        """The last step that was measured; 0 where none was."""
        return 0 if self.metrics.empty else int(self.metrics["step"].iloc[-1])

    @property
    def written_at(self) -> float:
        """When the run last wrote its table, its state or its configuration: seconds since the epoch."""
        files = (self._layout.metrics, self._layout.metrics_part, self._layout.state, self._layout.config)
        return max(path.stat().st_mtime for path in files if is_file(path))

    @property
    def stopped_at(self) -> int | None:
        """The step at which `training.stop_at` ended a finished run before its own end; None: it did not."""
        resumable = self._layout.resume_steps()
        if self.status != "finished" or (self.config.training.stop_at is None and not resumable):
            return None
        reached = self.reached
        stopped = reached in resumable or reached == self.config.training.stop_at
        return reached if stopped and not self._cadence.ends(reached, solved_in(self.metrics)) else None

    @cached_property
    def _cadence(self) -> Cadence:
        return Cadence.of_table(self.config, self.metrics)

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps whose checkpoints are there."""
        return self._layout.checkpoint_steps()

    @property
    def missing(self) -> tuple[int, ...]:
        """Steps whose checkpoints were kept and are not there any more: in a partial copy of a run, say."""
        return tuple(sorted(self._kept() - set(self.steps)))

    @property
    def missing_maps(self) -> tuple[int, ...]:
        """Steps whose maps were kept and are not there any more."""
        if not self.keeps_maps:
            return ()
        return tuple(sorted(self._kept() - set(self._layout.maps_steps())))

    @property
    def keeps_maps(self) -> bool:
        """Whether maps are kept beside checkpoints: of a model that shows its attention, on a task of tokens."""
        return keeps_pictures(Setting(self.task, self.config.model))

    def _kept(self) -> set[int]:
        """Steps that were kept so far, as the configuration and the table show."""
        reached = self.reached
        # A table that was read while the run went on does not reach its end, though the run may have by now.
        cadence = self._cadence
        finished = self.status == "finished" and (
            cadence.ends(reached, self.solved_at) or self.stopped_at is not None
        )
        # While a run is in progress, the checkpoint of the last row may not be written yet.
        before = set(cadence.kept.until(reached - 1))
        return before | {reached} if finished else before

    @property
    def sessions(self) -> tuple[dict[str, Any], ...]:
        """Versions (`packages`), machine and threads of each session; none where the record is lost or damaged."""
        return tuple(
            {**session, "packages": packages if isinstance(packages := session.get("packages"), dict) else {}}
            for session in record.sessions_of(self._layout)
        )

    @property
    def columns(self) -> tuple[Column, ...]:
        """What the columns of `metrics` are: unit, definition, when undefined."""
        return self.config.columns

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """One row an evaluation step; NaN where a value is undefined. What the columns are: `columns`."""
        if self._layout.metrics.is_file():
            metrics = table.read_table(self._layout.metrics, self.config.content_hash())
            if (problem := record.incomplete(metrics, self.config, self._layout.resume_steps())) is not None:
                raise RunError(f"{self._layout.metrics}: {problem}; {REMEDY}")
            return metrics
        rows = table.read_part(self._layout.metrics_part)
        if self.status == "finished" or (not rows and self.steps):
            raise RunError(f"{self._layout.metrics}: missing; {REMEDY}")
        return table.frame_of(rows, self.config.columns)

    @cached_property
    def phases(self) -> Phases:
        """The plateau and the checkpoints before, during and after it."""
        signs = self.signs
        kept = self._cadence.kept
        # A checkpoint that only an earlier stop added would make them others than in a run that was never stopped.
        steps = [step for step in self.steps if step in kept or step == self.steps[-1]]
        return find_phases(signs, steps, self.missing)

    @cached_property
    def signs(self) -> Signs:
        """Every number that is read off the table: plateau, peaks, partial solution and the like.

        Raises:
            RunError: the table has no row yet.
        """
        if self.metrics.empty:
            raise RunError(f"{self.path}: nothing was measured yet; let the run train further")
        return Signs(self.metrics, self.task, running=self._goes_on)

    @property
    def _goes_on(self) -> bool:
        """Whether more rows may come; what needs the record says what is wrong with it."""
        try:
            return self.status in ("running", "interrupted", "failed") or self.stopped_at is not None
        except RunError:
            return False

    @property
    def solved_at(self) -> int | None:
        """First measured step with an accuracy of at least `signs.SOLVED`; None where the task is not solved."""
        return self.signs.solved.step

    def step_of(self, which: int | Phase) -> int:
        """The step of a checkpoint given by step or phase.

        Raises:
            RunError: no checkpoint was kept at that step, or the phase is unknown or does not exist.
            CheckpointError: the checkpoint was kept and is missing now.
        """
        if isinstance(which, str):
            if which not in PHASES:
                raise RunError(f"expected a step, or one of {', '.join(PHASES)}; got {which!r}")
            return self.phases.step(which)
        if which not in self.steps:
            known = ", ".join(str(step) for step in self.steps) or "none"
            if which in self._kept():
                raise CheckpointError(
                    f"{self._layout.checkpoint(which)}: missing; put a copy back; there are: {known}"
                )
            raise RunError(f"{self.path}: no checkpoint at step {which}; kept: {known}")
        return int(which)

    def model(self, which: int | Phase = "after", *, device: str = "cpu") -> HookedGPT:
        """The model of a checkpoint, in eval mode, with its raw weights: of the gpt kind, a HookedTransformer; else the
        module of the run's kind.

        Interventions of the run are not attached; the weights show their effect.

        Args:
            which: a kept step, or "before", "during", "after".
            device: where to put it.
        """
        return model_from_checkpoint(self.checkpoint_path(which), device=device, expected=self.config)

    def bridge(self, which: int | Phase = "after", *, device: str = "cpu") -> CausalBridge:
        """The checkpoint as TransformerLens's TransformerBridge, raw weights, in eval mode.

        Works with TransformerLens 3.9 and 4, which has no HookedTransformer; see `mechplateau.models.bridge`.

        Args:
            which: a kept step, or "before", "during", "after".
            device: where to put it.
        """
        check_transformer_lens()
        from mechplateau.models.bridge import bridge_of

        if not isinstance(self.config.model, ModelConfig):
            raise UserError(
                f"{self.path}: only models of kind gpt open as a TransformerBridge, this one is of kind "
                f"{self.config.model.kind}; use run.model, with {HOOKED}"
            )
        torch_device = device_named(device)
        weights = {name: tensor.to(torch_device) for name, tensor in self.weights(which).items()}
        return bridge_of(self.config.model, weights)

    def weights(self, which: int | Phase = "after") -> dict[str, Tensor]:
        """The tensors of a checkpoint by TransformerLens's names, on the CPU."""
        path = self.checkpoint_path(which)
        tensors, description = read_tensors(path)
        check_belongs(record.config_of(description, path).content_hash(), self.config, path)
        return tensors

    def notes(self, kind: str, settings: Mapping[str, Any]) -> Notes:
        """Notes about the checkpoints, made with these settings; see `mechplateau.runs.notes`."""
        return Notes(self.path, kind, settings, self.config.content_hash())

    def all_notes(self, kind: str) -> list[Notes]:
        """All notes of a kind, one item for each of the settings they were made with."""
        return all_notes(self.path, kind, self.config.content_hash())

    def checkpoint_path(self, which: int | Phase = "after") -> Path:
        """The file of a checkpoint's weights."""
        return self._layout.checkpoint(self.step_of(which))

    def files_for(self, which: int | Phase = "after") -> tuple[Path, ...]:
        """What is read for the model of a checkpoint, wherever else it is laid."""
        return (self._layout.config, self.checkpoint_path(which))

    def maps_path(self, which: int | Phase = "after") -> Path:
        """The file of the pictures kept at a checkpoint."""
        return self._layout.maps(self.step_of(which))

    def maps(self, which: int | Phase = "after") -> dict[str, Tensor]:
        """Pictures kept at a checkpoint: `pattern.L{layer}` `[head, query, key]` (batch mean) and
        `cosine.final` `[n_outputs, n_outputs]`."""
        path = self.maps_path(which)
        tensors, description = read_tensors(path)
        if (recorded := description.get("config_hash")) is not None:  # maps of early versions lack it
            check_belongs(recorded, self.config, path)
        return tensors


def load_run(path: str | Path) -> Run:
    """Open a run folder, and warn where checkpoints of a finished run are missing.

    Raises:
        RunError: no run is there, or its config.yaml is not that of its checkpoints.
        ConfigError: its configuration cannot be read (an unregistered task, say).
    """
    run = Run(local_path(path))
    run.check_config()
    try:
        if run.status == "finished" and run.missing:
            steps = ", ".join(str(step) for step in run.missing)
            logger.warning("%s: checkpoints are missing, of steps %s", run.path, steps)
    except RunError:
        pass  # what needs the record says what is wrong with it
    return run


def is_finished(folder: Path, config: RunConfig) -> bool:
    """Whether a folder holds the finished run of a configuration: `train` checks this first. Changes nothing in it.

    A run that stopped where the configuration stops it (`training.stop_at`) counts.

    Raises:
        RunError: the folder is of another configuration, or a run that is said to be finished is not complete.
    """
    return record.is_finished(Layout(folder), config)


def is_or_says_finished(folder: Path) -> bool:
    """Whether a folder holds a run that is trained to its end, or one that says so and cannot be read.

    Opening the latter reports what is wrong; training it again would not.
    """
    says_so = record.state_of(Layout(folder)) == "finished"
    try:
        return (Run(folder) if says_so else load_run(folder)).finished
    except UserError:
        return says_so


def load_checkpoint(path: str | Path, *, device: str = "cpu") -> HookedGPT:
    """The HookedTransformer of one checkpoint file: it describes itself.

    Raises:
        CheckpointError: missing, damaged, not ours, or a tensor is missing, unknown or misshapen.
    """
    return model_from_checkpoint(local_path(path), device=device)


def model_from_checkpoint(path: Path, *, device: str, expected: RunConfig | None = None) -> HookedGPT:
    """The model of a checkpoint file, whose own configuration must be the expected one where one is given."""
    tensors, description = read_tensors(path)
    config = record.config_of(description, path)
    if expected is not None:
        check_belongs(config.content_hash(), expected, path)
    model = build(config.model, config.task, device=device)
    untrained = kind_of(config.model).untrained
    kept = {name: tensor for name, tensor in parameters_of(model).items() if name in untrained}
    fresh = {name: tensor.clone() for name, tensor in kept.items()}
    load_weights(model, tensors, str(path))
    if changed := [name for name, tensor in kept.items() if not torch.equal(tensor, fresh[name])]:
        raise CheckpointError(
            f"{path}: {', '.join(changed)} is not what training keeps it at: not its checkpoint"
        )
    return cast("HookedGPT", model.eval())
