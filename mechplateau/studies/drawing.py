"""Draw a figure of the paper from runs: one panel a measure; lines are medians over seeds, bands their spread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mechplateau.metrics.course import progress_column, progress_columns
from mechplateau.studies.plateau.figures import FigureSpec
from mechplateau.studies.plateau.recipes import RECIPES, Scale
from mechplateau.studies.plateau.summary import collapse_column
from mechplateau.views.curves import draw_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    from mechplateau.views.figure import PaperFigure

_TITLES = {
    "loss": ("Loss", "nats"),
    "accuracy": ("Accuracy", "share right"),
    "outputs": ("Accuracy of each output", "share right"),
    "repetition": ("Repetition ρ", "share of pairs"),
    "entropy": ("Entropy of outputs", "nats"),
    "apm": ("Attention progress", "APM"),
    "cos": ("Collapse", "COS"),
    "alpha": ("Equal to the first output", "α₁"),
    "counts": ("Values in right number", "share"),
    "places": ("Collapse at every place", "COS"),
    "probe": ("Probe of attn_out", "test accuracy"),
}
_UNIT = {"accuracy", "outputs", "repetition", "apm", "alpha", "counts", "probe"}
# Apart in lightness as well as in hue, and in dashes, so that a grey print keeps them apart.
_LINES = (
    ("#20242b", "-"),
    ("#c2410c", "--"),
    ("#1f5fbf", "-."),
    ("#12805c", ":"),
    ("#8e44ad", (0, (5, 1, 1, 1, 1, 1))),
    ("#9a7b00", (0, (1, 1))),
    ("#7a1f4b", (0, (8, 2))),
    ("#5f6b7a", (0, (4, 2, 1, 2))),
)

_STANDS_FOR: Mapping[str, Callable[[pd.DataFrame], str | None]] = {
    "apm": progress_column,
    "cos": collapse_column,
}
"""Where several runs are drawn, each shows the one column that stands for it, which need not be that of other seeds."""

Tables = Mapping[str, Sequence[pd.DataFrame]]
"""Recipe → the tables of its runs, one a seed."""


def draw(
    spec: FigureSpec, tables: Tables, scale: Scale, probes: Sequence[pd.DataFrame] | None = None
) -> PaperFigure:
    """The figure of these runs.

    Args:
        spec: what to draw.
        tables: the metrics of its runs.
        scale: said in the title where it is not the paper's.
        probes: for the probe's panel, as `probes.probe_curve` gives them, one a seed.
    """
    import matplotlib

    from mechplateau.views.figure import PaperFigure, style

    columns = min(3, len(spec.panels))
    rows = -(-len(spec.panels) // columns)
    with matplotlib.rc_context(style()):
        figure = PaperFigure(2.35 * columns, 1.8 * rows + 0.5)
        axes = figure.subplots(rows, columns, squeeze=False)
        handles: dict[str, Line2D] = {}
        for index, ax in enumerate(axes.flat):
            if index >= len(spec.panels):
                ax.remove()
                continue
            panel = spec.panels[index]
            title, axis = _TITLES[panel]
            ax.set_title(title)
            ax.set_xlabel("step")
            ax.set_ylabel(axis)
            if panel in _UNIT:
                ax.set_ylim(-0.03, 1.03)
            if panel == "probe":
                _draw_probes(ax, probes)
            else:
                _draw_panel(ax, panel, spec, tables, handles)
            ax.margins(x=0)
        note = "" if scale == "paper" else "  (small scale)"
        figure.suptitle(f"Figure {spec.number}. {spec.title}{note}", fontsize=9, x=0.01, ha="left")
        if len(spec.recipes) > 1:
            labels = [RECIPES[name].what for name in spec.recipes]
            shown = [handles[label] for label in labels if label in handles]
            figure.legend(
                shown,
                [label for label in labels if label in handles],
                loc="outside lower center",
                ncols=min(3, len(shown)),
                handlelength=2.4,
            )
    return figure


def _draw_panel(ax: Axes, panel: str, spec: FigureSpec, tables: Tables, handles: dict[str, Line2D]) -> None:
    single = len(spec.recipes) == 1
    for index, name in enumerate(spec.recipes):
        color, dash = _LINES[index % len(_LINES)]
        runs = tables.get(name, ())
        if not runs:
            continue
        if panel in _STANDS_FOR and not single:
            runs = [run.assign(**{panel: run.get(_STANDS_FOR[panel](run), np.nan)}) for run in runs]
        names = columns_of(panel, runs[0], single)
        if panel == "outputs":
            _draw_outputs(ax, runs, names)
            continue
        for place, column in enumerate(names):
            own_color, own_dash = _LINES[place % len(_LINES)] if single else (color, dash)
            # One recipe is named in the title; its name may be too long for a panel.
            alone = _label(panel, column) if len(names) > 1 else "model"
            label = alone if single else RECIPES[name].what
            line = _draw_line(ax, runs, column, own_color, own_dash, label)
            handles.setdefault(label, line)
        if single and panel in ("repetition", "entropy"):
            _draw_line(ax, runs, f"{panel}_data", "#8a8f98", ":", "data")
            ax.legend(loc="best", handlelength=2)
        elif single and len(names) > 1:
            ax.legend(loc="best", handlelength=2, fontsize=5 if len(names) > 5 else 6)


def columns_of(panel: str, table: pd.DataFrame, single: bool) -> list[str]:
    """The columns that a panel shows: all that belong to it for a single recipe, else the one that stands for it (in
    the panel's own name, where it is not the same in all runs)."""
    names = list(table.columns)
    if panel in _STANDS_FOR and not single:
        return [panel]
    if panel == "apm":
        return progress_columns(table)
    if panel == "cos":
        return [name for name in names if name.startswith("cos_final")]
    if panel == "outputs":
        return [name for name in names if name.startswith("accuracy_out_")]
    if panel == "alpha":
        return [name for name in names if name.startswith("alpha_1")] if single else ["alpha_1"]
    if panel == "counts":
        return ["count_check"]
    if panel == "places":
        return [name for name in names if name.startswith("cos_L")]
    return [panel]


def _label(panel: str, column: str) -> str:
    prefixes = {"apm": "apm_", "cos": "cos_", "alpha": "alpha_1_", "places": "cos_"}
    return column.removeprefix(prefixes.get(panel, "")).replace("alpha_1", "all").replace("_", " ")


def _draw_line(
    ax: Axes, runs: Sequence[pd.DataFrame], column: str, color: str, dash: Any, label: str
) -> Line2D:
    steps, middle, low, high = over_seeds(runs, column)
    line = draw_line(ax, steps, middle, color=color, linestyle=dash, linewidth=1.2, label=label)
    if len(runs) > 1:
        ax.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)
    return line


def _draw_outputs(ax: Axes, runs: Sequence[pd.DataFrame], names: Sequence[str]) -> None:
    from matplotlib import colormaps

    shades = colormaps["viridis"]
    for index, column in enumerate(names):
        steps, middle, _, _ = over_seeds(runs, column)
        ends = index in (0, len(names) - 1)
        draw_line(
            ax,
            steps,
            middle,
            color=shades(0.95 * index / max(1, len(names) - 1)),
            linewidth=0.6,
            label=f"output {index}" if ends else None,
        )
    ax.legend(loc="best", handlelength=1.5)


def _draw_probes(ax: Axes, probes: Sequence[pd.DataFrame] | None) -> None:
    if probes is None:
        return
    for index, (column, label) in enumerate(
        (("authors", "authors' split"), ("ours", "our split"), ("shuffled", "shuffled labels"))
    ):
        color, dash = _LINES[index]
        _draw_line(ax, probes, column, color, dash, label)
    ax.legend(loc="best", handlelength=2)


def over_seeds(
    runs: Sequence[pd.DataFrame], column: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Steps that every seed measured, and median, smallest and largest value over the seeds at each.

    The line ends where the first seed does, since a median over fewer seeds would jump there.
    """
    together = pd.concat([run[["step", column]] for run in runs if column in run.columns])
    grouped = together.groupby("step")[column]
    table = grouped.agg(["median", "min", "max"])[grouped.size() == len(runs)]
    steps, middle, low, high = (table.index, *(table[name] for name in ("median", "min", "max")))
    return steps.to_numpy(), middle.to_numpy(), low.to_numpy(), high.to_numpy()
