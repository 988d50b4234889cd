"""Learning coefficients over checkpoints, never without their verdicts: beside the loss, and where the chains were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import matplotlib
import numpy as np

from mechplateau.views.figure import COLORS, DATA_COLOR, PLATEAU_COLOR, PaperFigure, style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

VERDICT_COLORS = {
    "local": "#12805c",
    "undetermined": "#8a8f98",
    "sliding": "#1f5fbf",
    "saturated": "#c0281c",
    "step too large": "#b3450b",
    "chain lost": "#20242b",
}
"""By verdict; each is also named in the legend, and has a marker of its own."""
_MARKERS = {
    "local": "o",
    "undetermined": "s",
    "sliding": "v",
    "saturated": "X",
    "step too large": "^",
    "chain lost": "x",
}


def plot_llc(
    table: pd.DataFrame,
    running: Mapping[int, np.ndarray] | None = None,
    *,
    plateau: tuple[float, float] | None = None,
) -> PaperFigure:
    """Draw λ̂ over checkpoints beside the loss, where the chains were, and the chains themselves.

    Args:
        table: one line a checkpoint: `step`, `loss`, `mean_loss`, `llc`, `paired`, `chain_sd`, `trivial_loss`,
            `verdict`; null where undefined.
        running: step → λ̂ of each chain over its draws so far, `[chain, draw]`; a panel each, at most three.
        plateau: onset and drop, shaded.

    Returns:
        A figure; `.save("llc.pdf")` writes it.
    """
    shown = list((running or {}).items())[:3]
    with matplotlib.rc_context(style()):
        figure = PaperFigure(7.0, 2.5 if not shown else 4.6)
        rows = figure.subfigures(2 if shown else 1, 1, squeeze=False)[:, 0]
        left, right = rows[0].subplots(1, 2)
        for axes in (left, right):
            if plateau is not None:
                axes.axvspan(*plateau, color=PLATEAU_COLOR, lw=0, zorder=0)
            axes.set_xlabel("step")
        _coefficients(left, table)
        _losses(right, table)
        if shown:
            for axes, (step, traces) in zip(
                np.atleast_1d(rows[1].subplots(1, len(shown), sharey=False)), shown, strict=True
            ):
                axes.plot(traces.T, lw=0.8)
                axes.set_title(f"chains at step {step}")
                axes.set_xlabel("draw")
                axes.set_ylabel("λ̂ so far")
    return figure


def _coefficients(axes: Axes, table: pd.DataFrame) -> None:
    best = _numbers(table, "paired")
    best = np.where(np.isfinite(best), best, _numbers(table, "llc"))
    errors = np.nan_to_num(_numbers(table, "chain_sd"))
    steps = table["step"].to_numpy(dtype=float)
    axes.plot(steps, best, color=DATA_COLOR, lw=0.8, zorder=1)
    for verdict, color in VERDICT_COLORS.items():
        here = (table["verdict"] == verdict).to_numpy(dtype=bool) & np.isfinite(best)
        if here.any():
            axes.errorbar(
                steps[here],
                best[here],
                errors[here],
                fmt=_MARKERS[verdict],
                ms=4.5,
                color=color,
                label=verdict,
                lw=0.8,
                zorder=2,
            )
    axes.axhline(0, color=DATA_COLOR, lw=0.5)
    axes.set_title("λ̂ (± chain sd), by verdict")
    axes.set_ylabel("λ̂")
    axes.legend(loc="best")


def _losses(axes: Axes, table: pd.DataFrame) -> None:
    steps = table["step"].to_numpy(dtype=float)
    axes.plot(steps, _numbers(table, "loss"), color=COLORS["loss"], marker="o", ms=3, label="L(w*)")
    axes.plot(
        steps,
        _numbers(table, "mean_loss"),
        color=COLORS["repetition"],
        marker="s",
        ms=3,
        label="E[L] along chains",
    )
    trivial = _numbers(table, "trivial_loss")
    if np.isfinite(trivial).any():
        axes.axhline(
            trivial[np.isfinite(trivial)][0], color=DATA_COLOR, ls="--", lw=0.8, label="trivial loss"
        )
    axes.set_title("Where the chains were")
    axes.set_ylabel("loss")
    axes.legend(loc="best")


def _numbers(table: pd.DataFrame, column: str) -> np.ndarray:
    return table[column].to_numpy(dtype=float, na_value=np.nan)


__all__ = ["VERDICT_COLORS", "plot_llc"]
