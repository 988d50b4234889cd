"""Measurements, as pure functions of tensors: they never see a model or a task.

Tensors in, 0-d or 1-d tensors on the same device out, without waiting for it. What the shapes leave undefined
is None. Definitions are those of arXiv 2506.13688 unless the function says otherwise. B sequences, n outputs;
output row r is the position that predicts output r.

| name | formula | unit | rows | at zero, or undefined |
|---|---|---|---|---|
| `accuracy_per_output` | mean over B of [ŷ_r = y_r] | share | each output | |
| `accuracy` | its mean over r | share | all outputs | None: n = 0 |
| `loss_per_output` | mean over B of −log p(y_r) | nats | each output row | |
| `repetition_frequency` | ρ: mean of [y_i = y_{i+1}] | share | adjacent pairs | None: n < 2 |
| `sequence_entropy` | mean over B of −Σ_v f_v log f_v | nats | all outputs | one token only: 0; None: n = 0 |
| `match_to_first` | α₁: mean of [y_i = y_0], i = 0 too | share | all outputs | None: n < 2 |
| `match_to_first_by_part` | α₁ of each part, against its own first | share | each part | None: parts of 1 |
| `count_check` | share of target values that occur as often | share | all outputs | None: n = 0 |
| `count_check_all` | share of all values that occur as often | share | all outputs | None: n = 0 |
| `attention_progress` | APM: mean over B of Σ_Ω abs A / Σ_rows abs A | share | Ω's | zero map: 0, counted; None: no Ω |
| `cosine_matrix` | mean over B of h_i·h_j / (abs h_i abs h_j) | cosine | all output rows | zero vector: 0 |
| `mean_cosine` | COS: mean of the matrix over pairs i > j | cosine | the task's pairs | None: no pair |
| `cosine_per_output` | cos_out_r: mean over i > r | cosine | r = 0 … n−2 | None: n < 2 |
| `mean_norm` | mean of abs h_i | activation | all output rows | None: n = 0 |
| `stable_rank` | mean over B of ‖X‖_F² / ‖X‖₂² | rank | all output rows | X = 0: left out, counted; all 0: NaN |

An empty batch is a ValueError everywhere. Only the data show whether all of a batch's matrices are zero, so
`stable_rank` returns a count and a NaN, which is written to tables as null.

What is read off a table is in `mechplateau.signs`; its `find_plateau`, `Plateau`, `solved_at` and `SOLVED` keep their
old names here.
"""

from __future__ import annotations

from mechplateau._lazy import lazy_names

from .accuracy import accuracy, accuracy_per_output
from .entropy import sequence_entropy
from .loss import loss_per_output
from .progress import attention_progress
from .repetition import (
    count_check,
    count_check_all,
    match_to_first,
    match_to_first_by_part,
    repetition_frequency,
)
from .similarity import cosine_matrix, cosine_per_output, mean_cosine, mean_norm, stable_rank

__all__ = [
    "SOLVED",
    "Plateau",
    "accuracy",
    "accuracy_per_output",
    "attention_progress",
    "cosine_matrix",
    "cosine_per_output",
    "count_check",
    "count_check_all",
    "find_plateau",
    "loss_per_output",
    "match_to_first",
    "match_to_first_by_part",
    "mean_cosine",
    "mean_norm",
    "repetition_frequency",
    "sequence_entropy",
    "solved_at",
    "stable_rank",
]


__getattr__, __dir__ = lazy_names(__name__, {})
