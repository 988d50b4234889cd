"""The study's figures: λ̂ over training with its verdicts, by component, and a scan of settings on the plateau."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from mechplateau.signs import progress_column
from mechplateau.studies.development.coefficients import WHOLE, Coefficients
from mechplateau.studies.development.pictures import by_component, component_table, scan_grid, scan_table
from mechplateau.studies.figures import Figure
from mechplateau.studies.panels import Panel

_LOSSES = {
    "chains_loss": "at w*",
    "chains_mean_loss": "along the chains",
    "chains_trivial_loss": "without looking at the input",
}


def _begin(prefix: str) -> Callable[[pd.DataFrame], Sequence[str]]:
    return lambda table: [str(name) for name in table.columns if str(name).startswith(prefix)]


def _progress(table: pd.DataFrame) -> list[str]:
    name = progress_column(table)
    return [] if name is None else [name]


_OVER_TRAINING = (
    Panel(
        "λ̂, by verdict", "λ̂", _begin(f"{WHOLE}: "), label=lambda name: name.removeprefix(f"{WHOLE}: "),
        of_checkpoints=True,
    ),
    Panel("Losses", "loss", lambda table: list(_LOSSES), label=lambda name: _LOSSES[name], of_checkpoints=True),
    Panel("Attention progress", "share", _progress),
)  # fmt: skip
_OURS = "not in a paper; chains are short, and what that costs is in the verdicts"

FIGURES = (
    Figure("1", "Learning coefficients of the window sum", ("mws",), _OVER_TRAINING, Coefficients(), _OURS),
    Figure(
        "2",
        "Learning coefficients by component",
        ("mws",),
        checkpoints=Coefficients(),
        picture=by_component,
        data=component_table,
        ours=_OURS,
    ),
    Figure(
        "3",
        "A scan of settings on the plateau",
        ("mws",),
        picture=scan_grid,
        data=scan_table,
        ours=_OURS,
    ),
    Figure("4", "Learning coefficients of matrix completion", ("mc",), _OVER_TRAINING, Coefficients(), _OURS),
    Figure(
        "5",
        "A scan of settings on the plateau of matrix completion",
        ("mc",),
        picture=scan_grid,
        data=scan_table,
        ours=_OURS,
    ),
)
