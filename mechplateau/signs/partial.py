"""The partial solution: the outputs that a task is known to give early, before the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mechplateau.signs.table import Rows, all_rows, mean_column, steps_of

if TYPE_CHECKING:
    import pandas as pd

KNOWN = 0.5
"""Share of its entropy from which on, as a loss, a partial solution counts as known."""
IN_A_ROW = 3
"""Evaluations running for which it must be known: one batch may be lucky."""


@dataclass(frozen=True)
class PartialSolution:
    """When the outputs of a partial solution were known.

    Attributes:
        step: first of three measured steps in a row at which their loss, mean over them, is at most half of their
            entropy in the data, which is the loss of one who knows how frequent each value is and no more. None where
            there is none, or they never vary. Teacher-forced: a final carry that is known is wrong in generation for as
            long as the digits before it are.
        outputs: which outputs they are, counted from 0.
        others: accuracy of the other outputs in generation, mean over them, at that step; None where undefined.
        measured: whether their loss is defined in some row.
        entropy: of those outputs in the data, nats, mean over them.
        column: the columns that were looked at.
        rows: the rows that were looked at.
    """

    step: int | None
    outputs: tuple[int, ...]
    others: float | None
    measured: bool
    entropy: float
    column: str
    rows: Rows


def partial_solution(table: pd.DataFrame, task: Any) -> PartialSolution | None:
    """The partial solution of a run of this task; None where the task names none, or names all its outputs.

    Args:
        table: columns step, `loss_out_{r}` of the partial solution's outputs and `accuracy_out_{r}` of the others.
        task: says which outputs they are, and gives the data.
    """
    early = tuple(getattr(task, "partial_outputs", None) or ())
    late = [r for r in range(task.n_outputs) if r not in early] if early else []
    if not late:
        return None
    steps, names = steps_of(table), [f"loss_out_{r}" for r in early]
    entropy = entropy_of(task, early)
    loss = mean_column(table, names)
    known = (loss <= KNOWN * entropy) & (entropy > 0)
    count = len(steps) - IN_A_ROW + 1
    lasting = np.all([known[shift : shift + count] for shift in range(IN_A_ROW)], axis=0) if count > 0 else []
    found = np.flatnonzero(lasting)
    step = others = None
    if len(found):
        row = int(found[0])
        step = int(steps[row])
        accuracy = float(mean_column(table, [f"accuracy_out_{r}" for r in late])[row])
        others = accuracy if np.isfinite(accuracy) else None
    measured = bool(np.isfinite(loss).any())
    return PartialSolution(step, early, others, measured, entropy, ", ".join(names), all_rows(table))


def entropy_of(task: Any, outputs: Sequence[int]) -> float:
    """Entropy in nats of each of these outputs over the data, mean over them; of 65,536 sequences."""
    tokens = task.sample(2**16, seed=0)[:, task.prompt_length :]
    shares = [torch.bincount(tokens[:, r]).double() / len(tokens) for r in outputs]
    return float(np.mean([torch.special.entr(share).sum() for share in shares]))
