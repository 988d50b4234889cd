"""Which column represents a run, where it has several of one kind."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from mechplateau.signs.table import Rows, column, peak

if TYPE_CHECKING:
    import pandas as pd

COLLAPSE = "cos_final"
"""COS of the final hidden states; its groups of outputs have columns that begin so."""
_MASKED_COLLAPSE = re.compile(r"cos_mask_L(\d+)")
"""COS of a matrix's masked cells after a layer."""
_OF_A_HEAD = re.compile(r".*_L\d+H\d+")
LOSS = "loss"


def loss_column(task: object) -> str:
    """The loss whose plateau a task's runs are on: its `plateau_column`, else "loss"."""
    return getattr(task, "plateau_column", LOSS)


def collapse_columns(table: pd.DataFrame) -> list[str]:
    """All columns of COS of the final hidden states, one a group of outputs; of matrices with masked cells, that of
    these cells after the last layer."""
    names = [str(name) for name in table.columns]
    final = [name for name in names if name.startswith(COLLAPSE)]
    layers = {int(found[1]): name for name in names if (found := _MASKED_COLLAPSE.fullmatch(name))}
    return final if final or not layers else [layers[max(layers)]]


def collapse_column(table: pd.DataFrame, rows: Rows) -> str:
    """The COS of final hidden states that represents a run: where a task has several groups of outputs, the one that
    collapses furthest in these rows (the first of equal ones); concatenated windows learn one group after the other."""
    peaks = {name: peak(table, name, rows).value for name in collapse_columns(table)}
    return max(peaks, key=lambda name: -np.inf if (value := peaks[name]) is None else value, default=COLLAPSE)


def progress_columns(table: pd.DataFrame) -> list[str]:
    """All columns of the attention progress measure, one a target and layer; those of single heads are not among
    them."""
    names = [name for name in map(str, table.columns) if name.startswith("apm_")]
    return [name for name in names if name != "apm_zero_count" and not _OF_A_HEAD.fullmatch(name)]


def progress_column(table: pd.DataFrame) -> str | None:
    """The attention progress that represents a run: where a task has several targets or a model several layers, the one
    that rises most from its first to its last defined value (the first of equal ones).

    That is what training moved attention to. The highest at the end need not be: a target with many positions is high
    before anything is learned. None where the table has no such column.
    """
    names = progress_columns(table)
    return max(names, key=lambda name: _rise(column(table, name)), default=None)


def _rise(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known[-1] - known[0]) if len(known) else -np.inf
