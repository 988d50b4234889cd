"""A series of language-model checkpoints: figure 8's curves, and a page with the verdict on each checkpoint.

Curves are joined only where the table says so (`joined`): a doubtful checkpoint is a red cross by itself, a
missing one a dotted line, and neither is bridged.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechplateau.files import file_path
from mechplateau.views._files import write_file
from mechplateau.views.text import visible_token

if TYPE_CHECKING:
    import jinja2
    import numpy as np
    import pandas as pd
    from matplotlib.axes import Axes

    from mechplateau.views.data import SectionView
    from mechplateau.views.figure import PaperFigure

_TEMPLATES = Path(__file__).parent / "templates"
_DOUBT = "#c0281c"
_ABSENT = ("missing", "broken")
_PANELS = (
    ("cos_final", "Collapse of the final hidden states", "COS", "cos"),
    ("repetition", "Repetition frequency", "ρ", "repetition"),
    ("entropy", "Sequence entropy", "nats", "entropy"),
    ("loss", "Loss on the prompts", "nats per token", "loss"),
)
_MANY_ROWS = 60
"""Examples are shown of at most about this many checkpoints, evenly spread."""

_MANY_LABELS = 40
"""As many steps fit under the map."""

Examples = Mapping[str, Sequence[tuple[str, Sequence[str | None]]]]
"""By checkpoint label: prompts and the tokens written after them; None where a token is undefined."""


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
        for (column, title, label, color), place in zip(_PANELS, range(4), strict=True):
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
        if table["doubtful"].iloc[i] or table["verdict"].iloc[i] in _ABSENT:
            continue
        if table["joined"].iloc[i] and lines and lines[-1][-1] == i - 1:
            lines[-1].append(i)
        else:
            lines.append([i])
    return lines


@dataclass(frozen=True)
class HeadsSection:
    """What the page shows of the heads.

    Attributes:
        figure: of `mechplateau.views.llm_heads.plot_heads`.
        births: layer, head, set, born, most, most_at, last.
        note: on what they were measured, a sentence.
    """

    figure: PaperFigure
    births: pd.DataFrame
    note: str


def render_series(
    table: pd.DataFrame,
    *,
    title: str,
    summary: Sequence[str] = (),
    examples: Examples | None = None,
    heads: HeadsSection | None = None,
    sections: Sequence[SectionView] = (),
) -> str:
    """The page: findings, figure, a verdict a checkpoint, the heads, and what the checkpoints wrote.

    Args:
        table: as for `plot_series`, with `label`, `note`, `hash`, `dtype`, `distance`.
        title: what the series is called.
        summary: the findings, a sentence each.
        examples: completions to show.
        heads: what the heads attend to.
        sections: what else was measured.

    Returns:
        Self-contained HTML without scripts; nothing in it is fetched, and text from outside is escaped.
    """
    steps = table[table["step"].notna()]
    shown = _thinned([str(label) for label in steps["label"].dropna() if examples and label in examples])
    names = {str(row["label"]): _whole(row["step"]) for _, row in steps.iterrows()}
    prompts = [prompt for prompt, _ in examples[shown[0]]] if examples and shown else []
    return _template().render(
        title=visible_token(title),
        summary=summary,
        style=(_TEMPLATES / "report.css").read_text(encoding="utf-8"),
        figure=base64.b64encode(_svg(table)).decode() if table["cos_final"].notna().any() else None,
        rows=[_cells(row) for _, row in table.iterrows()],
        heads=None if heads is None else _heads(heads),
        sections=[_section(section) for section in sections],
        examples=[
            (
                visible_token(prompt),
                [
                    (
                        names[label],
                        [None if t is None else visible_token(t) for t in (examples or {})[label][i][1]],
                    )
                    for label in shown
                ],
            )
            for i, prompt in enumerate(prompts)
        ],
    )


def save_series(
    path: str | Path,
    table: pd.DataFrame,
    *,
    title: str,
    summary: Sequence[str] = (),
    examples: Examples | None = None,
    heads: HeadsSection | None = None,
    sections: Sequence[SectionView] = (),
) -> Path:
    """Write the page as one HTML file, whole or not at all.

    Raises:
        ViewError: the file cannot be written.
    """
    html = render_series(
        table, title=title, summary=summary, examples=examples, heads=heads, sections=sections
    )
    # A lone surrogate has no UTF-8 form; as a character reference it shows as the replacement character.
    return write_file(file_path(path), html.encode("utf-8", errors="xmlcharrefreplace"))


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
        for step in steps[rows["verdict"].isin(_ABSENT).to_numpy()]:
            ax.axvline(step, color="#999999", linewidth=0.8, linestyle=":", zorder=1)
    ax.set_xlabel("step")
    positive = steps[steps > 0]
    if len(positive) and positive.max() / positive.min() > 50:
        ax.set_xscale("symlog", linthresh=1, linscale=0.4)
        ax.set_xlim(-0.2 if steps.min() == 0 else positive.min() / 1.3, positive.max() * 1.3)


def _draw_layers(ax: Axes, rows: pd.DataFrame) -> None:
    """COS by location and checkpoint; the columns are the rows of the table, evenly spaced."""
    import numpy as np
    from matplotlib import colormaps

    layers = [name for name in rows.columns if re.fullmatch(r"cos_layer_\d+", name)]
    names = ["cos_embed", *layers, "cos_final"]
    values = np.stack([numbers_of(rows[name]) for name in names])
    ax.set_title("COS at every layer")
    colors = colormaps["magma"].with_extremes(bad="#dddddd")
    known = values[np.isfinite(values)]
    low = min(0.0, float(known.min())) if known.size else 0.0
    image = ax.imshow(
        np.ma.masked_invalid(values), aspect="auto", origin="lower", cmap=colors, vmin=low, vmax=1.0
    )
    labels = ["embedding", *(f"layer {name.rpartition('_')[2]}" for name in layers), "final norm"]
    stride = -(-len(labels) // 12)
    kept = sorted({*range(0, len(labels) - 1, stride), len(labels) - 1})
    ax.set_yticks(kept, [labels[i] for i in kept])
    doubtful = rows["doubtful"].to_numpy(bool)
    labeled = range(0, len(rows), -(-len(rows) // _MANY_LABELS) or 1)
    ax.set_xticks(labeled, [_whole(rows["step"].iloc[i]) for i in labeled], rotation=45, fontsize=6)
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
    if rows["verdict"].isin(_ABSENT).any():
        keys.append(
            Line2D([], [], color="#999999", linestyle=":", label="missing or broken (gray in the map)")
        )
    if keys:
        figure.legend(handles=keys, loc="outside lower center", ncols=2)


def _cells(row: pd.Series[Any]) -> dict[str, Any]:
    kind = "no" if row["doubtful"] or row["verdict"] in _ABSENT else "yes"
    return {
        "step": _whole(row["step"]) if _known(row["step"]) else visible_token(str(row["label"])),
        "kind": kind,
        "verdict": str(row["verdict"]).replace("_", " ").replace("+", ", "),
        "note": visible_token(str(row["note"])),
        "numbers": [
            _number(row[name]) for name in ("cos_final", "repetition", "entropy", "loss", "distance")
        ],
        "hash": str(row["hash"])[:12] if _known(row["hash"]) else "–",
        "dtype": str(row["dtype"]) if _known(row["dtype"]) else "–",
    }


def _section(section: SectionView) -> dict[str, Any]:
    picture = section.picture
    return {
        "title": section.title,
        "text": section.text,
        "picture": None if picture is None else base64.b64encode(picture._render(".svg", dpi=100)).decode(),
        "alt": section.alt,
        "columns": section.columns,
        "rows": section.rows,
    }


def _heads(heads: HeadsSection) -> dict[str, Any]:
    return {
        "figure": base64.b64encode(heads.figure._render(".svg", dpi=100)).decode(),
        "note": visible_token(heads.note),
        "rows": [
            [
                f"L{row['layer']}H{row['head']}",
                visible_token(str(row["set"])).replace("_", " "),
                _whole(row["born"]),
                _number(row["most"]),
                _whole(row["most_at"]),
                _number(row["last"]),
            ]
            for row in heads.births.to_dict("records")
        ],
    }


def _svg(table: pd.DataFrame) -> bytes:
    return plot_series(table)._render(".svg", dpi=100)


def _thinned(labels: list[str]) -> list[str]:
    stride = -(-len(labels) // _MANY_ROWS) or 1
    return labels[::stride]


def numbers_of(column: pd.Series[Any]) -> np.ndarray:
    """A column as floats, NaN where it is undefined."""
    return column.to_numpy(dtype="float64", na_value=float("nan"))


def _known(value: Any) -> bool:
    import pandas as pd

    return not pd.isna(value)


def _whole(value: Any) -> str:
    return f"{int(value)}"


def _number(value: Any) -> str:
    return f"{float(value):.3g}" if _known(value) else "–"


@cache
def _template() -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("llm_series.html")
