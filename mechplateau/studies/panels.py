"""One measure over steps, in a part of a figure: lines are medians over seeds, bands their spread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from mechplateau.views.curves import draw_line, key_of_shades, whole_steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

Runs = Mapping[str, Sequence[pd.DataFrame]]
"""Legend → the tables of a recipe's runs, one a seed."""

# Apart in lightness as well as in hue, and in dashes, so that a grey print keeps them apart.
_LINES: tuple[tuple[str, Any], ...] = (
    ("#20242b", "-"),
    ("#c2410c", "--"),
    ("#1f5fbf", "-."),
    ("#12805c", ":"),
    ("#8e44ad", (0, (5, 1, 1, 1, 1, 1))),
    ("#9a7b00", (0, (1, 1))),
    ("#7a1f4b", (0, (8, 2))),
    ("#5f6b7a", (0, (4, 2, 1, 2))),
)
_DATA_COLOR = "#8a8f98"


def _words(column: str) -> str:
    return column.replace("_", " ")


@dataclass(frozen=True)
class Panel:
    """One measure. Of a single recipe all its columns are drawn, of several recipes a line each.

    Attributes:
        title: above it.
        axis: what the vertical axis shows, with its unit.
        columns: the columns of a run's table that belong to it.
        one: of several recipes, the column that represents a run, which need not be the same in other runs; None: they
            show all their columns.
        label: what the legend says of a column.
        share: values lie from 0 to 1.
        jump: the first values may be far above all others, and then leave the panel, which says how far they go.
        data: a column of the data's own values, which a single recipe is drawn beside.
        ordered: columns are many and in an order, which shades show.
        of_checkpoints: the columns are those of the figure's `checkpoints`, not of the metrics.
        told: numbers of claims that this panel can show the paper's value of, and whether they are a step or a
            value of it.
    """

    title: str
    axis: str
    columns: Callable[[pd.DataFrame], Sequence[str]]
    one: Callable[[pd.DataFrame], str | None] | None = None
    label: Callable[[str], str] = _words
    share: bool = False
    jump: bool = False
    data: str | None = None
    ordered: bool = False
    of_checkpoints: bool = False
    told: Mapping[str, Literal["step", "value"]] = field(default_factory=dict)

    def draw(self, ax: Axes, runs: Runs) -> dict[str, Line2D]:
        """Draw the runs.

        Returns:
            legend → its line, of the first runs that have it.
        """
        ax.set_title(self.title)
        ax.set_xlabel("step")
        ax.set_ylabel(self.axis)
        whole_steps(ax)
        if self.share:
            ax.set_ylim(-0.03, 1.03)
        handles: dict[str, Line2D] = {}
        for index, (name, tables) in enumerate(runs.items()):
            if not tables:
                continue
            if self.ordered:
                self._draw_shades(ax, tables)
            elif len(runs) == 1:
                handles |= self._draw_columns(ax, tables)
            else:
                color, dash = _LINES[index % len(_LINES)]
                for table, column in self._lines(tables):
                    line = draw_seeds(ax, table, column, color=color, dash=dash, label=name)
                    handles.setdefault(name, line)
        ax.margins(x=0)
        if not self.share:
            _hold_range(ax, self.jump, one=len(runs) == 1)
        return handles

    def _draw_columns(self, ax: Axes, tables: Sequence[pd.DataFrame]) -> dict[str, Line2D]:
        """All columns of a single recipe."""
        columns = self.columns(tables[0])
        handles = {}
        for place, column in enumerate(columns):
            color, dash = _LINES[place % len(_LINES)]
            # One recipe is named in the title; its name may be too long for a panel.
            label = self.label(column) if len(columns) > 1 else "model"
            handles[label] = draw_seeds(ax, tables, column, color=color, dash=dash, label=label)
        if self.data is not None:
            handles["data"] = draw_seeds(ax, tables, self.data, color=_DATA_COLOR, dash=":", label="data")
        elif len(columns) > 1:  # beside the panel, where it hides no curve
            ax.legend(
                loc="upper left", bbox_to_anchor=(1, 1.03), borderaxespad=0.2, handlelength=2, fontsize=8
            )
        return handles

    def _draw_shades(self, ax: Axes, tables: Sequence[pd.DataFrame]) -> None:
        """Medians alone; a strip beside them names the first and the last."""
        from matplotlib import colormaps

        shades, columns = colormaps["viridis"], self.columns(tables[0])
        for index, column in enumerate(columns):
            steps, middle, _, _ = over_seeds(tables, column)
            shade = shades(0.95 * index / max(1, len(columns) - 1))
            draw_line(ax, steps, middle, color=shade, linewidth=0.6)
        key_of_shades(ax, [self.label(columns[0]), self.label(columns[-1])])

    def _lines(self, tables: Sequence[pd.DataFrame]) -> list[tuple[list[pd.DataFrame], str]]:
        """Of one recipe among several: the tables and the column of each line."""
        if self.one is None:
            return [(list(tables), column) for column in self.columns(tables[0])]
        # Under one name, since it need not be the same column in all runs.
        return [([table.assign(shown=table.get(self.one(table), np.nan)) for table in tables], "shown")]


def _hold_range(ax: Axes, jump: bool, one: bool) -> None:
    """A line that blows up, or with `jump` the beginning of all, must not flatten the rest: it leaves the panel,
    which says how far it goes."""
    lines = [np.asarray(line.get_xydata(), dtype=float) for line in ax.lines]
    lines = [line[np.isfinite(line[:, 1])] for line in lines]
    lines = [line for line in lines if len(line)]
    end = max((float(line[-1, 0]) for line in lines), default=0.0)
    later = [line[line[:, 0] > _BEGINNING * end] if jump else line for line in lines]
    tops = sorted(float(line[:, 1].max()) for line in later if len(line))
    if not tops:
        return
    usual, middle, largest = (
        tops[-1],
        tops[(len(tops) - 1) // 2],
        max(float(line[:, 1].max()) for line in lines),
    )
    # Columns of one recipe may be of very different size, and with `jump` all are meant to be seen.
    if usual > _FAR * middle and not (jump and one):
        usual = middle
    if usual > 0 and largest > _FAR_AT_FIRST * usual:
        low = min(float(line[:, 1].min()) for line in lines)
        ax.set_ylim(low - 0.05 * (usual - low), usual + 0.3 * abs(usual))
        ax.annotate(
            f"up to {largest:.3g}", (0.99, 0.99), xycoords="axes fraction", ha="right", va="top", fontsize=7
        )


_BEGINNING = 0.05
"""Share of the steps in which a loss may jump."""
_FAR, _FAR_AT_FIRST = 5, 2
"""A line this many times as high as the usual one is off the scale, and so is the beginning of one that jumps."""


def draw_seeds(
    ax: Axes, tables: Sequence[pd.DataFrame], column: str, *, color: Any, dash: Any, label: str
) -> Line2D:
    """Draw the median over seeds, and their spread as a band."""
    steps, middle, low, high = over_seeds(tables, column)
    line = draw_line(ax, steps, middle, color=color, linestyle=dash, linewidth=1.2, label=label)
    if len(tables) > 1:
        ax.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)
    return line


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
