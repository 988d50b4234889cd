"""Signs: every number that people read off a run's table, each with one definition.

    signs = mechplateau.load_run("runs/mws-0123456789ab").signs
    signs.plateau.onset, signs.plateau.drop     # steps
    signs.collapse                              # Sign(value=0.96, step=81, column='cos_final', rows=…)

Report, `mechplateau show`, figures, claims and summaries all read them here, so they agree to the last digit. A
sign names the column that it read and the rows that it used. Only tables are read: no model, no run folder.

| sign | what | rows |
|---|---|---|
| `plateau` | onset, end, drop and level of the loss's plateau, or "no drop yet": see `finder` | all |
| `solved` | first step with an accuracy of at least 0.95 (`SOLVED`) | with an accuracy |
| `diverged_at` | the step from which on no loss is a finite number | all |
| `learned_at` | the drop; without one, the step at which it was solved | |
| `partial` | first of three rows in which the partial solution's loss is at most half of its entropy | all |
| `partial_lead` | 1 − its step / learned_at | |
| `collapse` | largest COS | on the way |
| `repetition`, `repetition_excess` | largest ρ; minus the mean ρ of the data | on the way |
| `repetition_lasted` | steps for which ρ was above the data's by 0.2 (`REPEATS`) | on the way |
| `equal_to_first` | largest α₁ | while fewer than half of the outputs are right |
| `counts_right` | first of three rows in which values occur as often as they should, in any order | all |
| `entropy`, `entropy_share` | smallest entropy of generated outputs; over the mean of the data's | on the way |
| `ahead_of_loss` | share of its rise that attention progress has made | last up to the plateau's end |
| `progress_falls_back` | largest fall below what it had reached, as a share of its rise | until learned_at |
| `completion_phases` | matrix completion: copying plateau, onset, drop, half, second plateau: see `copying` | all |
| `progress_…` | attention progress at the start, half-way, on the plateau, at the drop, at the end | one row |

Rows: "on the way" is before `learned_at`, without step 0; "on the plateau" is from the onset to the drop, without the
drop's own row. `collapse_on_plateau` and `entropy_share_on_plateau` use those rows. Runs without a plateau have
`collapse_in_second_half` and `entropy_share_in_second_half` of the way instead. Where a run has several columns of one
kind, `collapse_column` and `progress_column` choose one. Undefined is None.
"""

from mechplateau.signs.columns import (
    COLLAPSE,
    LOSS,
    collapse_column,
    collapse_columns,
    loss_column,
    progress_column,
    progress_columns,
)
from mechplateau.signs.copying import Phases, completion_phases
from mechplateau.signs.finder import NO_PLATEAU, Plateau, find_plateau
from mechplateau.signs.live import LivePlateau
from mechplateau.signs.partial import PartialSolution, partial_solution
from mechplateau.signs.reading import Signs, falls_to, plateau, ratio
from mechplateau.signs.solving import SOLVED, is_solved, solved, solved_at
from mechplateau.signs.table import (
    PlateauEnds,
    Rows,
    Sign,
    all_rows,
    column,
    low,
    mean,
    on_the_plateau,
    on_the_way,
    peak,
    value_at,
)

__all__ = [
    "COLLAPSE",
    "LOSS",
    "NO_PLATEAU",
    "SOLVED",
    "LivePlateau",
    "PartialSolution",
    "Phases",
    "Plateau",
    "PlateauEnds",
    "Rows",
    "Sign",
    "Signs",
    "all_rows",
    "collapse_column",
    "collapse_columns",
    "column",
    "completion_phases",
    "falls_to",
    "find_plateau",
    "is_solved",
    "loss_column",
    "low",
    "mean",
    "on_the_plateau",
    "on_the_way",
    "partial_solution",
    "peak",
    "plateau",
    "progress_column",
    "progress_columns",
    "ratio",
    "solved",
    "solved_at",
    "value_at",
]
