"""Figures for papers: what is drawn, the signed scale, undefined cells, the outline, files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from mechplateau.views import (
    CheckpointView,
    PlateauView,
    RunView,
    ViewError,
    draw_map,
    plot_curves,
    plot_phases,
)
from mechplateau.views.maps import UNDEFINED, beyond, symmetric_limit
from mechplateau.views.outline import outline

MakeView = Callable[..., RunView]


def test_outline_of_single_cells_and_blocks() -> None:
    one = np.zeros((2, 3), dtype=bool)
    one[0, 1] = True
    # The cell in row 0, column 1 is the square from (0.5, -0.5) to (1.5, 0.5).
    assert sorted(outline(one)) == sorted(
        [(0.5, -0.5, 1.5, -0.5), (0.5, 0.5, 1.5, 0.5), (0.5, -0.5, 0.5, 0.5), (1.5, -0.5, 1.5, 0.5)]
    )
    assert len(outline(np.ones((2, 3), dtype=bool))) == 4  # no line between neighbors, sides in one piece
    assert outline(np.zeros((2, 3), dtype=bool)) == []


def test_symmetric_limit() -> None:
    assert symmetric_limit([np.array([0.1, -3.0, np.nan, np.inf])]) == 3.0
    assert symmetric_limit([np.zeros((2, 2))]) == 1.0
    assert symmetric_limit([np.full((2, 2), np.nan)]) == 1.0
    assert symmetric_limit([]) == 1.0


def test_map_is_symmetric_and_shows_undefined_cells() -> None:
    from matplotlib.colors import to_rgba

    ax = Figure().add_subplot()
    mesh = draw_map(ax, np.array([[1.0, -2.0], [np.nan, 0.0]]))
    assert mesh.get_clim() == (-2.0, 2.0)
    colors = mesh.to_rgba(mesh.get_array())
    assert tuple(colors[1, 0]) == to_rgba(UNDEFINED)
    assert tuple(colors[1, 1]) == to_rgba("white")  # zero is paper
    assert [text.get_text() for text in ax.texts] == ["1 undefined (×)"]


def test_negative_cells_carry_a_dash_for_grey_prints() -> None:
    ax = Figure().add_subplot()
    draw_map(ax, np.array([[1.0, -1.0], [0.0, -0.01]]))
    dashes = ax.collections[1].get_segments()
    assert [segment[0].mean() for segment in np.array(dashes).transpose(0, 2, 1)] == [1.0]
    assert len(dashes) == 1  # too pale to need one: -0.01


def test_map_refuses_other_shapes() -> None:
    ax = Figure().add_subplot()
    with pytest.raises(ViewError, match=r"\(2, 2\).*\(2, 3\)"):
        draw_map(ax, np.zeros((2, 3)), outlines=[np.ones((2, 2), dtype=bool)])
    with pytest.raises(ViewError, match=r"\(3,\)"):
        draw_map(ax, np.zeros(3))


def test_a_map_without_a_value_says_so() -> None:
    ax = Figure().add_subplot()
    draw_map(ax, np.full((2, 2), np.nan))
    assert [text.get_text() for text in ax.texts] == ["every value is undefined"]
    nothing = np.full((1, 2, 2), np.nan)
    checkpoints = (CheckpointView(0, (nothing,)), CheckpointView(9, (nothing,)))
    table = pd.DataFrame({"step": [0, 9], "loss": [1.0, None]})
    figure = plot_phases(RunView("x", "", table, None, checkpoints, (), ()))
    assert list(figure.axes[-1].get_yticks()) == []  # no scale either


def test_a_value_between_undefined_ones_is_a_dot() -> None:
    values = [1.0, 2.0, np.nan, 3.0, np.nan, 4.0]
    table = pd.DataFrame({"step": range(6), "loss": values})
    line = plot_curves(RunView("x", "", table, None, (), (), ())).axes[0].lines[0]
    assert line.get_marker() == "o"
    assert np.flatnonzero(line.get_markevery()).tolist() == [3, 5]
    whole = RunView("x", "", table.assign(loss=1.0), None, (), (), ())
    assert plot_curves(whole).axes[0].lines[0].get_marker() == "None"


def test_curves_shade_the_plateau(make_view: MakeView) -> None:
    figure = plot_curves(make_view(), measures=("loss", "accuracy"))
    loss, accuracy = figure.axes[:2]
    assert [ax.get_title(loc="left") for ax in (loss, accuracy)] == ["Loss", "Accuracy"]
    assert loss.patches[0].get_bbox().bounds[::2] == (62, 191 - 62)
    assert len(accuracy.lines) == 1 + 16 + 1  # the drop, the outputs, their mean
    without = plot_curves(make_view(plateau=PlateauView(False)), measures=("loss",))
    assert not without.axes[0].patches


def test_curves_name_the_measures_there_are(make_view: MakeView) -> None:
    with pytest.raises(ViewError, match=r"loss, accuracy.*got volume"):
        plot_curves(make_view(), measures=("volume",))


def test_phases_show_three_maps_a_row(make_view: MakeView) -> None:
    figure = plot_phases(make_view())
    titles = [ax.get_title(loc="left") for ax in figure.axes[:3]]
    assert titles == ["before the plateau, step 0", "on the plateau, step 120", "after the drop, step 400"]
    limits = {ax.collections[0].get_clim() for ax in figure.axes[:3]}
    assert len(limits) == 1  # one scale for all phases
    (limit,) = limits
    assert limit[0] == -limit[1]


def test_phases_without_what_they_need(make_view: MakeView) -> None:
    with pytest.raises(ViewError, match="checkpoints"):
        plot_phases(make_view(checkpoints=(), plateau=None))
    with pytest.raises(ViewError, match="got layer 2, head 0"):
        plot_phases(make_view(), layer=2)
    bare = tuple(CheckpointView(step) for step in (0, 120, 400))
    with pytest.raises(ViewError, match="neither"):
        plot_phases(make_view(checkpoints=bare))


def test_files(make_view: MakeView, tmp_path: Path) -> None:
    figure = plot_curves(make_view(), measures=("loss",))
    assert figure.save(tmp_path / "new" / "curves.pdf").read_bytes().startswith(b"%PDF")
    assert figure.save(tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert b"/Subtype /Image" not in (tmp_path / "new" / "curves.pdf").read_bytes()  # vector all through
    again = plot_curves(make_view(), measures=("loss",)).save(tmp_path / "again.pdf")
    assert again.read_bytes() == (tmp_path / "new" / "curves.pdf").read_bytes()
    assert figure._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(ViewError, match=r"\.pdf, \.png, \.svg"):
        figure.save(tmp_path / "curves.docx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.pdf", "curves.png", "new"]


def test_drawing_needs_no_pyplot_and_changes_no_setting(make_view: MakeView, tmp_path: Path) -> None:
    import matplotlib

    settings = dict(matplotlib.rcParams)
    plot_phases(make_view()).save(tmp_path / "phases.pdf")
    assert dict(matplotlib.rcParams) == settings
    code = (
        "import sys, pandas as pd\n"
        "from mechplateau.views import RunView, plot_curves, render_report\n"
        "view = RunView('t', '', pd.DataFrame({'step': [0, 1], 'loss': [2.0, 1.0]}), None, (), (), ())\n"
        "assert not {'matplotlib', 'plotly', 'circuitsvis'} & set(sys.modules)\n"
        "plot_curves(view)._repr_png_()\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_many_lines_have_a_legend_beside_the_panel(make_view: MakeView) -> None:
    metrics = make_view().metrics
    for layer in range(3):
        for place in ("resid_pre", "attn_out", "resid_mid", "resid_post"):
            metrics[f"cos_L{layer}_{place}"] = 0.1 * layer
    figure = plot_curves(make_view(metrics=metrics), measures="cos")
    figure.draw_without_rendering()
    ax = figure.axes[0]
    panel, legend = ax.get_window_extent(), ax.get_legend().get_window_extent()
    assert legend.x0 >= panel.x1
    assert legend.x1 <= figure.bbox.x1
    looks = {(line.get_color(), line.get_linestyle()) for line in ax.lines if line.get_label()[0] != "_"}
    assert len(looks) == 13
    assert panel.height > 80  # the legend does not squeeze the curves


def test_columns_of_panels(make_view: MakeView) -> None:
    with pytest.raises(ViewError, match="columns: expected at least 1, got 0"):
        plot_curves(make_view(), columns=0)


def test_one_outlier_does_not_set_the_scale_and_the_extremes_are_told(make_view: MakeView) -> None:
    values = np.linspace(0.2, 1.0, 100).reshape(10, 10)
    assert symmetric_limit([values]) == 1.0
    values[0, 0] = -40.0
    limit = symmetric_limit([values])
    assert 0.9 < limit <= 1.0
    assert beyond([values], limit) == "from −40 to 1"
    assert beyond([np.clip(values, -1, 1)], 1.0) == ""
    view = make_view(targets=(), checkpoints=(CheckpointView(0, (values[None],)),), plateau=None)
    bar = plot_phases(view).axes[-1]
    assert bar.get_ylabel() == "attention (from −40 to 1)"
