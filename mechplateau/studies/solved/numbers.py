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
| apm_rising | share of the plateau's checkpoints with more attention on Ω than the one before | `signs` |
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

from collections.abc import Sequence

import pandas as pd

from mechplateau.config import RunConfig
from mechplateau.runs import Run
from mechplateau.signs import Signs
from mechplateau.studies.numbers import Numbers
from mechplateau.tasks import sequence_task


def numbers(run: Run, scale: str) -> Numbers:
    """What is read off the table."""
    return numbers_of_table(run.metrics, run.config)


def numbers_of_table(metrics: pd.DataFrame, config: RunConfig) -> Numbers:
    """What the table of a run of this configuration gives."""
    signs = Signs(metrics, sequence_task(config.task, "the study of the solved model"))
    return {
        "steps": int(metrics["step"].iloc[-1]),
        "onset": signs.plateau.onset,
        "drop": signs.plateau.drop,
        "solved_at": signs.solved.step,
        "accuracy_end": signs.last("accuracy").value,
    }


def columns_read(config: RunConfig, names: Sequence[str]) -> tuple[str, ...]:
    """The columns of a table that its numbers are read off."""
    return tuple(name for name in names if name in ("loss", "accuracy") or name.startswith("apm_"))
