"""Writing a run: rows, checkpoints and what is needed to resume, so that a kill at any time loses nothing.

Order of a save: the rows so far are synced to disk, then the checkpoint, then its maps, last the file to
resume from. Whatever is found after a kill, the newest file to resume from has its rows and checkpoints beside it;
rows after it are dropped and made again, equal to the bit, and checkpoints after it are written over.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from torch import Tensor

from mechplateau.config import RunConfig
from mechplateau.errors import RunError, RunInUse, UserError
from mechplateau.files import explained, first_line, leftovers, take_lock, write_text
from mechplateau.runs import table
from mechplateau.runs.cadence import Cadence
from mechplateau.runs.checkpoints import save_tensors
from mechplateau.runs.layout import Layout
from mechplateau.runs.phases import solved_in
from mechplateau.runs.record import (
    Resume,
    Status,
    check_config,
    check_kept,
    check_places,
    check_stop,
    is_file,
    is_finished,
    read_record,
    sessions_of,
    standing,
    state_of,
)

logger = logging.getLogger("mechplateau")

LOCK_PATIENCE = 10.0
"""Seconds to wait for another process that works on the same run."""
LONGEST_ERROR = 500
"""Characters kept of the error that ended a session."""


class RunWriter:
    """The one writer of a run folder; a second one is refused while it is open.

    A finished run is not written to, so it may be in a read-only folder.

    Args:
        config: the run's configuration; the folder is `runs_dir / config.run_name`.
        runs_dir: where run folders lie.

    Attributes:
        finished: the run is complete already, nothing is to be done.
        resume_step: the step to resume from, None for a new run.

    Raises:
        RunError: the folder cannot be written, another process works on it, it is of another configuration, or
            what lies in it contradicts itself; then nothing in it was changed.
        CheckpointError: a checkpoint, or its maps, in an unfinished run's folder is damaged or not the run's own;
            then too.
    """

    def __init__(self, config: RunConfig, runs_dir: Path):
        self.config = config
        self.cadence = Cadence(config)
        self.layout = Layout(runs_dir / config.run_name)
        self.resume_step: int | None = None
        self._resume: Resume | None = None
        self._rows: list[dict[str, Any]] = []
        self._rows_hash = table.hash_of(())
        self._lock: BinaryIO | None = None
        self._begun = False
        self.finished = is_finished(self.layout, config)
        if self.finished:
            self._tidy()
            return
        with explained(self.layout.root):
            self.layout.root.mkdir(parents=True, exist_ok=True)
        self._lock = self._take_lock(LOCK_PATIENCE)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # What is no Exception is an interruption.
        if self._begun and not self.finished and isinstance(error, Exception):
            with suppress(RunError):  # of a full disk, say, which was the error
                self._fail(error)
        self.close()

    def close(self) -> None:
        """Release the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def resume_tensors(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and description saved at `resume_step`."""
        if self._resume is None:
            raise RunError(f"{self.layout.root}: a new run has nothing to resume from")
        return self._resume

    def recorded_threads(self) -> int | None:
        """CPU threads of the run's earlier sessions: a resumed run must use as many to stay equal to the bit."""
        sessions = sessions_of(self.layout)
        threads = sessions[-1].get("threads") if sessions else None
        return threads if isinstance(threads, int) and threads > 0 else None

    def recorded_arithmetic(self) -> int | None:
        """That of the run's last session (see `environment.ARITHMETIC`); None for a new run."""
        sessions = sessions_of(self.layout)
        if not sessions:
            return None
        # Runs were recorded without it while there was but one.
        arithmetic = sessions[-1].get("arithmetic", 1)
        return arithmetic if isinstance(arithmetic, int) else None

    def begin(self, environment: Mapping[str, Any]) -> None:
        """Note the start of a session, and say so where it resumes with another arithmetic."""
        before, now = self.recorded_arithmetic(), environment.get("arithmetic")
        if self.resume_step is not None and before is not None and now is not None and before != now:
            logger.warning(
                "%s: made with arithmetic %s up to step %d, resumed with %s: its numbers differ from an "
                "uninterrupted run's by rounding",
                self.layout.root,
                before,
                self.resume_step,
                now,
            )
        session = {"started": _now(), "resumed_from": self.resume_step, **environment}
        write_text(self.layout.environment, _json({"sessions": [*sessions_of(self.layout), session]}))
        self._set_state("running", self.resume_step or 0)
        self._begun = True

    def append(self, row: Mapping[str, float | int | None]) -> None:
        """Add one row of metrics."""
        self._rows.append(dict(row))
        step = row["step"]
        # A row that only a stop adds is removed when the run resumes.
        if isinstance(step, int) and step in self.cadence.rows:
            table.add_to_hash(self._rows_hash, row)
        table.append_row(self.layout.metrics_part, row)
        self.cadence.note(row)

    def save(
        self,
        step: int,
        weights: Mapping[str, Tensor],
        optimizer: Mapping[str, Tensor],
        maps: Mapping[str, Tensor] | None,
        keep: bool,
    ) -> None:
        """Save what is needed to resume from `step`; with `keep`, the checkpoint and its maps too."""
        table.sync(self.layout.metrics_part)
        config_hash = self.config.content_hash()
        if keep:
            save_tensors(self.layout.checkpoint(step), weights, checkpoint_description(self.config, step))
            if maps:
                save_tensors(self.layout.maps(step), maps, {"step": step, "config_hash": config_hash})
        together = {
            **{f"model.{name}": tensor for name, tensor in weights.items()},
            **{f"optimizer.{name}": tensor for name, tensor in optimizer.items()},
        }
        description = {
            "step": step,
            "config_hash": config_hash,
            "tensors": sorted(together),
            "rows_hash": self._rows_hash.hexdigest(),
        }
        save_tensors(self.layout.resume(step), together, description)
        for older in self.layout.resume_steps():
            if older != step:
                self.layout.resume(older).unlink(missing_ok=True)

    def interrupt(self, step: int) -> None:
        """Note that the run was stopped at `step`, which has been saved."""
        self._set_state("interrupted", step)

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The rows of metrics so far."""
        return self._rows

    def lacks(self, step: int) -> bool:
        """Whether the row or the checkpoint of `step` is yet to be made: where a run stops where it was interrupted."""
        row = self.cadence.measures(step) and not self.has_row(step)
        return row or (self.cadence.keeps(step) and step not in self.layout.checkpoint_steps())

    def has_row(self, step: int) -> bool:
        """Whether `step`, the last one reached, has its row."""
        return bool(self._rows) and self._rows[-1]["step"] == step

    def finish(self, step: int, environment: Mapping[str, Any], stopped: bool = False) -> None:
        """Compact the table, note the end (at `step`) and what was used.

        What was kept to resume from is deleted, unless the run was only `stopped`.
        """
        table.compact(self.layout.metrics, self._rows, self.config.content_hash(), self.config.columns)
        if sessions := sessions_of(self.layout):
            sessions[-1] |= {**environment, "finished": _now()}
            write_text(self.layout.environment, _json({"sessions": sessions}))
        self._set_state("finished", step)
        self.finished = True
        if not stopped:
            self._remove_spent()

    def _open(self) -> None:
        """Find out how far the run is, and prepare its folder to resume."""
        check_places(self.layout)
        if is_file(self.layout.config):
            check_config(self.layout, self.config)
        check_kept(self.layout, self.config)
        rows = table.read_part(self.layout.metrics_part)
        found, resume = read_record(self.layout, self.config, rows)
        judged = standing(found)
        if judged.problem:
            raise RunError(f"{self.layout.root}: {judged.problem}")
        check_stop(self.layout, self.config, found.reached)
        self._remove_leftovers()
        if judged.finished is None and found.stopped is not None:
            # In this order: a kill between any two leaves a run that is finished, or one that can resume.
            self._set_state("interrupted", found.stopped)
            self.layout.metrics.unlink()
        write_text(self.layout.config, self.config.yaml())
        if judged.finished is not None:  # by another process, while this one waited
            self.finished = True
            return
        if found.resume_problem:
            start = judged.resume or 0
            logger.warning("%s; the run resumes from step %d instead", found.resume_problem, start)
        self.resume_step, self._resume = judged.resume, resume
        limit = -1 if judged.resume is None else judged.resume
        before = [row for row in rows if row["step"] <= limit]
        self.cadence.note(*before)
        self._rows = [row for row in before if self.cadence.measures(row["step"])]
        self._rows_hash = table.hash_of(row for row in self._rows if row["step"] in self.cadence.rows)
        if self.layout.metrics_part.exists():
            table.rewrite_part(self.layout.metrics_part, self._rows)

    def _tidy(self) -> None:
        """Finish what a kill at the run's end interrupted, if no process works on it and its folder is writable."""
        stopped = self._stopped()
        spent = () if stopped else self.layout.resume_steps()
        if state_of(self.layout) == "finished" and not spent and not leftovers(self.layout.root):
            return
        with suppress(RunError):
            self._lock = self._take_lock(0)
            try:
                self._remove_leftovers()
                if state_of(self.layout) in (None, "running", "interrupted", "failed"):
                    self._set_state("finished", self.layout.checkpoint_steps()[-1])
                if not stopped and set(spent) <= set(self.layout.checkpoint_steps()):
                    self._remove_spent()
            finally:
                self.close()

    def _stopped(self) -> bool:
        """Whether the finished run was only stopped: it may have to resume."""
        if self.cadence.stop is None or not self.layout.metrics.is_file():
            return False
        metrics = table.read_table(self.layout.metrics, self.config.content_hash())
        return not Cadence.of_table(self.config, metrics).ends(
            int(metrics["step"].iloc[-1]), solved_in(metrics)
        )

    def _remove_leftovers(self) -> None:
        with suppress(OSError):
            for path in leftovers(self.layout.root):
                path.unlink(missing_ok=True)

    def _remove_spent(self) -> None:
        """Delete what a finished run no longer needs: it is complete with or without these files."""
        with suppress(OSError):
            self.layout.metrics_part.unlink(missing_ok=True)
            for step in self.layout.resume_steps():
                self.layout.resume(step).unlink()
            self.layout.resume(0).parent.rmdir()

    def _fail(self, error: Exception) -> None:
        """Note the error that ended the session."""
        told, kind = first_line(error), type(error).__name__
        if not isinstance(error, UserError) and told != kind:
            told = f"{kind}: {told}"
        step = self._rows[-1]["step"] if self._rows else 0
        self._set_state("failed", step, error=told[:LONGEST_ERROR])

    def _set_state(self, status: Status, step: int, **more: str) -> None:
        write_text(self.layout.state, _json({"status": status, "step": step, **more}))

    def _take_lock(self, patience: float) -> BinaryIO | None:
        """Wait at most `patience` seconds, since one that is just being stopped needs a moment to save."""
        with explained(self.layout.lock):
            try:
                return take_lock(self.layout.lock, patience)
            except BlockingIOError:
                raise RunInUse(
                    f"{self.layout.root}: another process is working on this run; wait for it"
                ) from None


def checkpoint_description(config: RunConfig, step: int) -> dict[str, Any]:
    """What a checkpoint says of itself: the whole configuration, the step, and that its weights are raw."""
    # Where a run is stopped in between is not its checkpoints' matter: they are those of a run that never is.
    unstopped = {**config.data(), "training": {**config.training.data(), "stop_at": None}}
    return {"kind": "weights", "processed": False, "step": step, "config": unstopped}


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=2) + "\n"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
