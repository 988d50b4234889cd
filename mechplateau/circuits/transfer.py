"""Attention transfer: start a run from another run's attention, and see how much of the plateau is left.

`transferred` makes the configuration, `train` runs it; `transfer_matrix` does both for several tasks and compares.
What is moved, and whether it is frozen, is an intervention of the new run (`optimal_init`, or `imposed_pattern` for
the pattern itself), which records where it came from by content.

What a transfer shows depends on its controls. KQ moves tokens, positions and LN1 together with the attention weights,
and these alone can take the plateau away; so can parts of another run, or of no training at all. `transfer_controls`
trains them beside, over several seeds; a difference smaller than that between seeds means nothing.

Within a task all of a part moves. Across tasks, attention, LN1 and positions do (so n_ctx must be equal), and rows of
the embeddings only for tokens that the new task states to mean the same (`Task.token_map`). The pattern is the mean map
that the source kept at a checkpoint.

Cost: a training run for each pair, and one for each target without transfer; finished ones are reused.

Source: arXiv 2506.13688, section 4 (figure 5), for KQ, KQOV and MLP within moving window sums.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from mechplateau.config import RunConfig
from mechplateau.errors import ConfigError, UserError
from mechplateau.interventions.optimal_init import TOKEN_AXIS
from mechplateau.models.kinds import kind_of
from mechplateau.runs import Run
from mechplateau.runs.phases import Phase
from mechplateau.schema import whole_number
from mechplateau.signs import Plateau, falls_to
from mechplateau.tasks import sequence_task
from mechplateau.training import train

PATTERN = "pattern"
_ACROSS_TASKS = ("blocks.*.attn.*", "blocks.*.ln1.*", "pos_embed.W_pos")


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
    asked = kind.names_in(parts, shapes)
    token_map = here.token_map(there)
    moved = [name for name in asked if any(fnmatch.fnmatchcase(name, pattern) for pattern in _ACROSS_TASKS)]
    if token_map:
        moved += [name for name in asked if name in TOKEN_AXIS]
    if not moved:
        raise UserError(
            f"{', '.join(parts)}: from {there.name} to {here.name}, only attention, LN1 and positions move"
            f"{'' if token_map else f' (and embeddings where {here.name} states a token map)'}; expected KQ or KQOV"
        )
    if "pos_embed.W_pos" in moved and here.n_ctx != there.n_ctx:
        other = kind_of(source.config.model).shapes(source.config.model, there)["pos_embed.W_pos"]
        raise UserError(
            f"{', '.join(parts)}: positions of shape {list(other)} in {there.name} do not fit "
            f"{list(shapes['pos_embed.W_pos'])} in {here.name}; choose tasks of equal length, or leave W_pos out"
        )
    rows = tuple(sorted(token_map.items())) if token_map and set(moved) & set(TOKEN_AXIS) else None
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


@dataclass(frozen=True)
class TransferMatrix:
    """How much of each target's plateau is left after a transfer from each source.

    Attributes:
        table: one line a pair: source, target, left (null where undefined or refused), ratio, reached, solved_at,
            baseline_onset, baseline_drop, baseline_solved_at, why (null, or the reason), run (the folder; null where
            refused). A baseline that was never solved (its solved_at is null) may end in the middle of its drop: what
            half-way down means then depends on how long it was trained.
    """

    table: pd.DataFrame

    def grid(self) -> pd.DataFrame:
        """`left` as source × target."""
        grid = self.table.pivot(index="source", columns="target", values="left")
        return grid.loc[list(dict.fromkeys(self.table["source"])), list(dict.fromkeys(self.table["target"]))]


def transfer_matrix(
    sources: dict[str, Run],
    targets: dict[str, RunConfig],
    parts: str | Sequence[str] = "KQ",
    *,
    step: int | Phase = "after",
    freeze: bool = True,
    runs_dir: str | Path = "runs",
    device: str = "cpu",
    threads: int | None = None,
    on_run: Callable[[str, str | None], None] = lambda target, source: None,
) -> TransferMatrix:
    """Train every target from every source, and without, and measure how much of the plateau is left.

    Args:
        sources: label → finished run that gives the parts.
        targets: label → configuration of a run without transfer.
        parts, step, freeze: as for `transferred`.
        runs_dir, device, threads: as for `train`; finished runs are reused.
        on_run: hears which run begins: target's label, source's label (None: the baseline).

    Returns:
        the matrix; a transfer that is refused (shapes that differ, say) is a null with its reason.
    """
    lines = []
    for target, config in targets.items():
        on_run(target, None)
        without = train(config, runs_dir=runs_dir, device=device, threads=threads)
        baseline = without.phases.plateau
        for label, source in sources.items():
            folder: str | None = None
            solved: int | None = None
            try:
                changed = transferred(config, source, parts, step=step, freeze=freeze)
            except UserError as error:
                found = PlateauLeft(None, None, str(error))
            else:
                on_run(target, label)
                run = train(changed, runs_dir=runs_dir, device=device, threads=threads)
                found, folder, solved = plateau_left(run.metrics, baseline), str(run.path), run.solved_at
            of_baseline = (baseline.onset, baseline.drop, without.solved_at)
            of_run = (found.left, found.ratio, found.reached, solved)
            lines.append((label, target, *of_run, *of_baseline, found.why, folder))
    steps = ["reached", "solved_at", "baseline_onset", "baseline_drop", "baseline_solved_at"]
    columns = ["source", "target", "left", "ratio", *steps, "why", "run"]
    types = dict.fromkeys(steps, "Int64") | {
        "left": "Float64",
        "ratio": "Float64",
        "why": "string",
        "run": "string",
    }
    return TransferMatrix(pd.DataFrame(lines, columns=columns).astype(types))


HALVES: Mapping[str, tuple[str, str]] = {"KQ": ("QK_only", "inputs"), "KQOV": ("attention", "inputs")}
"""The paper's parts that hold two things, which a control moves one by one."""


def transfer_controls(
    source: Run,
    config: RunConfig,
    parts: str = "KQ",
    *,
    seeds: int = 3,
    other: Run | None = None,
    step: int | Phase = "after",
    freeze: bool = True,
    runs_dir: str | Path = "runs",
    device: str = "cpu",
    threads: int | None = None,
    on_run: Callable[[int, str], None] = lambda seed, what: None,
) -> pd.DataFrame:
    """A transfer beside its controls, over several seeds of the target.

    Trained for each seed: the target without transfer; `parts`; each half of parts that hold two things (`HALVES`); the
    same parts of the source before it was trained (step 0); the same of another run, where one is given.

    Args:
        source: finished run that gives the parts; it must have kept step 0.
        config: of the target, without transfer; its seed and the next ones are trained.
        parts: what is studied.
        seeds: how many.
        other: another finished run of the source's task.
        step, freeze: as for `transferred`.
        runs_dir, device, threads: as for `train`; finished runs are reused.
        on_run: hears which run begins: seed, what is moved.

    Returns:
        one line a seed and transfer: what (the parts' name, "step 0", "other run"), seed, left, ratio, reached,
        solved_at, why, run. Compare a line's mean over seeds with the spread of the others: a difference below it is
        noise.

    Raises:
        UserError: nothing can be moved, or the source kept no step 0.
    """
    if whole_number(seeds, "seeds") < 1:
        raise UserError(f"seeds: expected at least 1, got {seeds}")
    moved: list[tuple[str, Run, str, int | Phase]] = [(parts, source, parts, step)]
    moved += [(half, source, half, step) for half in HALVES.get(parts, ())]
    moved.append(("step 0", source, parts, 0))
    if other is not None:
        moved.append(("other run", other, parts, step))
    lines = []
    for seed in range(config.seed, config.seed + seeds):
        target = config.with_(seed=seed)
        configs = {
            what: transferred(target, run, part, step=at, freeze=freeze) for what, run, part, at in moved
        }
        on_run(seed, "nothing")
        baseline = train(target, runs_dir=runs_dir, device=device, threads=threads).phases.plateau
        for what, changed in configs.items():
            on_run(seed, what)
            run = train(changed, runs_dir=runs_dir, device=device, threads=threads)
            found = plateau_left(run.metrics, baseline)
            of_run = (found.left, found.ratio, found.reached, run.solved_at)
            lines.append((what, seed, *of_run, found.why, str(run.path)))
    columns = ["what", "seed", "left", "ratio", "reached", "solved_at", "why", "run"]
    types = {"left": "Float64", "ratio": "Float64", "reached": "Int64", "solved_at": "Int64", "why": "string"}
    return pd.DataFrame(lines, columns=columns).astype(types)
