"""What a run folder says about its run: how far it is, and where it resumes.

Completion is read from the finished table and the last checkpoint, never off state.json alone. Where the files
contradict each other, or nothing whole is left to resume from, the result is a problem for the user to solve; nothing
is deleted and nothing is started over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import pandas as pd
from torch import Tensor

from mechplateau.config import RunConfig
from mechplateau.errors import CheckpointError, ConfigError, RunError
from mechplateau.runs import table
from mechplateau.runs.cadence import Cadence
from mechplateau.runs.checkpoints import read_description, read_tensors
from mechplateau.runs.layout import REMEDY, Layout
from mechplateau.runs.phases import solved_in
from mechplateau.schema import read_yaml

Status = Literal["running", "interrupted", "failed", "finished"]
Resume = tuple[dict[str, Tensor], dict[str, Any]]


@dataclass(frozen=True)
class Record:
    """What lies in a run folder, as far as it shows how far the run is.

    Attributes:
        state: what state.json says; None where it is missing or damaged.
        last: last step of the finished table, where that ends as the run does.
        table_problem: why there is no `last`; None where there is.
        checkpoints: steps whose weights are there.
        reached: the last step of which anything is there; 0 where nothing is.
        stopped: last step of the finished table, where the run was stopped (`training.stop_at`) before its end.
        resume: the newest step from which the run can resume; None where there is none.
        resume_problem: what is wrong with files of later steps, from which it would otherwise resume, if there are any.
    """

    state: str | None = None
    last: int | None = None
    table_problem: str | None = None
    checkpoints: tuple[int, ...] = ()
    reached: int = 0
    resume: int | None = None
    resume_problem: str | None = None
    stopped: int | None = None


@dataclass(frozen=True)
class Standing:
    """How far a run is: `finished` at a step, to be resumed from step `resume`, or neither: a new run.

    Attributes:
        problem: what is contradictory, and what to do; then nothing may be changed.
    """

    finished: int | None = None
    resume: int | None = None
    problem: str | None = None


def standing(found: Record) -> Standing:
    """How far a run with this record is."""
    if found.last is not None and (found.state == "finished" or found.last in found.checkpoints):
        return Standing(finished=found.last)
    if found.state == "finished" and found.stopped is None:
        return Standing(problem=f"state.json says finished, but {found.table_problem}; {REMEDY}")
    if found.state is not None and found.state not in get_args(Status):
        return Standing(
            problem=f"state.json says {found.state!r}, which this version does not know; update mechplateau"
        )
    if found.resume is not None:
        return Standing(resume=found.resume)
    if found.reached > 0 or found.last is not None:
        why = found.resume_problem or "its resume folder is empty"
        if found.last is not None and found.resume_problem is None:
            why = f"the checkpoint of step {found.last} is missing"
        done = max(found.reached, found.last or 0)
        return Standing(
            problem=f"trained up to step {done}, but nothing is left to resume from ({why}); {REMEDY}"
        )
    return Standing()


def is_finished(layout: Layout, config: RunConfig) -> bool:
    """Whether the folder holds the finished run of this configuration. Changes nothing in it.

    Raises:
        RunError: the folder is of another configuration, or a run that is said to be finished is not complete.
    """
    if not is_file(layout.config):
        return False
    check_config(layout, config)
    table_end = read_end(layout, config)
    check_stop(layout, config, table_end.last or 0)
    found = _with_table(Record(state_of(layout), checkpoints=layout.checkpoint_steps()), layout, table_end)
    if found.last is None and (found.state != "finished" or found.stopped is not None):
        return False
    judged = standing(found)
    if judged.problem and found.state == "finished":
        raise RunError(f"{layout.root}: {judged.problem}")
    return judged.finished is not None


def read_record(
    layout: Layout, config: RunConfig, rows: Sequence[dict[str, Any]]
) -> tuple[Record, Resume | None]:
    """The record of a run that is not finished, and what its `resume` step saved."""
    steps = layout.checkpoint_steps()
    saved = layout.resume_steps()
    step, tensors, resume_problem = _resume(layout, config, rows)
    reached = max((*steps, *saved, *(row["step"] for row in rows)), default=0)
    found = Record(state_of(layout), None, None, steps, reached, step, resume_problem)
    return _with_table(found, layout, read_end(layout, config)), tensors


def _with_table(found: Record, layout: Layout, end: TableEnd) -> Record:
    """The record, and what the finished table shows."""
    if end.ended:
        return replace(found, last=end.last)
    own = read_config(layout.config).training.stop_at if is_file(layout.config) else None
    stopped = end.last is not None and (end.last == own or end.last in layout.resume_steps())
    return replace(found, table_problem=end.problem, stopped=end.last if stopped else None)


def _resume(
    layout: Layout, config: RunConfig, rows: Sequence[dict[str, Any]]
) -> tuple[int | None, Resume | None, str | None]:
    """The newest step from which the run can resume, what was saved there, and what is wrong with a newer file."""
    problem = None
    for step in reversed(layout.resume_steps()):
        path = layout.resume(step)
        try:
            tensors, description = read_tensors(path)
            if sorted(tensors) != description.get("tensors"):
                raise CheckpointError(f"{path}: damaged (it lacks tensors)")
            if description.get("config_hash") != config.content_hash():
                raise CheckpointError(f"{path}: belongs to another run")
            before = [row for row in rows if row["step"] <= step]
            _check_rows(layout, config, before, step, description.get("rows_hash"))
        except CheckpointError as error:
            problem = problem or _short(error, layout)
            continue
        return step, (tensors, description), problem
    return None, None, problem


def _check_rows(
    layout: Layout, config: RunConfig, rows: Sequence[dict[str, Any]], step: int, rows_hash: str | None
) -> None:
    """Raise CheckpointError where these are not the rows that were there when `step` was saved."""
    cadence = Cadence(config)
    cadence.note(*rows)
    # A stop may have added a row, at its own step.
    rows = [row for row in rows if row["step"] in cadence.rows or row["step"] != step]
    if [row["step"] for row in rows] != cadence.rows.until(step):
        raise CheckpointError(f"{layout.metrics_part}: rows up to step {step} are missing")
    # Files of earlier versions lack it.
    if rows_hash is not None and table.hash_of(rows).hexdigest() != rows_hash:
        raise CheckpointError(
            f"{layout.metrics_part}: rows up to step {step} are not those of this run, or were changed"
        )


class TableEnd(NamedTuple):
    """How far a finished table goes.

    Attributes:
        last: its last step, where it has all rows up to there; else None.
        ended: whether a run of the configuration ends or stops there.
        problem: what is wrong; None where `ended`.
    """

    last: int | None
    ended: bool
    problem: str | None


def read_end(layout: Layout, config: RunConfig) -> TableEnd:
    """How far a run's finished table goes."""
    if not is_file(layout.metrics):
        return TableEnd(None, False, "metrics.parquet is missing")
    try:
        metrics = table.read_table(layout.metrics, config.content_hash())
    except RunError as error:
        return TableEnd(None, False, _short(error, layout))
    steps, cadence = metrics["step"].tolist(), Cadence.of_table(config, metrics)
    whole = cadence.whole(steps)
    ended = whole and cadence.stops(steps[-1], solved_in(metrics))
    problem = None if ended else f"metrics.parquet {_too_short(steps[-1], config)}"
    return TableEnd(steps[-1] if whole else None, ended, problem)


def incomplete(metrics: pd.DataFrame, config: RunConfig, resumable: Sequence[int]) -> str | None:
    """What a finished table lacks; None where it has all rows up to where the run ends or was stopped.

    Args:
        resumable: the steps from which the run can resume; a stopped run has kept its last one.
    """
    steps, cadence = metrics["step"].tolist(), Cadence.of_table(config, metrics)
    ended = steps[-1] in resumable or cadence.stops(steps[-1], solved_in(metrics))
    return None if ended and cadence.whole(steps) else _too_short(steps[-1], config)


def _too_short(last: int, config: RunConfig) -> str:
    return f"ends at step {last} of {config.training.steps}, or lacks rows before"


def check_stop(layout: Layout, config: RunConfig, reached: int) -> None:
    """Raise RunError where a run is to stop before the step that it has reached already."""
    stop = Cadence(config).stop
    if stop is not None and stop < reached:
        raise RunError(
            f"{layout.root}: the run has reached step {reached}: expected training.stop_at of at least {reached} or "
            f"null, got {stop}"
        )


def _short(error: Exception, layout: Layout) -> str:
    """What went wrong, without the folder and without what to do."""
    return str(error).removeprefix(f"{layout.root}/").partition("; ")[0]


def status_of(layout: Layout, config: RunConfig) -> Status | None:
    """running (or killed), interrupted, failed or finished; None where the run never began.

    Raises:
        RunError: the state may not be read.
    """
    state = state_of(layout)
    if state != "finished":
        end = read_end(layout, config)
        if end.ended and end.last in layout.checkpoint_steps():
            return "finished"
    return next((status for status in get_args(Status) if status == state), None)


def state_of(layout: Layout) -> str | None:
    """What state.json says; None where it is missing or damaged."""
    state = read_json(layout.state).get("status")
    return state if isinstance(state, str) else None


def failure_of(layout: Layout) -> str | None:
    """The error that ended a run's last session, a line; None where state.json tells of none."""
    state = read_json(layout.state)
    error = state.get("error")
    return error if state.get("status") == "failed" and isinstance(error, str) else None


def sessions_of(layout: Layout) -> list[dict[str, Any]]:
    """What the record of sessions says of each; none where it is lost or damaged."""
    sessions = read_json(layout.environment).get("sessions")
    if not isinstance(sessions, list) or not all(isinstance(session, dict) for session in sessions):
        return []
    return sessions


def read_config(path: Path) -> RunConfig:
    """The configuration of a run folder.

    Raises:
        RunError: it cannot be read.
        ConfigError: it is not valid here; names the file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path}: cannot be read ({error})") from None
    return parse_config(read_yaml(text, str(path)), path)


def parse_config(data: Any, path: Path) -> RunConfig:
    """The configuration that a file of a run holds."""
    try:
        return RunConfig.parse(data)
    except ConfigError as error:
        raise ConfigError(
            f"{path}: {error}; edited by hand, or written by a newer version: then update mechplateau"
        ) from None


def config_of(description: Mapping[str, Any], path: Path) -> RunConfig:
    """The configuration that a checkpoint carries."""
    if description.get("kind") != "weights" or not isinstance(description.get("config"), dict):
        raise CheckpointError(
            f"{path}: holds no model weights; expected a file from a run's checkpoints folder"
        )
    if description.get("processed"):
        raise CheckpointError(
            f"{path}: its weights were processed; expected the raw ones that training saves"
        )
    return parse_config(description["config"], path)


def check_belongs(config_hash: str, expected: RunConfig, path: Path) -> None:
    """Raise CheckpointError where a file is of another configuration than its run's folder says."""
    if config_hash != expected.content_hash():
        raise CheckpointError(
            f"{path}: belongs to another run than the config.yaml beside it; put the right one back"
        )


def check_places(layout: Layout) -> None:
    """Raise RunError where one of the run's files is a folder, or one of its folders is a file."""
    for path in layout.files():
        if path.is_dir():
            raise RunError(f"{path}: is a folder, expected a file; move it away")
    for path in layout.folders:
        if path.exists() and not path.is_dir():
            raise RunError(f"{path}: is no folder; move it away")


def check_kept(layout: Layout, config: RunConfig) -> None:
    """Raise CheckpointError where a checkpoint or its maps are damaged, of another run or of another step."""
    for step in layout.checkpoint_steps():
        path = layout.checkpoint(step)
        check_belongs(config_of(read_description(path), path).content_hash(), config, path)
    for step in layout.maps_steps():
        path = layout.maps(step)
        recorded = read_description(path).get("config_hash")
        if recorded is not None:  # maps of early versions lack it
            check_belongs(recorded, config, path)


def check_config(layout: Layout, config: RunConfig) -> None:
    """Raise RunError where the folder's config.yaml is of another run."""
    there = read_config(layout.config)
    if there.content_hash() != config.content_hash():
        raise RunError(
            f"{layout.config}: is of another run ({there.run_name}) than the one requested ({config.run_name}); "
            "put its own back, or rename the folder"
        )


def is_file(path: Path) -> bool:
    """Whether a file is there.

    Raises:
        RunError: its folder may not be read.
    """
    try:
        return path.is_file()
    except OSError as error:
        raise RunError(f"{path.parent}: cannot be read ({error.strerror or error})") from None


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
