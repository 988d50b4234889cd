"""Attention transfer, trained: every pair of tasks, or one transfer beside its controls.

What a transfer shows depends on its controls. KQ moves tokens, positions and LN1 together with the attention weights,
and these alone can take the plateau away; so can parts of another run, or of no training at all. `transfer_controls`
trains them beside, over several seeds. A difference smaller than that between seeds means nothing.

Cost: a training run for each pair, and one for each target without transfer; finished ones are reused.

Source: arXiv 2506.13688, section 4 (figure 5), for KQ, KQOV and MLP within moving window sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from mechplateau.circuits.transfer import PlateauLeft, plateau_left, transferred
from mechplateau.config import RunConfig
from mechplateau.errors import UserError
from mechplateau.runs import Run
from mechplateau.runs.phases import Phase
from mechplateau.schema import whole_number
from mechplateau.training import train


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
