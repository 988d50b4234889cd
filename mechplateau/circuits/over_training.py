"""Apply a tool to every checkpoint of a run: one table with a column `step`.

Cost: the tool's, times the checkpoints, plus some milliseconds to load each. One model is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from mechplateau.circuits.progress import Clock, Listener, listener_for
from mechplateau.errors import UserError

if TYPE_CHECKING:
    from mechplateau.runs import Run


def over_run(
    run: Run,
    tool: Callable[..., Any],
    *args: Any,
    steps: Sequence[int] | None = None,
    device: str = "cpu",
    progress: Listener | str | None = "stderr",
    **options: Any,
) -> pd.DataFrame:
    """Call `tool(model, *args, **options)` for each checkpoint and put the tables one under the other.

    Example:
        `over_run(run, composition_scores)`, or `over_run(run, ablate_heads, tokens, rows=run.task.output_rows)`

    Args:
        run: a run with checkpoints.
        tool: takes a model first; returns a table, or a result with a `table`.
        args, options: what else it takes.
        steps: kept steps; None: all.
        device: where the models are put.
        progress: hears of progress and time left; "stderr": shown there where it takes seconds; None: nobody.

    Returns:
        the tool's table, with `step` as the first column.

    Raises:
        UserError: a step that was not kept, or a tool that returns no table.
    """
    chosen = [run.step_of(step) for step in steps] if steps is not None else list(run.steps)
    if not chosen:
        raise UserError(f"{run.path}: no checkpoint was kept")
    label = getattr(tool, "__name__", "analysis")
    clock = Clock(len(chosen), listener_for(progress, label))
    tables = []
    for step in chosen:
        result = tool(run.model(step, device=device), *args, **options)
        table = getattr(result, "table", result)
        if not isinstance(table, pd.DataFrame):
            raise UserError(
                f"{label} returned {type(result).__name__}; expected a table, or a result with a table"
            )
        tables.append(table.assign(step=step)[["step", *table.columns]])
        clock.add(1)
    return pd.concat(tables, ignore_index=True)
