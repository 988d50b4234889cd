"""Training curves for papers: one panel a measure, the plateau shaded, the drop marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mechplateau.views.columns import Panel, lone_points, panels, series
from mechplateau.views.data import ViewError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    from mechplateau.views.data import PlateauView, RunView
    from mechplateau.views.figure import PaperFigure

_DASHES = ("-", "--", "-.", ":")
_DROP_COLOR = "#555555"


def plot_curves(view: RunView, *, measures: Sequence[str] | None = None, columns: int = 3) -> PaperFigure:
    """Draw a run's curves over its steps.

    Args:
        view: the run.
        measures: keys of the panels to draw, in this order (`"loss"`, `"accuracy"`, `"cos"`, `"apm"`,
            `"repetition"`, `"entropy"`, `"norm"`, `"rank"`); None: all that the run has.
        columns: panels side by side.

    Returns:
        A figure; `.save("curves.pdf")` writes it. The plateau is shaded, the drop a dashed line; single outputs
        are thin lines from dark (first) to light (last).

    Raises:
        ViewError: a measure the run does not have.
    """
    import matplotlib

    from mechplateau.views.figure import PaperFigure, style

    available = {panel.key: panel for panel in panels(view.metrics, view.plateau, view.columns)}
    chosen = (
        list(available) if measures is None else [measures] if isinstance(measures, str) else list(measures)
    )
    missing = [key for key in chosen if key not in available]
    if missing or not chosen:
        raise ViewError(
            f"measures: expected some of {', '.join(available) or '(the run has none)'}, "
            f"got {', '.join(missing) or 'none'}"
        )
    if columns < 1:
        raise ViewError(f"columns: expected at least 1, got {columns}")
    columns = min(columns, len(chosen))
    rows = -(-len(chosen) // columns)
    with matplotlib.rc_context(style()):
        listed = max(len(available[key].lines) for key in chosen)
        beside = 1.15 * _legend_columns(listed) if listed > 1 else 0.0
        figure = PaperFigure((2.35 + beside) * columns, 1.75 * rows)
        axes = figure.subplots(rows, columns, squeeze=False)
        for index, ax in enumerate(axes.flat):
            if index < len(chosen):
                _draw_panel(ax, view.metrics, available[chosen[index]], view.plateau)
            else:
                ax.remove()
    return figure


def draw_line(ax: Axes, steps: np.ndarray, values: np.ndarray, *, linewidth: float, **style: Any) -> Line2D:
    """One curve; a value between undefined ones, which no line passes through, is a dot."""
    dots = lone_points(values)
    marks: dict[str, Any] = {
        "marker": "o",
        "markersize": 2.5 * linewidth,
        "markeredgewidth": 0,
        "markevery": dots,
    }
    (line,) = ax.plot(steps, values, linewidth=linewidth, **style, **(marks if dots.any() else {}))
    return line


def mark_plateau(ax: Axes, onset: float | None, drop: float | None) -> None:
    """Shade the plateau from onset to drop, and draw a dashed line at the drop; what is None is left out."""
    from mechplateau.views.figure import PLATEAU_COLOR

    if onset is not None and drop is not None:
        ax.axvspan(onset, drop, color=PLATEAU_COLOR, linewidth=0, zorder=0)
    if drop is not None:
        ax.axvline(drop, color=_DROP_COLOR, linewidth=0.7, linestyle=(0, (4, 2)), zorder=1)


def whole_steps(ax: Axes) -> None:
    """Steps are whole numbers, and so are their ticks."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 2.5, 5, 10]))


def key_of_shades(ax: Axes, ends: Sequence[str]) -> None:
    """A strip beside the panel that names its darkest and its lightest line."""
    strip = ax.inset_axes((1.03, 0, 0.04, 1))
    strip.imshow(
        np.linspace(0, 0.95, 64)[:, None], aspect="auto", cmap="viridis", vmin=0, vmax=1, origin="lower"
    )
    strip.set_xticks([])
    strip.set_yticks([0, 63], list(ends), fontsize=7)
    strip.yaxis.tick_right()
    strip.tick_params(length=0)
    strip.set_frame_on(False)


def _draw_panel(ax: Axes, metrics: pd.DataFrame, panel: Panel, plateau: PlateauView | None) -> None:
    from matplotlib import colormaps

    from mechplateau.views.figure import COLORS, DATA_COLOR

    steps = series(metrics, "step")
    if plateau is not None and plateau.found:
        mark_plateau(ax, plateau.onset, plateau.drop)
    shades = colormaps["viridis"]
    for index, column in enumerate(panel.outputs):
        shade = shades(0.95 * index / max(1, len(panel.outputs) - 1))
        draw_line(ax, steps, series(metrics, column), color=shade, linewidth=0.5, alpha=0.75, zorder=2)
    for index, line in enumerate(panel.lines):
        data = line.role == "data"
        color: Any = DATA_COLOR if data else COLORS[panel.color]
        if index and len(panel.lines) > len(_DASHES):  # more lines than there are dashes
            color = shades(0.9 * index / (len(panel.lines) - 1))
        draw_line(
            ax,
            steps,
            series(metrics, line.column),
            label=line.label.split(":")[0],
            color=color,
            linewidth=1.0 if data else 1.4,
            linestyle=":" if data else _DASHES[index % len(_DASHES)],
            zorder=2.5 if data else 3,
        )
    ax.set_title(panel.title)
    ax.set_xlabel("step")
    ax.set_ylabel(panel.axis)
    whole_steps(ax)
    ax.margins(x=0)
    if panel.unit:
        ax.set_ylim(-0.03, 1.03)
    if panel.outputs:
        key_of_shades(ax, ["output 0", str(len(panel.outputs) - 1)])
    if len(panel.lines) > 1:  # beside the panel, where it hides no curve
        ax.legend(
            loc="upper left",
            bbox_to_anchor=(1, 1.03),
            borderaxespad=0.2,
            fontsize=8,
            handlelength=2,
            labelspacing=0.2,
            ncols=_legend_columns(len(panel.lines)),
        )


def _legend_columns(n_lines: int) -> int:
    """As many as fit beside a panel, one below the other."""
    return -(-n_lines // 8)
