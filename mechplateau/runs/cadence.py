"""Which steps of a run are measured, which are kept, and which is the last."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from mechplateau.config import CheckpointConfig, EvaluationConfig, RunConfig
from mechplateau.signs import LivePlateau, is_solved, loss_column


@dataclass(frozen=True)
class Steps:
    """A set of steps.

    Attributes:
        repeated: pairs (start, every): from `start` on, every so many.
        chosen: further ones.
    """

    repeated: tuple[tuple[int, int], ...] = ()
    chosen: frozenset[int] = frozenset()

    def __contains__(self, step: int) -> bool:
        return step in self.chosen or any(
            step >= start and (step - start) % every == 0 for start, every in self.repeated
        )

    def __or__(self, other: Steps) -> Steps:
        return Steps(self.repeated + other.repeated, self.chosen | other.chosen)

    def until(self, last: int) -> list[int]:
        """Those up to `last`, in order."""
        found = {step for step in self.chosen if step <= last}
        return sorted(found.union(*(range(start, last + 1, every) for start, every in self.repeated)))


class Cadence:
    """When a run measures, when it keeps its weights, and where it ends.

    `training.stop_at` adds one measured and kept step, that of the stop. All else is as in a run that is never stopped,
    so that a stopped run can resume and end equal to it.

    With `checkpoints.from_onset_every` it depends on the rows: call `note` with all of them, in order.

    Attributes:
        rows: steps that a run measures if it is never stopped.
        kept: steps whose weights such a run keeps.
        stop: where this run stops before its own end; None: nowhere.
    """

    def __init__(self, config: RunConfig):
        self._config = config
        self._live: LivePlateau | None = LivePlateau()
        self.kept = _kept(config.checkpoints, config.training.steps)
        self.rows = _measured(config.evaluation, config.training.steps)
        if self._measures_kept:
            self.rows |= self.kept
        stop = config.training.stop_at
        self.stop = stop if stop is not None and stop < config.training.steps else None

    @classmethod
    def of_table(cls, config: RunConfig, metrics: pd.DataFrame) -> Cadence:
        """The cadence of a run with this table."""
        cadence = cls(config)
        if config.checkpoints.from_onset_every is not None:
            read = [name for name in ("step", "accuracy", loss_column(config.task)) if name in metrics]
            columns = zip(*(metrics[name].tolist() for name in read), strict=True)
            cadence.note(*(dict(zip(read, row, strict=True)) for row in columns))
        return cadence

    def note(self, *rows: Mapping[str, Any]) -> None:
        """Read the next rows: once they show the run on its plateau, more steps are kept from there on.

        How that is found: `mechplateau.signs.live`. A row that only a stop added does not count.
        """
        every = self._config.checkpoints.from_onset_every
        for row in rows:
            if every is None or self._live is None:
                return
            if row["step"] not in self.rows:
                continue
            self._live.note(row["step"], row.get(loss_column(self._config.task)))
            if is_solved(row.get("accuracy")):
                self._live = None
            elif self._live.seen is not None:
                self._live = None
                self.kept |= Steps(((row["step"], every),))
                if self._measures_kept:
                    self.rows |= self.kept

    @property
    def _measures_kept(self) -> bool:
        return self._config.evaluation.at == "checkpoints"

    def measures(self, step: int) -> bool:
        """Whether there is a row for `step`."""
        return step in self.rows or step == self.stop

    def keeps(self, step: int) -> bool:
        """Whether the weights of `step` are kept; those of the last step are as well."""
        return step in self.kept or step == self.stop

    def whole(self, steps: Sequence[int]) -> bool:
        """Whether these are the steps of all rows up to the last of them, which may be that of a stop."""
        *before, last = steps
        planned = self.rows.until(last)
        return before == [step for step in planned if step < last]

    def ends(self, step: int, solved: int | None) -> bool:
        """Whether a run that is never stopped ends at `step`.

        That is its last one, or a measured one far enough past the step that solved it.
        """
        training = self._config.training
        share = training.stop_past_solved
        enough = (
            share is not None and solved is not None and step in self.rows and step >= (1 + share) * solved
        )
        return enough or step >= training.steps

    def stops(self, step: int, solved: int | None) -> bool:
        """Whether a run ends at `step` or stops there."""
        return self.ends(step, solved) or (self.stop is not None and step >= self.stop)


def checkpoint_steps(config: CheckpointConfig, steps: int) -> frozenset[int]:
    """Steps whose weights are kept: the union of what the configuration gives, and always 0 and the last.

    Linear: every `every` steps (default: a twentieth of the run, rounded up, where no steps are spaced otherwise).
    Logarithmic: `log_spaced` steps from 1 to the last, steps^(i / (n − 1)). Evenly: `linear_spaced` steps from 0 to the
    last, steps · i / (n − 1). Both are rounded as the configuration says; where rounding makes some coincide, there are
    fewer.
    """
    return frozenset(_kept(config, steps).until(steps))


def _kept(config: CheckpointConfig, steps: int) -> Steps:
    chosen = {0, steps, *(step for step in config.at if step <= steps)}
    if config.log_spaced is not None:
        chosen |= _log_spaced(config.log_spaced, steps, config.rounding)
    if config.linear_spaced is not None:
        chosen |= _linear_spaced(config.linear_spaced, steps, config.rounding)
    every = config.every
    if every is None and config.log_spaced is None and config.linear_spaced is None:
        every = math.ceil(steps / 20)
    return Steps(() if every is None else ((0, every),), frozenset(chosen))


def _measured(config: EvaluationConfig, steps: int) -> Steps:
    spaced = frozenset() if config.log_spaced is None else _log_spaced(config.log_spaced, steps, "nearest")
    return Steps(() if config.every is None else ((0, config.every),), spaced | {0, steps})


def _log_spaced(count: int, steps: int, rounding: Literal["nearest", "down"]) -> frozenset[int]:
    spaced = (math.exp(math.log(steps) * i / (count - 1)) for i in range(count))
    if rounding == "nearest":
        return frozenset(round(step) for step in spaced)
    # A whole number must stay itself, though its power may come out a hair below.
    return frozenset(math.floor(step * (1 + 1e-12)) for step in spaced)


def _linear_spaced(count: int, steps: int, rounding: Literal["nearest", "down"]) -> frozenset[int]:
    half = (count - 1) // 2 if rounding == "nearest" else 0
    return frozenset((steps * i + half) // (count - 1) for i in range(count))
