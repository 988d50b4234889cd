"""Matrix completion in a report: matrices with their masked cells, head maps, a table of heads."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from mechplateau import RunConfig, train
from mechplateau.report import save_report
from mechplateau.report.gather import run_view
from mechplateau.signs import Signs
from mechplateau.studies.matrix.story import matrix_sections
from mechplateau.views._cards import summary_cards
from mechplateau.views.columns import panels
from mechplateau.views.matrices import MatrixView, draw_cell_attention, draw_heads, draw_matrices
from mechplateau.views.summary import comparison_rows, key_numbers, verdict


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = RunConfig.for_task(
        "matrix_completion",
        preset="tiny",
        model={"n_layers": 2, "n_heads": 2, "d_model": 16},
        training={"steps": 4, "batch_size": 4},
        evaluation={"every": 2, "samples": 8},
    )
    return train(config, runs_dir=tmp_path_factory.mktemp("runs"))


def test_sections_of_a_run(run):
    matrices, heads = matrix_sections(run)
    assert matrices.title == "Matrices"
    assert matrices.text[0].startswith("No plateau")
    assert matrices.picture is not None
    assert len(heads.rows) == 4
    assert heads.columns[:3] == ("layer", "head", "class")
    assert {row[2] for row in heads.rows} <= {"row", "col", "self", "cross", "mixed"}
    # Uniform over 16 cells: (1 − 0.3) · 6 / 16.
    assert "0.26 there" in heads.text[1]


def test_the_report_of_a_run(run, tmp_path):
    page = save_report(run, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Where heads look" in page
    view = run_view(run)
    checkpoint = view.checkpoints[-1]
    assert [one.shape for one in checkpoint.pattern] == [(2, 16, 16)] * 2
    assert checkpoint.cosine.shape == (16, 16)
    np.testing.assert_allclose(checkpoint.pattern[0].sum(-1), 1, atol=1e-5)
    # Maps are parted where a row of the matrix begins.
    assert view.groups == (4, 8, 12)


def test_panels_and_cards_of_a_run(run):
    """The masked loss, whose plateau it is, comes first; what is measured of each head has a chart of its own."""
    view = run_view(run, pictures=False)
    shown = panels(view.metrics, view.plateau, view.columns)
    loss = shown[0]
    assert [line.column for line in loss.lines] == ["loss_mask", "loss"]
    flat = pd.DataFrame({"step": range(40), "loss": 1.0, "loss_mask": 0.4})
    assert Signs(flat, run.task).plateau.reason.startswith("loss_mask never drops")
    assert max(len(panel.lines) for panel in shown) <= 6
    row = next(panel for panel in shown if panel.key == "other row_mask")
    assert row.title == "attention on the other cells of the query's row, from masked queries"
    assert [line.label for line in row.lines] == ["L0H0", "L0H1", "L1H0", "L1H1"]
    collapse = next(panel for panel in shown if panel.key == "cos")
    assert (collapse.lines[0].column, collapse.lines[0].label) == ("cos_mask_L1", "masked cells, layer 1")
    cards = {card["label"]: card for card in summary_cards(view)}
    assert list(cards) == ["Drop", "Peak COS", "APM", "Final loss"]
    assert cards["Peak COS"]["value"] != "–"
    assert cards["Final loss"]["unit"] == "targets²"
    rows = dict(comparison_rows([key_numbers(view)]))
    assert "Final loss (targets²)" in rows
    assert "Solved" not in verdict(view)


def test_masked_cells_are_outlined():
    truth = np.array([[0.5, -1.0], [0.25, 0.0]])
    masked = np.array([[True, False], [False, True]])
    sheet = draw_matrices([MatrixView(truth, masked, {"after": truth * 0.5})])
    pictures = [ax for ax in sheet.axes if ax.images and ax.get_title("left") in ("truth", "after")]
    assert len(pictures) == 2
    for ax in pictures:
        corners = {tuple(np.round(np.add(patch.get_xy(), 0.45)).astype(int)) for patch in ax.patches}
        assert corners == {(0, 0), (1, 1)}  # (column, row)
        assert ax.images[0].get_clim() == (-1.0, 1.0)


def test_a_run_that_diverged_is_drawn():
    truth = np.array([[0.5, -1.0], [0.25, 0.0]])
    sheet = draw_matrices([MatrixView(truth, truth > 0, {"after": np.full((2, 2), np.nan)})])
    assert sheet.axes[1].images[0].get_clim() == (-1.0, 1.0)
    assert sheet.png()


def test_head_maps_are_parted_by_row():
    sheet = draw_cell_attention({"after": [np.full((3, 6, 6), 1 / 6)]}, (2, 3))
    maps = [ax for ax in sheet.axes if ax.images]
    assert [ax.get_title("left") for ax in maps] == ["L0H0", "L0H1", "L0H2"]
    assert sorted(line.get_ydata()[0] for line in maps[0].lines if line.get_ydata()[0] > 1) == [2.5]


def test_head_maps_have_one_scale_with_a_key():
    """A uniform map is not as bright as one that looks at a single cell, and both can be read off the key."""
    weak, strong = np.full((1, 6, 6), 1 / 6), np.eye(6)[None]
    sheets = draw_cell_attention({"before": [weak], "after": [strong]}, (2, 3)), draw_heads([weak, strong])
    for sheet in sheets:
        first, second = (ax.images[0] for ax in sheet.axes if ax.images)
        assert first.get_clim() == second.get_clim() == (0.0, 1.0)
        assert float(first.norm(1 / 6)) == pytest.approx((1 / 6) ** 0.5)
        assert [ax.get_ylabel() for ax in sheet.axes if not ax.images] == ["attention"]
    # One strong head of many does not make the others bright.
    many = draw_heads([np.stack([np.full((16, 16), 1 / 16)] * 7 + [np.eye(16)])])
    assert {ax.images[0].get_clim() for ax in many.axes if ax.images} == {(0.0, 1.0)}
    undefined = draw_heads([np.full((1, 2, 2), np.nan), strong])
    assert "attention (red: undefined)" in [ax.get_ylabel() for ax in undefined.axes]
    assert undefined.png()
