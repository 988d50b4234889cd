"""Draw a figure: its panels side by side, one legend for all of them, and the paper's values beside ours."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mechplateau.signs import Plateau, Signs
from mechplateau.studies.claims import Claim
from mechplateau.studies.figures import Figure, Material
from mechplateau.studies.recipes import PAPER, Recipes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mechplateau.studies.panels import Panel
    from mechplateau.views.figure import PaperFigure


def draw(figure: Figure, recipes: Recipes, material: Material, claims: Sequence[Claim] = ()) -> PaperFigure:
    """The figure of these runs. Its title says the scale where that is not the paper's.

    Of a single recipe the plateau is shaded and its drop a dashed line; of several, a line at the drop of each.

    Args:
        figure: what to draw.
        recipes: the study's, whose `what` names the lines.
        material: tables of the runs, and of their checkpoints where the figure wants them.
        claims: the study's; at the paper's scale, a dotted line shows the paper's value of those of this figure.
    """
    if figure.picture is not None:
        return figure.picture(material)
    import matplotlib

    from mechplateau.views.figure import PaperFigure, style

    columns = min(3, len(figure.panels))
    rows = -(-len(figure.panels) // columns)
    plateaus = {name: _plateau(material, name) for name in figure.recipes}
    told = [
        claim
        for claim in claims
        if claim.figure == figure.id and claim.recipe in figure.recipes and material.scale == PAPER
    ]
    with matplotlib.rc_context(style()):
        width = 2.35 * columns + _room_beside(figure, material, columns)
        sheet = PaperFigure(width, 1.8 * rows + 0.5)
        handles: dict[str, Any] = {}
        for index, ax in enumerate(sheet.subplots(rows, columns, squeeze=False).flat):
            if index >= len(figure.panels):
                ax.remove()
                continue
            panel = figure.panels[index]
            tables = material.measured if panel.of_checkpoints else material.tables
            shown = panel.draw(ax, {recipes[name].what: tables.get(name, ()) for name in figure.recipes})
            _mark_drops(ax, plateaus, {name: shown.get(recipes[name].what) for name in figure.recipes})
            lines = _mark_paper(
                ax, panel, told, {name: shown.get(recipes[name].what) for name in figure.recipes}
            )
            handles = shown | lines | handles
        entitle(sheet, material, figure.id, figure.title)
        _add_legend(sheet, figure, recipes, handles)
    return sheet


def entitle(sheet: PaperFigure, material: Material, id: str, title: str) -> None:
    """Put number, title and scale above it."""
    note = "" if material.scale == PAPER else f"  ({material.scale} scale)"
    sheet.entitle(f"Figure {id}. {title}{note}")


_PAPER_LINE = "value in the paper, or of its code"


def _add_legend(sheet: PaperFigure, figure: Figure, recipes: Recipes, handles: dict[str, Any]) -> None:
    """One legend for all panels, below them."""
    names = [recipes[name].what for name in figure.recipes] if len(figure.recipes) > 1 else []
    if "data" in handles:
        names = [*names, "model", "data"]
    labels = [name for name in (*names, _PAPER_LINE) if name in handles]
    if labels:
        sheet.legend(
            [handles[label] for label in labels],
            labels,
            loc="outside lower center",
            ncols=min(3, len(labels)),
            handlelength=2.4,
        )


def _room_beside(figure: Figure, material: Material, columns: int) -> float:
    """Inches that legends and strips beside panels need, those of the widest panel of each column."""
    if len(figure.recipes) > 1:
        return 0.0
    tables = {True: material.measured, False: material.tables}
    room = [0.0] * columns
    for index, panel in enumerate(figure.panels):
        for table in tables[panel.of_checkpoints].get(figure.recipes[0], ())[:1]:
            if panel.data is None and len(panel.columns(table)) > 1:
                needed = 0.5 if panel.ordered else 1.3
                room[index % columns] = max(room[index % columns], needed)
    return sum(room)


def _plateau(material: Material, name: str) -> tuple[float | None, float | None]:
    """Onset and drop, medians over the seeds; undefined where not most of them have a plateau that ends."""
    runs, tables = material.runs.get(name, ()), material.tables.get(name, ())
    found: list[Plateau] = [run.signs.plateau for run in runs] or [Signs(table).plateau for table in tables]
    ended = [(p.onset, p.drop) for p in found if p.found and p.onset is not None and p.drop is not None]
    if not ended or 2 * len(ended) <= len(found):
        return None, None
    return statistics.median(onset for onset, _ in ended), statistics.median(drop for _, drop in ended)


def _mark_drops(
    ax: Axes, plateaus: dict[str, tuple[float | None, float | None]], lines: dict[str, Any]
) -> None:
    from mechplateau.views.curves import mark_plateau

    if len(plateaus) == 1:
        mark_plateau(ax, *next(iter(plateaus.values())))
        return
    for name, (_, drop) in plateaus.items():
        if drop is not None and lines[name] is not None:
            ax.axvline(
                drop, color=lines[name].get_color(), linewidth=0.6, linestyle=(0, (4, 2)), zorder=1, alpha=0.7
            )


def _mark_paper(ax: Axes, panel: Panel, claims: Sequence[Claim], lines: dict[str, Any]) -> dict[str, Any]:
    """A dotted line at each value that the paper gives of this panel's numbers, with the value at its end."""
    handles: dict[str, Any] = {}
    for claim in claims:
        value = claim.paper_value
        if value is None or claim.number not in panel.told or claim.over is not None:
            continue
        line = lines.get(claim.recipe)
        looks: dict[str, Any] = {
            "color": "#c2410c" if line is None else line.get_color(), "linewidth": 0.9, "linestyle": (0, (1, 1.5)),
        }  # fmt: skip
        if panel.told[claim.number] == "step":
            handles[_PAPER_LINE] = ax.axvline(value, **looks)
            ax.annotate(
                f" {value:g}",
                (value, 0.03),
                xycoords=("data", "axes fraction"),
                fontsize=7,
                color=looks["color"],
            )
        else:
            handles[_PAPER_LINE] = ax.axhline(value, **looks)
            ax.annotate(
                f" {value:g}", (1, value), xycoords=("axes fraction", "data"), va="center", fontsize=7,
                color=looks["color"], annotation_clip=False,
            )  # fmt: skip
    return handles
