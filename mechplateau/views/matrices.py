"""Matrices with masked cells, and attention between cells: what matrix completion shows in a report.

Plain arrays in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.patheffects import Normal, Stroke

from mechplateau.views.figure import PaperFigure, style
from mechplateau.views.maps import beyond, symmetric_limit


@dataclass(frozen=True, eq=False)
class MatrixView:
    """A matrix and what was predicted for it.

    Attributes:
        truth: `[row, column]`.
        masked: bool `[row, column]`: the cells that were to be filled in.
        predicted: name (of a phase, say) → prediction `[row, column]`.
    """

    truth: np.ndarray
    masked: np.ndarray
    predicted: Mapping[str, np.ndarray]


def draw_matrices(matrices: Sequence[MatrixView]) -> PaperFigure:
    """Truth and predictions side by side, a line a matrix; masked cells are outlined in all of them.

    One color scale for all, symmetric around 0.
    """
    names = ["truth", *matrices[0].predicted]
    shown = [[view.truth, *view.predicted.values()] for view in matrices]
    limit = symmetric_limit([values for line in shown for values in line])
    with matplotlib.rc_context(style()):
        sheet = PaperFigure(1.55 * len(names) + 0.5, 1.6 * len(matrices) + 0.3)
        axes = sheet.subplots(len(matrices), len(names), squeeze=False)
        image = None
        for line, view, values in zip(axes, matrices, shown, strict=True):
            for ax, one in zip(line, values, strict=True):
                image = ax.imshow(one, cmap="RdBu_r", vmin=-limit, vmax=limit)
                _outline(ax, view.masked)
        for ax, name in zip(axes[0], names, strict=True):
            ax.set_title(name, fontsize=8)
        if image is not None:
            told = beyond([values for line in shown for values in line], limit)
            label = f"value ({told})" if told else "value"
            sheet.colorbar(image, ax=axes, shrink=0.7, label=label, extend="both" if told else "neither")
    return sheet


def draw_cell_attention(patterns: Mapping[str, Sequence[np.ndarray]], shape: tuple[int, int]) -> PaperFigure:
    """Head maps between cells, a column a head and a line a name (of a phase, say); lines part the matrix's rows.

    One color scale for all maps, so that they can be compared; see `_Scale`.

    Args:
        patterns: name → one `[head, query, key]` a layer.
        shape: rows and columns of the matrix; its cells are numbered row after row.
    """
    heads = [
        (layer, head) for layer, one in enumerate(next(iter(patterns.values()))) for head in range(len(one))
    ]
    scale = _Scale([one for layers in patterns.values() for one in layers])
    parted = range(shape[1], shape[0] * shape[1], shape[1])
    with matplotlib.rc_context(style()):
        sheet = PaperFigure(1.25 * len(heads) + 1.2, 1.35 * len(patterns) + 0.4)
        axes = sheet.subplots(len(patterns), len(heads), squeeze=False)
        for line, (name, layers) in zip(axes, patterns.items(), strict=True):
            for ax, (layer, head) in zip(line, heads, strict=True):
                scale.draw(ax, layers[layer][head], parted, parted)
            line[0].set_ylabel(name, fontsize=7)
        for ax, (layer, head) in zip(axes[0], heads, strict=True):
            ax.set_title(f"L{layer}H{head}", fontsize=7)
        scale.tell(sheet, axes)
    return sheet


def draw_heads(
    layers: Sequence[np.ndarray], down: Sequence[int] = (), across: Sequence[int] = ()
) -> PaperFigure:
    """Head maps, a line a layer and a column a head, on one color scale; see `_Scale`.

    Args:
        layers: one `[head, query, key]` a layer.
        down, across: the queries and the keys before which a line is drawn.
    """
    n_heads = max(len(one) for one in layers)
    scale = _Scale(layers)
    tall = max(one.shape[1] / one.shape[2] for one in layers)
    with matplotlib.rc_context(style()):
        sheet = PaperFigure(1.5 * n_heads + 1.2, (1.4 * tall + 0.25) * len(layers) + 0.5)
        axes = sheet.subplots(len(layers), n_heads, squeeze=False)
        for layer, line in enumerate(axes):
            for head, ax in enumerate(line):
                scale.draw(ax, layers[layer][head], down, across)
                ax.set_title(f"L{layer}H{head}", fontsize=7)
        scale.tell(sheet, axes)
    return sheet


_UNDEFINED = "#d62728"
"""Red, which the scale does not have."""


class _Scale:
    """One color scale for attention maps: from 0 to the largest value, in steps of its square root.

    A head that looks everywhere alike has 1 / cells in each, one that looks at a single cell has 1: by the square root
    both are seen. What is not a finite number is red.
    """

    def __init__(self, arrays: Sequence[np.ndarray]):
        largest = max((float(a[np.isfinite(a)].max(initial=0)) for a in arrays), default=0.0)
        self._limit = largest or 1.0
        self._told = "" if all(np.isfinite(a).all() for a in arrays) else "red: undefined"
        self._norm = PowerNorm(0.5, vmin=0, vmax=self._limit, clip=True)
        self._colors = matplotlib.colormaps["viridis"].with_extremes(bad=_UNDEFINED)
        self._image: AxesImage | None = None

    def draw(self, ax: Axes, values: np.ndarray, down: Sequence[int], across: Sequence[int]) -> None:
        """A map, with a line before each of these queries and keys."""
        self._image = ax.imshow(values, cmap=self._colors, norm=self._norm)
        for query in down:
            ax.axhline(query - 0.5, color="white", linewidth=0.4)
        for key in across:
            ax.axvline(key - 0.5, color="white", linewidth=0.4)
        _bare(ax)

    def tell(self, sheet: PaperFigure, axes: np.ndarray) -> None:
        """The key of colors, beside all maps."""
        assert self._image is not None
        sheet.colorbar(
            self._image,
            ax=axes,
            shrink=min(1.0, 1.2 / len(axes) + 0.3),
            aspect=15,
            label=f"attention ({self._told})" if self._told else "attention",
        )


def _outline(ax: Axes, masked: np.ndarray) -> None:
    _bare(ax)
    # Black with a white rim is seen on every color of the scale.
    rim = [Stroke(linewidth=2.4, foreground="white"), Normal()]
    for row, column in zip(*np.nonzero(masked), strict=True):
        box = Rectangle((column - 0.45, row - 0.45), 0.9, 0.9, fill=False, edgecolor="black", linewidth=1.2)
        box.set_path_effects(rim)
        ax.add_patch(box)


def _bare(ax: Axes) -> None:
    """A map without ticks and axis lines."""
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set_visible(False)


__all__ = ["MatrixView", "draw_cell_attention", "draw_heads", "draw_matrices"]
