"""The numbers of a run that claims are about: signs of its table (`mechplateau.signs`), by name.

"On the way" are the rows before the run has learned: before the plateau's drop where one was found, else before
`solved_at`, else all; without step 0, which shows the initialization. "On the plateau" are those from onset to drop.
Undefined is None.

| number | what |
|---|---|
| steps | last measured step |
| plateau | 1 where a plateau was found, else 0 |
| onset, drop, plateau_level | of the plateau: steps, steps, nats |
| learned_at | drop, or solved_at without a plateau: when the run had learned; None where it never did |
| took | solved_at; steps where the task was never solved (a lower bound): compares runs with and without a plateau, |
| | whatever their loss was at first |
| loss_start, loss_end | first and last loss, nats |
| accuracy_end | accuracy of generation at the last step |
| solved_at | first measured step with an accuracy of at least 0.95 |
| partial_at, others_then | step of the partial solution, and accuracy of the other outputs there |
| partial_lead | 1 − partial_at / learned_at: how far ahead the partial solution is; where the run never learned, with |
| | its last step in place of learned_at (a lower bound) |
| cos_peak, cos_peak_at | largest COS on the way (of several groups of outputs, in the one where it is largest), and |
| | its step |
| cos_plateau, cos_late | its largest COS on the plateau, and in the second half of the way |
| cos_start, cos_first | its COS at step 0, and at the first measured step after it |
| cos_learned, cos_end | its COS at learned_at, and at the last step |
| repetition_peak, repetition_data | largest ρ on the way; ρ of the data, mean over all rows |
| repetition_excess | repetition_peak − repetition_data |
| repetition_peak_share | step of repetition_peak / learned_at |
| repetition_lasted | steps for which ρ is above the data's by at least 0.2, on the way |
| entropy_low, entropy_data | smallest entropy of generated sequences on the way, nats; mean of the data's |
| entropy_share | entropy_low / entropy_data |
| entropy_plateau_share, entropy_late_share | smallest entropy on the plateau, and in the second half of the way, |
| | / entropy_data |
| alpha_peak | largest α₁ on the way |
| alpha_wrong | largest α₁ before half of the outputs are right |
| count_check_peak | permutation: largest count check on the way |
| count_check_all_peak | … averaged over all values as the authors do, absent ones included |
| counts_right_at | permutation: first of three measured steps with a count check of at least 0.95 |
| counts_lead | 1 − counts_right_at / solved_at: how far ahead of their order the values are; where the run was never |
| | solved, with its last step (a lower bound) |
| counts_all_lead | likewise of the authors' average, absent values included |
| apm_start, apm_half, apm_end | attention progress (of several targets and layers the one that rises most) at step 0, |
| | at the row nearest to half of learned_at, at the last step |
| apm_gain | apm_half / apm_start |
| apm_plateau, apm_plateau_gain | attention progress in the middle between onset and drop; / apm_start |
| apm_falls_back | largest fall of attention progress below what it had reached, as a share of its rise |
| apm_ahead | share of its rise that attention progress has made when the loss leaves the plateau |
| cos_peak_{location} | largest COS on the way at each further place measured |
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from mechplateau.config import RunConfig
from mechplateau.models.records import is_layer_place
from mechplateau.signs import COLLAPSE, Signs, ratio
from mechplateau.studies.numbers import Numbers
from mechplateau.tasks import Task, sequence_task


def summarize(metrics: pd.DataFrame, task: Task) -> Numbers:
    """The numbers of a run of `task` with this table; see the module's docstring."""
    signs = Signs(metrics, task)
    steps = int(metrics["step"].iloc[-1])
    plateau, solved, learned, partial = signs.plateau, signs.solved.step, signs.learned_at, signs.partial
    collapse, repetition, entropy = signs.collapse, signs.repetition, signs.entropy
    start, half, during = signs.progress_start, signs.progress_half_way, signs.progress_on_plateau
    until = steps if solved is None else solved
    counted, counted_all = (signs.counts_right(name).step for name in ("count_check", "count_check_all"))
    return {
        "steps": steps,
        "plateau": float(plateau.found),
        "onset": plateau.onset,
        "drop": plateau.drop,
        "plateau_level": plateau.plateau_level,
        "learned_at": learned,
        "took": steps if solved is None else solved,
        "loss_start": signs.first("loss").value,
        "loss_end": signs.last("loss").value,
        "accuracy_end": signs.last("accuracy").value,
        "solved_at": solved,
        "partial_at": partial.step if partial else None,
        "partial_lead": signs.partial_lead,
        "others_then": partial.others if partial else None,
        "cos_peak": collapse.value,
        "cos_peak_at": collapse.step,
        "cos_plateau": signs.collapse_on_plateau.value,
        "cos_late": signs.collapse_in_second_half.value,
        "cos_start": signs.first(collapse.column).value,
        "cos_first": signs.after_start(collapse.column).value,
        "cos_learned": signs.at(collapse.column, learned).value,
        "cos_end": signs.last(collapse.column).value,
        **_at_places(signs),
        "repetition_peak": repetition.value,
        "repetition_data": signs.of_data("repetition").value,
        "repetition_excess": signs.repetition_excess.value,
        "repetition_peak_share": _share(repetition.step, learned),
        "repetition_lasted": signs.repetition_lasted.value,
        "entropy_low": entropy.value,
        "entropy_data": signs.of_data("entropy").value,
        "entropy_share": signs.entropy_share.value,
        "entropy_plateau_share": signs.entropy_share_on_plateau.value,
        "entropy_late_share": signs.entropy_share_in_second_half.value,
        "alpha_peak": signs.peak("alpha_1").value,
        "alpha_wrong": signs.equal_to_first.value,
        "count_check_peak": signs.peak("count_check").value,
        "count_check_all_peak": signs.peak("count_check_all").value,
        "counts_right_at": counted,
        "counts_lead": _lead(counted, until),
        "counts_all_lead": _lead(counted_all, until),
        "apm_start": start.value,
        "apm_half": half.value,
        "apm_end": signs.progress_end.value,
        "apm_gain": ratio(half, start),
        "apm_plateau": during.value,
        "apm_plateau_gain": ratio(during, start),
        "apm_falls_back": signs.progress_falls_back.value,
        "apm_ahead": signs.ahead_of_loss.value,
    }


def _lead(step: int | None, until: int) -> float | None:
    return None if step is None or not until else 1 - step / until


def _share(step: int | None, of: int | None) -> float | None:
    return step / of if step is not None and of else None


def columns_read(config: RunConfig, names: Sequence[str]) -> list[str]:
    """Of a table's columns, those that `summarize` looks at."""
    task = sequence_task(config.task, "a summary")
    early = task.partial_outputs or ()
    single = {f"loss_out_{r}" for r in early}
    if early:
        single |= {f"accuracy_out_{r}" for r in range(task.n_outputs) if r not in early}
    fixed = {task.plateau_column, "loss", "accuracy", "alpha_1", "count_check", "count_check_all"}
    fixed |= {f"{name}{of}" for name in ("repetition", "entropy") for of in ("", "_data")}
    begin = ("apm_", "cos_L", COLLAPSE)
    chosen = (name for name in names if name in fixed | single or name.startswith(begin))
    return [name for name in chosen if name != "apm_zero_count"]


def _at_places(signs: Signs) -> Numbers:
    """The largest COS on the way at each further place, of the group of outputs that represents the run."""
    group = signs.collapse_column.removeprefix(COLLAPSE)
    found: Numbers = {}
    for name in map(str, signs.metrics.columns):
        place = name.removeprefix("cos_").removesuffix(group)
        # Whole names: a group may be called like the end of another one.
        if name == f"cos_{place}{group}" and is_layer_place(place):
            found[f"cos_peak_{place}"] = signs.peak(name).value
    return found
