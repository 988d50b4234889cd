"""Attention maps and COS matrices for papers, on a signed scale, at the three phases of a run.

Linear attention is signed and unbounded, so the scale comes from the data and is symmetric around 0. On a grey print
the two signs of a diverging scale look alike: negative cells therefore also carry a dash. A cell that is not a finite
number has its own color and a cross, and a note counts them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mechplateau.views.data import ViewError, first_pattern
from mechplateau.views.outline import outline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh

    from mechplateau.views.data import RunView
    from mechplateau.views.figure import PaperFigure

# Negative to positive; the middle is paper.
DIVERGING = ("#7f1426", "#c8463f", "#f0a48e", "#ffffff", "#92bde0", "#3a78b8", "#123a73")
UNDEFINED = "#f2c500"
# Cells below this share of the largest magnitude are too pale to need their sign marked.
_MARKED_FROM = 0.15


_OUTLYING = 2
"""A largest value so many times the usual would leave the rest of a map pale."""

_FEW = 50
"""With fewer cells than this, none is an outlier."""

_USUAL = 0.99
"""This share of the cells that are not 0 is usual."""


def symmetric_limit(arrays: Sequence[np.ndarray]) -> float:
    """A scale from −limit to +limit for these maps: the largest finite magnitude, unless few cells are far above all
    others. Then it is the 99 % quantile of the cells that are not 0, and what lies beyond has the color of the end.
    1 where all is 0."""
    found = [np.abs(a[np.isfinite(a)]).ravel() for a in arrays]
    sizes = np.concatenate([np.asarray(a[a > 0], dtype=np.float64) for a in found]) if found else np.zeros(0)
    if not sizes.size:
        return 1.0
    largest = float(sizes.max())
    if sizes.size < _FEW:
        return largest
    usual = float(np.quantile(sizes, _USUAL, method="lower"))
    return usual if largest > _OUTLYING * usual else largest


def beyond(arrays: Sequence[np.ndarray], limit: float) -> str:
    """The true extremes, for a legend, where a scale to ±limit does not hold them; else nothing."""
    values = np.concatenate([np.asarray(a[np.isfinite(a)], dtype=np.float64).ravel() for a in arrays])
    if not values.size or np.abs(values).max() <= limit:
        return ""
    return f"from {values.min():.2g} to {values.max():.2g}".replace("-", "−")


def draw_map(
    ax: Axes, values: np.ndarray, *, limit: float | None = None, outlines: Sequence[np.ndarray] = ()
) -> QuadMesh:
    """Draw one signed map on an axis of your own.

    Args:
        ax: where.
        values: `[row, column]`, row 0 at the top; may be signed, may hold NaN or infinities.
        limit: the scale goes from −limit to +limit; None: from the data.
        outlines: bool masks of the same shape, outlined.

    Returns:
        The mesh, for `figure.colorbar`.

    Raises:
        ViewError: the map is not two-dimensional, or a mask has another shape.
    """
    from matplotlib.collections import LineCollection
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2:
        raise ViewError(f"draw_map: expected values [row, column], got shape {values.shape}")
    limit = symmetric_limit([values]) if limit is None else limit
    finite = np.isfinite(values)
    # An odd number of colors, so that 0 has the middle one, which is paper.
    colors = LinearSegmentedColormap.from_list("signed", DIVERGING, N=257).with_extremes(bad=UNDEFINED)
    rows, columns = values.shape
    mesh = ax.pcolormesh(
        np.arange(columns + 1) - 0.5,
        np.arange(rows + 1) - 0.5,
        np.ma.masked_where(~finite, values),
        cmap=colors,
        norm=Normalize(-limit, limit),
        # Lines in the cell's own color close the hairlines that PDF viewers show between cells.
        edgecolors="face",
        linewidth=0.15,
    )
    with np.errstate(invalid="ignore"):
        negative = np.argwhere(finite & (values < -_MARKED_FROM * limit))
    dashes = [[(c - 0.22, r), (c + 0.22, r)] for r, c in negative]
    ax.add_collection(LineCollection(dashes, colors="#3a0008", linewidths=0.5))
    crosses = [
        [(c - 0.3, r - s * 0.3), (c + 0.3, r + s * 0.3)] for r, c in np.argwhere(~finite) for s in (1, -1)
    ]
    ax.add_collection(LineCollection(crosses, colors="black", linewidths=0.6))
    for index, mask in enumerate(outlines):
        if np.shape(mask) != values.shape:
            raise ViewError(
                f"draw_map: a mask has shape {np.shape(mask)}, the map {values.shape}; give both the same"
            )
        sides = [[(x0, y0), (x1, y1)] for x0, y0, x1, y1 in outline(mask)]
        ax.add_collection(
            LineCollection(sides, colors="black", linewidths=0.9, linestyles=("-", "--", ":")[index % 3])
        )
    ax.set_aspect("equal")
    ax.set_xlim(-0.5, columns - 0.5)
    ax.set_ylim(rows - 0.5, -0.5)
    for spine in ax.spines.values():
        spine.set_visible(True)
    if not finite.all():
        count = int((~finite).sum())
        ax.text(
            0.99,
            0.99,
            f"{count} undefined (×)" if finite.any() else "every value is undefined",
            transform=ax.transAxes,
            ha="right",
            va="top",
            fontsize=6,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.85},
        )
    return mesh


def plot_phases(view: RunView, *, layer: int = 0, head: int = 0) -> PaperFigure:
    """Attention map of one head and COS matrix before, during and after the plateau, side by side.

    All three maps of a row share one scale. Without a plateau the first and the last checkpoint are shown.

    Args:
        view: the run; needs checkpoints with a pattern or a cosine matrix.
        layer: 0-based layer of the attention map.
        head: 0-based head.

    Raises:
        ViewError: no checkpoint of any phase, no such layer or head, or nothing to draw.
    """
    steps = view.phase_steps()
    if not steps:
        raise ViewError("plot_phases: expected checkpoints of the run's phases, got none; record checkpoints")
    chosen = [view.checkpoint(step) for step in steps.values()]
    names = view.phase_names()
    titles = [f"{names[phase]}, step {step}" for phase, step in steps.items()]
    rows: list[tuple[str, list[np.ndarray], float, list[np.ndarray]]] = []
    if like := first_pattern(chosen):
        n_layers, n_heads = len(like), like[min(layer, len(like) - 1)].shape[0]
        if not 0 <= layer < n_layers or not 0 <= head < n_heads:
            raise ViewError(
                f"plot_phases: expected a layer below {n_layers} and a head below {n_heads}, "
                f"got layer {layer}, head {head}"
            )
        blank = np.full_like(like[layer][head], np.nan)
        maps = [checkpoint.pattern[layer][head] if checkpoint.pattern else blank for checkpoint in chosen]
        outlines = [target.mask for target in view.targets if target.layer == layer]
        label = f"attention, layer {layer} head {head}" if n_layers * n_heads > 1 else "attention"
        rows.append((label, maps, symmetric_limit(maps), outlines))
    cosines = [checkpoint.cosine for checkpoint in chosen]
    if any(cosine is not None for cosine in cosines):
        rows.append(("COS", [_or_undefined(cosine, cosines) for cosine in cosines], 1.0, []))
    if not rows:
        raise ViewError("plot_phases: expected a pattern or a cosine matrix at the phases, got neither")
    return _phase_grid(rows, titles)


def _or_undefined(cosine: np.ndarray | None, others: Sequence[np.ndarray | None]) -> np.ndarray:
    if cosine is not None:
        return cosine
    shape = next(other.shape for other in others if other is not None)
    return np.full(shape, np.nan)


def _phase_grid(
    rows: list[tuple[str, list[np.ndarray], float, list[np.ndarray]]], titles: list[str]
) -> PaperFigure:
    import matplotlib

    from mechplateau.views.figure import PaperFigure, style

    axis_names = {"COS": ("output", "output")}
    with matplotlib.rc_context(style()):
        figure = PaperFigure(2.1 * len(titles) + 0.6, 2.15 * len(rows))
        axes = figure.subplots(len(rows), len(titles), squeeze=False)
        for row, (label, maps, limit, outlines) in enumerate(rows):
            x_name, y_name = axis_names.get(label, ("key position", "query position"))
            for column, values in enumerate(maps):
                ax = axes[row, column]
                mesh = draw_map(ax, values, limit=limit, outlines=outlines)
                ax.set_title(titles[column] if row == 0 else "")
                ax.set_xlabel(x_name)
                if column == 0:
                    ax.set_ylabel(y_name)
            extend = "both" if beyond(maps, limit) else "neither"
            bar = figure.colorbar(mesh, ax=list(axes[row]), shrink=0.85, pad=0.015, aspect=24, extend=extend)
            told = beyond(maps, limit)
            notes = [*(["Ω outlined"] if outlines else []), *([told] if told else [])]
            bar.set_label(label + (f" ({', '.join(notes)})" if notes else ""))
            if not any(np.isfinite(values).any() for values in maps):
                bar.set_ticks([])  # nothing that the numbers would be the scale of
            bar.outline.set_linewidth(0.5)
    return figure
