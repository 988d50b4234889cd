"""Learning coefficients over checkpoints, never without their verdicts: beside the loss, and where the chains were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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
    log_steps: bool = False,
) -> PaperFigure:
    """Draw λ̂ over checkpoints beside the loss, where the chains were, and the chains themselves.

    Args:
        table: one line a checkpoint: `step`, `loss`, `mean_loss`, `llc`, `paired`, `chain_sd`, `trivial_loss`,
            `verdict`; null where undefined.
        running: step → λ̂ of each chain over its draws so far, `[chain, draw]`; a panel each, at most three.
        plateau: onset and drop, shaded.
        log_steps: steps on a logarithmic axis, linear below 1.

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
            if log_steps:
                axes.set_xscale("symlog", linthresh=1, linscale=0.4)
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


def plot_components(
    tables: Mapping[str, pd.DataFrame],
    *,
    whole: str | None = None,
    plateau: tuple[float, float] | None = None,
) -> PaperFigure:
    """Draw λ̂ of several components over checkpoints; the marker of each point is that of its verdict.

    Args:
        tables: component → a table as for `plot_llc`.
        whole: the component that is the whole model, drawn in black; its loss is on the right.
        plateau: onset and drop, shaded.
    """
    with matplotlib.rc_context(style()):
        figure = PaperFigure(7.0, 2.6)
        left, right = figure.subplots(1, 2)
        for axes in (left, right):
            if plateau is not None:
                axes.axvspan(*plateau, color=PLATEAU_COLOR, lw=0, zorder=0)
            axes.set_xlabel("step")
        others = (color for name, color in COLORS.items() if name not in ("loss", "other"))
        seen: dict[str, None] = {}
        for name, table in tables.items():
            steps, values = table["step"].to_numpy(dtype=float), _numbers(table, "paired")
            color = COLORS["loss"] if name == whole else next(others)
            left.plot(steps, values, color=color, lw=1.2, label=name)
            for verdict in dict.fromkeys(table["verdict"]):
                here = (table["verdict"] == verdict).to_numpy(dtype=bool)
                left.plot(steps[here], values[here], _MARKERS[verdict], color=color, ms=4)
                seen.setdefault(str(verdict))
        for verdict in seen:
            left.plot([], [], _MARKERS[verdict], color=DATA_COLOR, ms=4, label=verdict)
        left.axhline(0, color=DATA_COLOR, lw=0.5)
        left.set_title("λ̂ by component")
        left.set_ylabel("λ̂")
        left.legend(loc="best", fontsize=6)
        _losses(right, next(iter(tables.values())) if whole is None else tables[whole])
    return figure


def plot_settings(scan: pd.DataFrame, *, title: str = "") -> PaperFigure:
    """Draw a scan of settings: a panel for each nβ, a cell for each γ and step size, in the color of its verdict, with
    λ̂ and the elasticity.

    Args:
        scan: one line a setting: `n_beta`, `localization`, `step_size` or `share` (of the largest step that is safe),
            `verdict`, `paired`, `elasticity`; null where undefined.
        title: what was scanned.
    """
    from matplotlib.patches import Patch, Rectangle

    step = "share" if "share" in scan else "step_size"
    betas, pulls, sizes = (sorted(scan[name].unique()) for name in ("n_beta", "localization", step))
    with matplotlib.rc_context(style()):
        figure = PaperFigure(max(3.2, 2.4 * len(betas)), 0.45 * len(sizes) + 1.7)
        for axes, beta in zip(figure.subplots(1, len(betas), squeeze=False)[0], betas, strict=True):
            for line in scan[scan["n_beta"] == beta].to_dict("records"):
                x, y = pulls.index(line["localization"]), sizes.index(line[step])
                color = VERDICT_COLORS[line["verdict"]]
                axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fc=color, ec="white", lw=1))
                axes.text(x, y, _cell(line), ha="center", va="center", color="white", fontsize=6)
            axes.set_xlim(-0.5, len(pulls) - 0.5)
            axes.set_ylim(-0.5, len(sizes) - 0.5)
            axes.set_xticks(range(len(pulls)), [f"{pull:g}" for pull in pulls])
            axes.set_yticks(range(len(sizes)), [f"{size:.3g}" for size in sizes])
            axes.set_title(f"nβ = {beta:g}")
            axes.set_xlabel("γ")
            axes.set_ylabel("ε / the largest that is safe" if step == "share" else "ε")
        there = [verdict for verdict in VERDICT_COLORS if (scan["verdict"] == verdict).any()]
        patches = [Patch(color=VERDICT_COLORS[verdict]) for verdict in there]
        figure.legend(patches, there, loc="outside lower center", ncols=len(there))
        above = "λ̂, and the elasticity in brackets" + (f": {title}" if title else "")
        figure.suptitle(above, fontsize=8, x=0.01, ha="left")
    return figure


def _cell(line: Mapping[str, Any]) -> str:
    number, elasticity = (line.get(name) for name in ("paired", "elasticity"))
    if number is None or number != number:
        return "–"
    return f"{number:.3g}\n({'–' if elasticity is None or elasticity != elasticity else f'{elasticity:.2f}'})"


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


__all__ = ["VERDICT_COLORS", "plot_components", "plot_llc", "plot_settings"]
