"""A series of language-model checkpoints: the curves of figure 8, as a picture.

Curves are joined only where the table says so (`joined`): a doubtful checkpoint is a red cross by itself, a
missing one a dotted line, and neither is bridged.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.axes import Axes

    from mechplateau.views.figure import PaperFigure

_DOUBT = "#c0281c"
ABSENT = ("missing", "broken")
PANELS = (
    ("cos_final", "Collapse of the final hidden states", "COS", "cos"),
    ("repetition", "Repetition frequency", "ρ", "repetition"),
    ("entropy", "Sequence entropy", "nats", "entropy"),
    ("loss", "Loss on the prompts", "nats per token", "loss"),
)
_MANY_LABELS = 40
"""As many steps fit under the map."""


def plot_series(table: pd.DataFrame) -> PaperFigure:
    """Draw collapse, repetition, entropy and loss over the steps, and the collapse at every layer.

    Args:
        table: one row a checkpoint, in order: `step` (null rows are not drawn), `verdict`, `doubtful`,
            `joined`, `cos_final`, `repetition`, `entropy`, `loss`, and `cos_embed`, `cos_layer_0` … for the
            map.

    Returns:
        A figure; `.save("series.pdf")` writes it. Steps are on a logarithmic axis (linear below 1) where they
        span more than a factor of 50.
    """
    import matplotlib

    from mechplateau.views.figure import COLORS, PaperFigure, style

    rows = table[table["step"].notna()].reset_index(drop=True)
    with matplotlib.rc_context(style()):
        figure = PaperFigure(7.2, 6.0)
        grid = figure.add_gridspec(3, 2, height_ratios=(1, 1, 1.15))
        for (column, title, label, color), place in zip(PANELS, range(4), strict=True):
            ax = figure.add_subplot(grid[place // 2, place % 2])
            draw_curve(ax, rows, column, COLORS[color])
            ax.set_title(title)
            ax.set_ylabel(label)
            if column in ("cos_final", "repetition"):
                low = min([0.0, *rows[column].dropna()])
                ax.set_ylim(low - 0.04, 1.04)
        _draw_layers(figure.add_subplot(grid[2, :]), rows)
        _add_key(figure, rows)
    return figure


def segments(table: pd.DataFrame) -> list[list[int]]:
    """Row numbers that one unbroken line may go through, line by line; single points are lines of length 1.

    A row opens a new line unless `joined`; doubtful and unmeasured rows are on none.
    """
    lines: list[list[int]] = []
    for i in range(len(table)):
        if table["doubtful"].iloc[i] or table["verdict"].iloc[i] in ABSENT:
            continue
        if table["joined"].iloc[i] and lines and lines[-1][-1] == i - 1:
            lines[-1].append(i)
        else:
            lines.append([i])
    return lines


def draw_curve(
    ax: Axes,
    rows: pd.DataFrame,
    column: str,
    color: Any,
    label: str | None = None,
    *,
    linewidth: float = 1.4,
    markers: bool = True,
) -> None:
    """Draw a column over the steps: lines where the table joins its rows; with markers also points, crosses where a
    checkpoint is doubtful, and dotted lines where one is missing."""
    steps, values = numbers_of(rows["step"]), numbers_of(rows[column])
    for i, line in enumerate(segments(rows)):
        # A point by itself would not show without a marker.
        marker = "o" if markers or len(line) == 1 else None
        ax.plot(
            steps[line], values[line], color=color, linewidth=linewidth, marker=marker, markersize=2.6, zorder=3,
            label=label if i == 0 else None,
        )  # fmt: skip
    if markers:
        doubtful = rows["doubtful"].to_numpy(bool)
        ax.plot(
            steps[doubtful],
            values[doubtful],
            linestyle="none",
            marker="x",
            markersize=5,
            markeredgewidth=1.2,
            color=_DOUBT,
            zorder=4,
        )
        for step in steps[rows["verdict"].isin(ABSENT).to_numpy()]:
            ax.axvline(step, color="#999999", linewidth=0.8, linestyle=":", zorder=1)
    ax.set_xlabel("step")
    if spans_much(steps):
        positive = steps[steps > 0]
        ax.set_xscale("symlog", linthresh=1, linscale=0.4)
        ax.set_xlim(-0.2 if steps.min() == 0 else positive.min() / 1.3, positive.max() * 1.3)


def layer_columns(table: pd.DataFrame) -> dict[str, str]:
    """Column of COS → the place in the model it is of, from the embedding to the last norm."""
    layers = [str(name) for name in table.columns if re.fullmatch(r"cos_layer_\d+", str(name))]
    between = {name: f"layer {name.rpartition('_')[2]}" for name in layers}
    return {"cos_embed": "embedding", **between, "cos_final": "final norm"}


def spans_much(steps: np.ndarray) -> bool:
    """Whether steps span so much that an even axis would hide the early ones."""
    positive = steps[steps > 0]
    return bool(len(positive)) and float(positive.max() / positive.min()) > 50


def _draw_layers(ax: Axes, rows: pd.DataFrame) -> None:
    """COS by location and checkpoint; the columns are the rows of the table, evenly spaced."""
    import numpy as np
    from matplotlib import colormaps

    named = layer_columns(rows)
    values = np.stack([numbers_of(rows[name]) for name in named])
    ax.set_title("COS at every layer")
    colors = colormaps["magma"].with_extremes(bad="#dddddd")
    known = values[np.isfinite(values)]
    low = min(0.0, float(known.min())) if known.size else 0.0
    image = ax.imshow(
        np.ma.masked_invalid(values), aspect="auto", origin="lower", cmap=colors, vmin=low, vmax=1.0
    )
    labels = list(named.values())
    stride = -(-len(labels) // 12)
    kept = sorted({*range(0, len(labels) - 1, stride), len(labels) - 1})
    ax.set_yticks(kept, [labels[i] for i in kept])
    doubtful = rows["doubtful"].to_numpy(bool)
    labeled = range(0, len(rows), -(-len(rows) // _MANY_LABELS) or 1)
    ax.set_xticks(labeled, [str(int(rows["step"].iloc[i])) for i in labeled], rotation=45, fontsize=6)
    for i, label in zip(labeled, ax.get_xticklabels(), strict=True):
        if doubtful[i]:
            label.set_color(_DOUBT)
    # Doubtful columns stay marked where there is no room for their labels.
    ax.set_xticks(np.flatnonzero(doubtful), minor=True)
    ax.tick_params(which="minor", color=_DOUBT, length=4, width=1.2)
    ax.set_xlabel("step (evenly spaced)")
    ax.figure.colorbar(image, ax=ax, pad=0.01, fraction=0.04, label="COS")


def _add_key(figure: PaperFigure, rows: pd.DataFrame) -> None:
    from matplotlib.lines import Line2D

    keys = []
    if rows["doubtful"].any():
        keys.append(Line2D([], [], linestyle="none", marker="x", color=_DOUBT, label="doubtful checkpoint"))
    if rows["verdict"].isin(ABSENT).any():
        keys.append(
            Line2D([], [], color="#999999", linestyle=":", label="missing or broken (gray in the map)")
        )
    if keys:
        figure.legend(handles=keys, loc="outside lower center", ncols=2)


def numbers_of(column: pd.Series[Any]) -> np.ndarray:
    """A column as floats, NaN where it is undefined."""
    return column.to_numpy(dtype="float64", na_value=float("nan"))
