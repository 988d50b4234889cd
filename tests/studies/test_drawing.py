"""What a figure shows beside its curves: plateau, drops, the paper's values, and legends that hide nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from mechplateau.signs import Signs
from mechplateau.studies import study_named
from mechplateau.studies.drawing import draw
from mechplateau.studies.figures import Figure, Material
from mechplateau.studies.panels import Panel
from mechplateau.studies.plateau.panels import APM, COS, LOSS, OUTPUTS, PLACES, REPETITION
from mechplateau.views.figure import PaperFigure

STUDY = study_named("plateau")


def table(drop: int = 150) -> pd.DataFrame:
    """A plateau that ends at about this step."""
    steps = np.arange(0, 401, 5)
    fall = 1 / (1 + np.exp((steps - drop) / 8.0))
    places = {f"cos_L0_{place}": 0.9 * fall for place in ("resid_pre", "attn_out", "resid_mid")}
    outputs = {f"accuracy_out_{i}": 1 - fall for i in range(4)}
    shown = {
        "loss": 1 + 1.6 * fall + 0.3 * np.exp(-steps / 10),
        "cos_final": fall,
        "apm_window": 0.7 * (1 - fall),
    }
    return pd.DataFrame(
        {"step": steps, **shown, **places, **outputs, "repetition": fall, "repetition_data": 0.06}
    )


def drawn(
    recipes: tuple[str, ...],
    panels: tuple[Panel, ...],
    *tables: pd.DataFrame,
    scale: str = "paper",
    id: str = "2",
    title: str = "A title",
) -> PaperFigure:
    own = {name: [one] for name, one in zip(recipes, tables, strict=True)}
    return draw(Figure(id, title, recipes, panels), STUDY.recipes, Material(scale, own), STUDY.claims)


def test_the_plateau_is_shaded_and_the_drop_a_line() -> None:
    own = table()
    plateau = Signs(own).plateau
    sheet = drawn(("mws",), (LOSS, COS), own, scale="small")
    for ax in sheet.axes:
        (shade,) = ax.patches
        assert (shade.get_x(), shade.get_x() + shade.get_width()) == (plateau.onset, plateau.drop)
        (line,) = [line for line in ax.lines if list(line.get_xdata()) == [plateau.drop] * 2]
        assert line.get_linestyle() == "--"
        assert all(float(tick).is_integer() for tick in ax.get_xticks())


def test_of_several_runs_each_has_a_line_at_its_drop() -> None:
    tables = (table(), table(250))
    sheet = drawn(("mws", "mws-c0.5"), (LOSS,), *tables, scale="small")
    (ax,) = sheet.axes
    assert not ax.patches
    dashed = [line.get_xdata()[0] for line in ax.lines if len(line.get_xdata()) == 2]
    assert dashed == [Signs(own).plateau.drop for own in tables]


def test_the_papers_values_stand_beside_ours_at_its_scale_only() -> None:
    sheet = drawn(("mws",), (LOSS, REPETITION, APM, COS), table())
    told = [[text.get_text().strip() for text in ax.texts] for ax in sheet.axes]
    assert told == [["192"], ["0.63"], ["0.71"], ["0.974"]]
    labels = [text.get_text() for text in sheet.legends[0].get_texts()]
    assert labels == ["model", "data", "value in the paper, or of its code"]
    small = drawn(("mws",), (LOSS, REPETITION, APM, COS), table(), scale="small")
    assert not any(ax.texts for ax in small.axes)


def test_a_number_of_the_paper_is_read_only_where_it_says_one() -> None:
    said = {claim.id: claim.paper_value for claim in STUDY.claims if claim.figure in ("2", "5")}
    assert said["2/mws/drop"] == 192
    assert said["2/mws/partial_at"] == 66
    assert said["2/mws/apm_gain"] is None  # two steps and a ratio
    assert all(claim.paper_value is None for claim in STUDY.claims if not claim.paper)


def test_legends_lie_beside_the_curves_and_hook_names_can_be_read() -> None:
    sheet = drawn(("mws-locations",), (LOSS, PLACES, OUTPUTS), table(), id="41", title="word " * 60)
    sheet.draw_without_rendering()
    places, outputs = sheet.axes[1:3]
    legend = places.get_legend()
    assert legend.get_window_extent().x0 >= places.get_window_extent().x1
    assert min(text.get_fontsize() for text in legend.get_texts()) >= 8
    (strip,) = outputs.child_axes
    assert strip.get_window_extent().x0 >= outputs.get_window_extent().x1
    heading = sheet._suptitle.get_window_extent()
    assert heading.x1 <= sheet.bbox.x1
    assert heading.y0 >= max(ax.get_window_extent().y1 for ax in sheet.axes[:3])


def test_no_title_is_cut_off_however_many_panels_have_a_legend() -> None:
    sheet = drawn(("mws",), (PLACES, OUTPUTS, LOSS), table())
    sheet.axes[2].set_title("A title of some words")
    sheet.draw_without_rendering()
    for ax in sheet.axes:
        assert ax.get_window_extent().width > 1.2 * sheet.dpi
        assert ax.title.get_window_extent().x1 <= sheet.bbox.x1


def test_one_run_that_blows_up_does_not_flatten_the_others() -> None:
    bad = table().assign(loss=np.linspace(2, 225, 81))
    (ax,) = drawn(("mws", "mws-c0.5"), (LOSS,), table(), bad, scale="small").axes
    low, high = ax.get_ylim()
    assert 0 < low < 1
    assert high < 5
    assert [text.get_text() for text in ax.texts] == ["up to 225"]


def test_a_loss_that_jumps_at_the_start_leaves_its_plateau_to_be_seen() -> None:
    """Two columns of one recipe, of which the smaller must not set the range; 35 is what logs of the paper say."""
    jumps = table().assign(loss=np.where(np.arange(81) < 3, 35.0, 0.2), other=0.001)
    panel = replace(LOSS, columns=lambda _: ["loss", "other"], jump=True)
    (ax,) = drawn(("mws",), (panel,), jumps).axes
    assert 0.2 < ax.get_ylim()[1] < 0.3
    assert ax.texts[0].get_text() == "up to 35"
    (plain,) = drawn(("mws",), (replace(panel, jump=False),), jumps.assign(other=35.0)).axes
    assert plain.get_ylim()[1] > 30


def test_figure_6_has_the_accuracy_of_each_output() -> None:
    assert OUTPUTS in STUDY.figures["6"].panels
