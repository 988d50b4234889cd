"""Attention transfer: start a run from another run's attention, and see how much of the plateau is left.

`transferred` makes the configuration, `mechplateau.train` runs it, `plateau_left` compares. For several tasks at once,
and beside controls, `mechplateau.studies.transfer` does all three. What is moved, and whether it is frozen, is an
intervention of the new run (`optimal_init`, or `imposed_pattern` for the pattern itself), which records where it came
from by content.

Within a task all of a part moves. Across tasks, attention, LN1 and positions do (so n_ctx must be equal), and rows of
the embeddings only for tokens that the new task states to mean the same (`Task.token_map`). The pattern is the mean map
that the source kept at a checkpoint.

Source: arXiv 2506.13688, section 4 (figure 5), for KQ, KQOV and MLP within moving window sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from mechplateau.config import RunConfig
from mechplateau.errors import ConfigError, UserError
from mechplateau.models.kinds import kind_of
from mechplateau.models.roles import matched
from mechplateau.runs import Run
from mechplateau.runs.phases import Phase
from mechplateau.signs import Plateau, falls_to
from mechplateau.tasks import sequence_task

PATTERN = "pattern"


def transferred(
    config: RunConfig,
    source: Run,
    parts: str | Sequence[str] = "KQ",
    *,
    step: int | Phase = "after",
    freeze: bool = True,
) -> RunConfig:
    """A run's configuration that starts from parts of another run.

    Args:
        config: of the new run, without the transfer.
        source: where the parts come from.
        parts: "KQ", "KQOV", "MLP", "embeddings" (the paper's), "QK_only", "positions", any part or
            tensor that `optimal_init` takes, or "pattern".
        step: of the source, or a phase.
        freeze: keep the moved tensors as they are (a pattern always is).

    Raises:
        UserError: nothing can be moved between these tasks, or shapes differ (named with both).
        ConfigError: an unknown part.
    """
    if not isinstance(source, Run):
        raise UserError(
            f"source: expected a run (mechplateau.load_run gives one), got {type(source).__name__}"
        )
    if parts == PATTERN:
        return _with(config, {"kind": "imposed_pattern", "source": str(source.maps_path(step))})
    names = (parts,) if isinstance(parts, str) else tuple(parts)
    fields: dict[str, Any] = {
        "kind": "optimal_init",
        "source": str(source.checkpoint_path(step)),
        "parts": names,
        "freeze": freeze,
    }
    if source.task != config.task:
        fields |= _across(config, source, names)
    return _with(config, fields)


def _across(config: RunConfig, source: Run, parts: Sequence[str]) -> dict[str, Any]:
    """What moves between different tasks."""
    here, there = (sequence_task(task, "transfer between tasks") for task in (config.task, source.task))
    kind = kind_of(config.model)
    shapes = kind.shapes(config.model, here)
    roles, asked = kind.roles, kind.names_in(parts, shapes)
    token_map = here.token_map(there)
    moved = matched(asked, roles.between_tasks)
    if token_map:
        moved += [name for name in asked if name in roles.token_axis]
    if not moved:
        raise UserError(
            f"{', '.join(parts)}: from {there.name} to {here.name}, only attention, LN1 and positions move"
            f"{'' if token_map else f' (and embeddings where {here.name} states a token map)'}; expected KQ or KQOV"
        )
    if roles.positions in moved and here.n_ctx != there.n_ctx:
        other = kind_of(source.config.model).shapes(source.config.model, there)[roles.positions]
        raise UserError(
            f"{', '.join(parts)}: positions of shape {list(other)} in {there.name} do not fit "
            f"{list(shapes[roles.positions])} in {here.name}; choose tasks of equal length, or leave W_pos out"
        )
    rows = tuple(sorted(token_map.items())) if token_map and set(moved) & set(roles.token_axis) else None
    return {"parts": tuple(moved), "token_rows": rows}


def _with(config: RunConfig, intervention: dict[str, Any]) -> RunConfig:
    """The configuration with one more intervention."""
    data = config.data()
    try:
        return RunConfig.parse({**data, "interventions": [*data["interventions"], intervention]})
    except ConfigError as error:
        raise ConfigError(
            str(error).replace(f"interventions.{len(data['interventions'])}.", "transfer: ")
        ) from None


@dataclass(frozen=True)
class PlateauLeft:
    """How much of a run's plateau another run of the same task still has.

    Attributes:
        left: (reached − onset) / (drop − onset) of the baseline's plateau, at least 0: 0 where the plateau is gone, 1
            where it is as long as before, more where it is longer. None where it is undefined.
        reached: first evaluated step at which the loss, smoothed as for a plateau's drop, is half-way down from the
            baseline's plateau to its end; None where it never is.
        why: why `left` is None.
        ratio: reached / drop of the baseline: 1 where the run is as late, and not cut off at the baseline's onset. None
            where `left` is.
    """

    left: float | None
    reached: int | None
    why: str | None = None
    ratio: float | None = None


def plateau_left(metrics: pd.DataFrame, baseline: Plateau) -> PlateauLeft:
    """Compare a run's loss with the plateau of a baseline.

    Args:
        metrics: the run's table (step, loss).
        baseline: the plateau of a run of the same task that differs in what is studied only.
    """
    if baseline.onset is None or baseline.drop is None:
        return PlateauLeft(None, None, f"the baseline has no plateau ({baseline.reason})")
    assert baseline.plateau_level is not None
    assert baseline.final_level is not None
    half_way = (baseline.plateau_level + baseline.final_level) / 2
    if metrics.empty:
        return PlateauLeft(None, None, "nothing was measured yet")
    found = falls_to(metrics, half_way, baseline.column)
    if found.step is None:
        return PlateauLeft(None, None, f"the loss does not come half-way down within {found.rows.last} steps")
    reached = found.step
    left = max(0.0, (reached - baseline.onset) / (baseline.drop - baseline.onset))
    return PlateauLeft(left, reached, ratio=reached / baseline.drop)
