"""Writing a run: rows, checkpoints and what is needed to go on, so that a kill at any time loses nothing.

Order of a save: the rows so far are put on the disk, then the checkpoint, then its maps, last the file to go
on from. Whatever is found after a kill, the newest file to go on from has its rows and checkpoints beside it;
rows after it are dropped and made again, equal to the bit.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor

from mechplateau.config import RunConfig
from mechplateau.errors import CheckpointError, RunError
from mechplateau.runs import table
from mechplateau.runs.checkpoints import read_tensors, save_tensors
from mechplateau.runs.files import explained, remove_leftovers, write_text
from mechplateau.runs.layout import Layout

try:
    import fcntl
except ImportError:  # Windows: runs there are not guarded against a second writer
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("mechplateau")

LOCK_PATIENCE = 10.0
"""Seconds to wait for another process that works on the same run."""

Status = Literal["running", "interrupted", "finished"]


class RunWriter:
    """The one writer of a run folder; a second one is refused while it is open.

    Args:
        config: the run's configuration; the folder is `runs_dir / config.run_name`.
        runs_dir: where run folders lie.

    Attributes:
        finished: the run is complete already, nothing is to be done.
        resume_step: the step to go on from, None for a new run.
    """

    def __init__(self, config: RunConfig, runs_dir: Path):
        self.config = config
        self.layout = Layout(runs_dir / config.run_name)
        with explained(self.layout.root):
            self.layout.root.mkdir(parents=True, exist_ok=True)
        self._lock = self._take_lock()
        try:
            remove_leftovers(self.layout.root)
            self.finished = status_of(self.layout) == "finished"
            self.resume_step: int | None = None
            self._resume: tuple[dict[str, Tensor], dict[str, Any]] | None = None
            self._rows: list[dict[str, Any]] = []
            if not self.finished:
                self._find_resume()
                write_text(self.layout.config, config.yaml())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def resume_tensors(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and description saved at `resume_step`."""
        if self._resume is None:
            raise RunError(f"{self.layout.root}: a new run has nothing to go on from")
        return self._resume

    def recorded_threads(self) -> int | None:
        """CPU threads of the run's earlier sessions: a resumed run must use as many to stay equal to the bit."""
        sessions = sessions_of(self.layout)
        threads = sessions[-1].get("threads") if sessions else None
        return threads if isinstance(threads, int) and threads > 0 else None

    def begin(self, environment: Mapping[str, Any]) -> None:
        """Note the start of a session."""
        session = {"started": _now(), "resumed_from": self.resume_step, **environment}
        write_text(self.layout.environment, _json({"sessions": [*sessions_of(self.layout), session]}))
        self._set_state("running", self.resume_step or 0)

    def append(self, row: Mapping[str, float | int | None]) -> None:
        """Add one row of metrics."""
        self._rows.append(dict(row))
        table.append_row(self.layout.metrics_part, row)

    def save(
        self,
        step: int,
        weights: Mapping[str, Tensor],
        optimizer: Mapping[str, Tensor],
        maps: Mapping[str, Tensor] | None,
        keep: bool,
    ) -> None:
        """Save what is needed to go on from `step`; with `keep`, the checkpoint and its maps too."""
        table.sync(self.layout.metrics_part)
        if keep:
            save_tensors(self.layout.checkpoint(step), weights, checkpoint_description(self.config, step))
            if maps:
                save_tensors(self.layout.maps(step), maps, {"step": step})
        together = {
            **{f"model.{name}": tensor for name, tensor in weights.items()},
            **{f"optimizer.{name}": tensor for name, tensor in optimizer.items()},
        }
        description = {"step": step, "config_hash": self.config.content_hash(), "tensors": sorted(together)}
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

    def finish(self, step: int, environment: Mapping[str, Any]) -> None:
        """Compact the table, note the end (at `step`) and what was used, and delete what was kept to go on from."""
        table.compact(self.layout.metrics, self._rows)
        if sessions := sessions_of(self.layout):
            sessions[-1] |= {**environment, "finished": _now()}
            write_text(self.layout.environment, _json({"sessions": sessions}))
        self._set_state("finished", step)
        self.finished = True
        with suppress(OSError):  # only leftovers: the run is complete whether they go or stay
            self.layout.metrics_part.unlink(missing_ok=True)
            for step in self.layout.resume_steps():
                self.layout.resume(step).unlink()
            self.layout.resume(0).parent.rmdir()

    def _find_resume(self) -> None:
        """Take the newest readable file to go on from, and drop the rows and checkpoints after it."""
        for step in reversed(self.layout.resume_steps()):
            try:
                tensors, description = read_tensors(self.layout.resume(step))
            except CheckpointError:
                continue
            if sorted(tensors) != description.get("tensors") or description.get("step") != step:
                continue  # not what was saved: an optimizer that lost a tensor would silently begin it anew
            self._resume = tensors, description
            self.resume_step = step
            break
        rows = table.read_part(self.layout.metrics_part)
        if self.resume_step is not None and not self._complete(rows, self.resume_step):
            logger.warning("%s: rows of its metrics are missing; the run begins anew", self.layout.root)
            self._resume = self.resume_step = None
        limit = -1 if self.resume_step is None else self.resume_step
        self._rows = [row for row in rows if row["step"] <= limit]
        if self.layout.metrics_part.exists():
            table.rewrite_part(self.layout.metrics_part, self._rows)
        for step in self.layout.checkpoint_steps():
            if step > limit:
                self.layout.checkpoint(step).unlink()
                self.layout.maps(step).unlink(missing_ok=True)

    def _complete(self, rows: Sequence[Mapping[str, Any]], step: int) -> bool:
        """Whether every evaluation step up to `step` has its row."""
        every, last = self.config.evaluation.every, self.config.training.steps
        wanted = [s for s in range(step + 1) if s % every == 0 or s == last]
        return [row["step"] for row in rows if row["step"] <= step] == wanted

    def _set_state(self, status: Status, step: int) -> None:
        write_text(self.layout.state, _json({"status": status, "step": step}))

    def _take_lock(self):
        if fcntl is None:
            return None
        with explained(self.layout.lock):
            file = self.layout.lock.open("w")
        # One that is just being stopped needs a moment to save.
        deadline = time.monotonic() + LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            except OSError:
                if time.monotonic() < deadline:
                    time.sleep(0.2)
                    continue
            file.close()
            raise RunError(
                f"{self.layout.root}: another process is working on this run; wait for it"
            ) from None


def checkpoint_description(config: RunConfig, step: int) -> dict[str, Any]:
    """What a checkpoint says of itself: the whole configuration, the step, and that its weights are raw."""
    return {"kind": "weights", "processed": False, "step": step, "config": config.data()}


def status_of(layout: Layout) -> Status | None:
    """What the run's state file says; None where there is none."""
    status = read_json(layout.state).get("status")
    return status if status in get_args(Status) else None


def sessions_of(layout: Layout) -> list[dict[str, Any]]:
    """What the record of sessions says of each; none where it is lost or damaged."""
    sessions = read_json(layout.environment).get("sessions")
    if not isinstance(sessions, list) or not all(isinstance(session, dict) for session in sessions):
        return []
    return sessions


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one where there is none.

    Raises:
        RunError: it may not be read.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except PermissionError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from None
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=2) + "\n"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
