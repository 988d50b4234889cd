"""The birth of a language model's heads over its checkpoints: what each attends to, beside collapse and repetition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechplateau.views.llm_series import draw_curve, numbers_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from mechplateau.views.figure import PaperFigure

TITLES = {
    "previous_token": "Previous token",
    "first_token": "First token",
    "self": "Itself",
    "same_token": "Earlier copies of the token",
    "induction": "After an earlier copy (induction)",
}


def plot_heads(heads: pd.DataFrame, series: pd.DataFrame) -> PaperFigure:
    """Draw each head's share of attention on each set over the steps, a line a head, colored by its layer.

    Args:
        heads: step, layer, head, set, mass; without rows, only collapse and repetition are drawn.
        series: the table of the series, for collapse and repetition, and for which checkpoints are doubtful: they are
            on no line.

    Returns:
        A figure; `.save("heads.pdf")` writes it.
    """
    import matplotlib

    from mechplateau.views.figure import COLORS, PaperFigure, style

    rows = series[series["step"].notna()].reset_index(drop=True)
    names = list(dict.fromkeys(heads["set"]))
    with matplotlib.rc_context(style()):
        n_rows = -(-(len(names) + 1) // 2)
        figure = PaperFigure(7.2, 2.0 * n_rows)
        grid = figure.add_gridspec(n_rows, 2)
        ax = figure.add_subplot(grid[0, 0])
        for column, label in (("cos_final", "COS"), ("repetition", "repetition")):
            if rows[column].notna().any():
                draw_curve(ax, rows, column, COLORS["cos" if column == "cos_final" else column], label)
        ax.set_title("Collapse and repetition")
        ax.set_ylim(-0.04, 1.04)
        if ax.lines:
            ax.legend(loc="upper right")
        for place, name in enumerate(names, start=1):
            ax = figure.add_subplot(grid[place // 2, place % 2])
            _draw_heads(ax, heads[heads["set"] == name], rows)
            ax.set_title(TITLES.get(str(name), str(name).replace("$", r"\$")))
            ax.set_ylabel("share of attention")
        if names:
            _key_of_layers(ax, int(heads["layer"].max()))
    return figure


def _draw_heads(ax: Axes, heads: pd.DataFrame, rows: pd.DataFrame) -> None:
    from matplotlib import colormaps

    colors = colormaps["viridis"]
    deepest = max(1, int(heads["layer"].max()))
    for _, line in heads.groupby(["layer", "head"]):
        layer, mass = int(line["layer"].iloc[0]), line.set_index("step")["mass"]
        curve = rows.assign(mass=rows["step"].map(mass).astype("Float64"))
        draw_curve(ax, curve, "mass", colors(0.95 * layer / deepest), None, linewidth=0.9, markers=False)
    largest = numbers_of(heads["mass"])
    ax.set_ylim(-0.02, max(0.2, float(largest[largest == largest].max(initial=0.0))) * 1.04)


def _key_of_layers(ax: Axes, deepest: int) -> None:
    """The colors of the first and the last layer."""
    from matplotlib import colormaps
    from matplotlib.lines import Line2D

    colors = colormaps["viridis"]
    shown = sorted({0, deepest // 2, deepest})
    keys = [
        Line2D([], [], color=colors(0.95 * layer / max(1, deepest)), label=f"layer {layer}")
        for layer in shown
    ]
    ax.legend(handles=keys, loc="upper left")
