"""Apply a tool, or any function of a model, to every checkpoint of a run: one table with a column `step`.

Cost: the tool's, times the checkpoints, plus some milliseconds to load each. One model is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from torch import Tensor

from mechplateau.errors import UserError

if TYPE_CHECKING:
    from mechplateau.runs import Run
from mechplateau.progress import Progress, bars


def over_run(
    run: Run,
    tool: Callable[..., Any],
    *args: Any,
    steps: Sequence[int] | None = None,
    device: str = "cpu",
    progress: Progress | str | None = "stderr",
    **options: Any,
) -> pd.DataFrame:
    """Call `tool(model, *args, **options)` for each checkpoint and put the tables one under the other.

    Example:
        `over_run(run, composition_scores)`, or `over_run(run, ablate_heads, tokens, rows=run.task.output_rows)`, or
        `over_run(run, lambda model: model.W_Q.norm())`

    Args:
        run: a run with checkpoints.
        tool: takes a model first; returns a table, a result with a `table`, or one number (NaN where undefined).
        args, options: what else it takes.
        steps: kept steps; None: all.
        device: where the models are put.
        progress: makes a bar, as tqdm does (`mechplateau.progress`); "stderr": tqdm's own; None: silent.

    Returns:
        the tool's table, with `step` as the first column; of numbers: step, value.

    Raises:
        UserError: no run or tool, a step that was not kept, a tool that returns neither, or a table that has a `step`
            already.
    """
    if not callable(getattr(run, "step_of", None)):
        raise UserError(f"run: expected a run (mechplateau.load_run gives one), got {type(run).__name__}")
    if not callable(tool):
        raise UserError(f"tool: expected a function of a model, got {type(tool).__name__}")
    if isinstance(steps, str):
        raise UserError(f"steps: expected a list of steps or phases, got {steps!r}")
    chosen = [run.step_of(step) for step in steps] if steps is not None else list(run.steps)
    if not chosen:
        raise UserError(f"{run.path}: no checkpoint was kept")
    label = getattr(tool, "__name__", "analysis")
    tables = []
    with closing(bars(progress)(total=len(chosen), desc=label)) as bar:
        for step in chosen:
            table = _table(tool(run.model(step, device=device), *args, **options), label)
            tables.append(table.assign(step=step)[["step", *table.columns]])
            bar.update(1)
    return pd.concat(tables, ignore_index=True)


def _table(result: object, label: str) -> pd.DataFrame:
    """What a tool returned, as a table; of a number, one line."""
    table = getattr(result, "table", result)
    if isinstance(table, Tensor | np.generic | np.ndarray) and np.prod(table.shape) == 1:
        table = table.item()
    if isinstance(table, Real):
        return pd.DataFrame({"value": [table]})
    if not isinstance(table, pd.DataFrame):
        raise UserError(
            f"{label} returned {type(result).__name__}; expected a table, a result with a table, or one number"
        )
    if "step" in table.columns:
        raise UserError(
            f"{label} returned a table with a column step, which the checkpoint's goes by; rename it"
        )
    return table
