"""Draw a figure: its panels side by side, one legend for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechplateau.studies.figures import Figure, Material
from mechplateau.studies.recipes import PAPER, Recipes

if TYPE_CHECKING:
    from matplotlib.lines import Line2D

    from mechplateau.views.figure import PaperFigure


def draw(figure: Figure, recipes: Recipes, material: Material) -> PaperFigure:
    """The figure of these runs. Its title says the scale where that is not the paper's.

    Args:
        figure: what to draw.
        recipes: the study's, whose `what` names the lines.
        material: tables of the runs, and of their checkpoints where the figure wants them.
    """
    if figure.picture is not None:
        return figure.picture(material)
    import matplotlib

    from mechplateau.views.figure import PaperFigure, style

    columns = min(3, len(figure.panels))
    rows = -(-len(figure.panels) // columns)
    with matplotlib.rc_context(style()):
        sheet = PaperFigure(2.35 * columns, 1.8 * rows + 0.5)
        handles: dict[str, Line2D] = {}
        for index, ax in enumerate(sheet.subplots(rows, columns, squeeze=False).flat):
            if index >= len(figure.panels):
                ax.remove()
                continue
            panel = figure.panels[index]
            tables = material.measured if panel.of_checkpoints else material.tables
            shown = panel.draw(ax, {recipes[name].what: tables.get(name, ()) for name in figure.recipes})
            handles = shown | handles
        note = "" if material.scale == PAPER else f"  ({material.scale} scale)"
        sheet.suptitle(f"Figure {figure.id}. {figure.title}{note}", fontsize=9, x=0.01, ha="left")
        labels = [recipes[name].what for name in figure.recipes if recipes[name].what in handles]
        if len(figure.recipes) > 1 and labels:
            sheet.legend(
                [handles[label] for label in labels],
                labels,
                loc="outside lower center",
                ncols=min(3, len(labels)),
                handlelength=2.4,
            )
    return sheet
