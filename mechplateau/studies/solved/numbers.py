"""The numbers of a run of moving window sums that the study's claims are about.

The last checkpoint is meant where no step is said; "during" is the kept step nearest to the middle of the plateau,
`run.phases.during`. Losses and accuracies are teacher-forced, over outputs that are window sums (over all outputs where
parts are patched), on sequences with a seed of their own. What a tool measures is defined in `mechplateau.circuits`.
Undefined is None.

| number | what | tool |
|---|---|---|
| steps, onset, drop, solved_at, accuracy_end | of the table | `signs` |
| map_r2 | R² of attention at the output rows, of its mean over sequences | `fixed_map` |
| map_accuracy | accuracy with every pattern replaced by that mean | `fixed_map` |
| evenness | median over windows of smallest / largest weight, signed | `window_weights` |
| same_sign | share of windows whose weights all have the sign of the median weight | `window_weights` |
| copy_opposite | share of copied inputs whose weight has the other sign | `window_weights` |
| separator_correlation | correlation of what the separator and Ω add on average, median over windows' rows | |
| | | `mean_contributions` |
| separator_rows, separator_left | over those rows, of what separator and inputs add on average along the | |
| | separator's value: correlation, and variance of their sum / of the inputs' part | `balance_over_rows` |
| separator_rows_during, separator_left_during | the same at the step during | |
| ov_symmetry | how alike a token adds at the places of a window | `place_symmetry` |
| embedding_peak | largest share of the embeddings' variance at one frequency | `spectrum` |
| tuning_end, tuning_control | median over neurons of the share of the tuning curve's variance at the neuron's | |
| | frequency; the same over sums of permuted tokens, mean over permutations | `neuron_tuning` |
| tuning_gap | tuning_end − tuning_control | |
| phase_lock, phase_cosine | length, and part along 0, of the mean over neurons of e^{i (out − 2 in)} | `phase_lock` |
| logits_share | share of the logits' variance that is a sum of cosines of (sum − answer) | `logits_of_the_sum` |
| keep_accuracy, remove_accuracy | with only its frequency kept in each neuron, or that taken away | |
| | | `ablate_frequencies` |
| keep_permuted, remove_permuted | the same with the frequencies over sums of permuted tokens | |
| keep_other | with another frequency of the same sum kept, drawn for each neuron | |
| keep_terms_accuracy, remove_terms_accuracy, … | as the five before and remove_other, with all that the | |
| | frequency makes of the terms, not of their sum alone | `ablate_frequencies` |
| apm_rising | of the plateau's rows at multiples of 10 steps, the share with less on Ω than 10 steps later | `signs` |
| apm_gain | attention on Ω at the row half-way between onset and drop / at step 0 | `signs` |
| tuning_start, tuning_during | as tuning_end, at step 0 and during | |
| tuning_rise_share | first kept step with tuning at least half-way from tuning_start to tuning_end / drop | |
| qk_during, ov_during, mlp_during | loss of the solved model with the part of during, nats | `patch_parameters` |
| ov_minus_qk, mlp_minus_ov | their differences | |
| qk_ready_share, ov_ready_share, mlp_ready_share | first kept step from which on the solved model with that step's | |
| | part has a loss at most half-way between that with step 0's part and its own / drop | |
| ov_after_qk, mlp_after_ov | differences of these shares | |
| attention_recovered, mlp_recovered, joint_recovered | share of the loss that the solved attention, MLP, or both | |
| | take away in the model of during | `patch_parameters` |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from mechplateau.config import RunConfig
from mechplateau.runs import Run
from mechplateau.signs import Signs, column, ratio
from mechplateau.studies.numbers import Numbers
from mechplateau.studies.solved.inside import EVERYWHERE, PARTS, read
from mechplateau.tasks import sequence_task

_SPACING = 10
"""Steps between the rows that apm_rising compares: those between checkpoints."""


def numbers(run: Run, scale: str) -> Numbers:
    """What is read off the table, and what was measured on all checkpoints before."""
    found = numbers_of_table(run.metrics, run.config)
    done = read(run)
    if not done or set(done) != {*run.steps, *run.missing}:
        return found
    return found | over_steps(done, run.phases.during, found["drop"])


def numbers_of_table(metrics: pd.DataFrame, config: RunConfig) -> Numbers:
    """What the table of a run of this configuration gives."""
    signs = Signs(metrics, sequence_task(config.task, "the study of the solved model"))
    return {
        "steps": int(metrics["step"].iloc[-1]),
        "onset": signs.plateau.onset,
        "drop": signs.plateau.drop,
        "solved_at": signs.solved.step,
        "accuracy_end": signs.last("accuracy").value,
        "apm_rising": _rising(signs),
        "apm_gain": ratio(signs.progress_on_plateau, signs.progress_start),
    }


def over_steps(done: Mapping[int, Numbers], during: int | None, drop: float | None) -> Numbers:
    """The numbers that are read off what was measured at the checkpoints.

    Args:
        done: step → what `inside` measured.
        during: the step on the plateau.
        drop: of the plateau.
    """
    last = max(done)
    own = {name.removeprefix("solved_"): done[last][name] for name in done[last] if name not in EVERYWHERE}
    middle: Numbers = {} if during is None else done[during]
    start, end, control = done[min(done)]["tuning"], own.pop("tuning"), own.pop("tuning_control")
    found: Numbers = {
        **own,
        "tuning_start": start,
        "tuning_during": middle.get("tuning"),
        "tuning_end": end,
        "tuning_control": control,
        "tuning_gap": _minus(end, control),
    }
    half = None if start is None or end is None else (start + end) / 2
    risen = [
        step
        for step in sorted(done)
        if half is not None and (tuned := done[step]["tuning"]) is not None and tuned >= half
    ]
    found["tuning_rise_share"] = _over(risen[0] if risen else None, drop)
    for part in PARTS:
        name = part.lower()
        found[f"{name}_during"] = middle.get(f"loss_{name}")
        found[f"{name}_ready_share"] = _over(_ready(done, f"loss_{name}"), drop)
    found["ov_minus_qk"] = _minus(found["ov_during"], found["qk_during"])
    found["mlp_minus_ov"] = _minus(found["mlp_during"], found["ov_during"])
    found["ov_after_qk"] = _minus(found["ov_ready_share"], found["qk_ready_share"])
    found["mlp_after_ov"] = _minus(found["mlp_ready_share"], found["ov_ready_share"])
    return found


def columns_read(config: RunConfig, names: Sequence[str]) -> tuple[str, ...]:
    """The columns of a table that its numbers are read off."""
    apm = (name for name in names if name.startswith("apm_") and name != "apm_zero_count")
    return ("loss", "accuracy", *apm)


def _rising(signs: Signs) -> float | None:
    """See apm_rising."""
    onset, drop, name = signs.plateau.onset, signs.plateau.drop, signs.progress_column
    if onset is None or drop is None or name is None:
        return None
    at = dict(zip(signs.metrics["step"].astype(int), column(signs.metrics, name), strict=True))
    first = -(-int(onset) // _SPACING) * _SPACING
    pairs = [
        (at.get(step), at.get(step + _SPACING)) for step in range(first, int(drop) - _SPACING + 1, _SPACING)
    ]
    rises = [b > a for a, b in pairs if a is not None and b is not None and np.isfinite([a, b]).all()]
    return sum(rises) / len(rises) if rises else None


def _ready(done: Mapping[int, Numbers], name: str) -> int | None:
    """The first step from which on the loss with its part is at most half-way from that with step 0's to the last's."""
    steps = sorted(done)
    losses = [done[step][name] for step in steps]
    first, last = losses[0], losses[-1]
    if first is None or last is None or first <= last:
        return None
    ready = None
    for step, loss in zip(reversed(steps), reversed(losses), strict=True):
        if loss is None or loss > (first + last) / 2:
            break
        ready = step
    return ready


def _over(value: float | None, unit: float | None) -> float | None:
    return None if value is None or not unit else value / unit


def _minus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other
