"""Columns into panels, and the key numbers, on tables written out by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from mechplateau.views import PlateauView, RunView, key_numbers, verdict
from mechplateau.views.columns import by_output, constants, cos_columns, location_label, output_maps, panels
from mechplateau.views.data import ColumnView

TABLE = pd.DataFrame(
    {
        "step": [0, 1, 2, 3],
        "loss": [3.0, 2.5, 2.5, 1.0],
        "accuracy": [0.0, 0.25, 0.5, 1.0],
        "accuracy_out_2": [0.0, 0.1, 0.2, 1.0],
        "accuracy_out_10": [0.0, 0.0, 0.0, 1.0],
        "cos_L0_resid_post": [0.1, 0.2, 0.3, 0.4],
        "cos_final": [0.1, 0.9, 0.9, None],
        "cos_out_0": [0.1, 0.9, 0.8, 0.1],
        "apm_window": [0.1, None, 0.3, 0.8],
        "apm_zero_count": [2, 0, 0, 0],
        "repetition": [0.1, 0.4, 0.2, 0.1],
        "entropy": [None, None, None, None],
    }
)


def view_of(table: pd.DataFrame, plateau: PlateauView | None = None) -> RunView:
    return RunView("hand", "", table, plateau, (), (), ())


def test_panels_hold_what_the_table_has() -> None:
    found = {panel.key: panel for panel in panels(TABLE)}
    assert list(found) == ["loss", "accuracy", "cos", "apm", "repetition"]  # no entropy: all null
    assert found["accuracy"].outputs == ("accuracy_out_2", "accuracy_out_10")  # by number, not by name
    assert [line.column for line in found["cos"].lines] == ["cos_final", "cos_L0_resid_post"]  # final first
    assert [line.column for line in found["apm"].lines] == ["apm_window"]  # the count is no curve


def test_outputs_and_labels() -> None:
    assert by_output(TABLE, "accuracy_out_") == (("accuracy_out_2", "accuracy_out_10"), (2, 10))
    assert [picture.key for picture in output_maps(TABLE)] == ["accuracy", "cos"]
    assert location_label("cos_L0_resid_post") == "layer 0 resid_post"
    assert location_label("cos_final_pairs") == "final_pairs"


def test_columns_nobody_knows_do_no_harm() -> None:
    table = pd.DataFrame({"step": [0], "grad_norm": [1.0], "note": ["text"]})
    assert panels(table) == ()
    assert output_maps(table) == ()


def test_key_numbers_by_hand() -> None:
    numbers = key_numbers(view_of(TABLE, PlateauView(True, 1, 2, 2.5, 1.0, 0.9)))
    assert (numbers.onset, numbers.drop, numbers.plateau_level) == (1, 2, 2.5)
    assert numbers.peak_cos is not None
    assert (numbers.peak_cos.value, numbers.peak_cos.step) == (0.9, 1)  # the first of two equal peaks
    assert numbers.peak_repetition is not None
    assert (numbers.peak_repetition.value, numbers.peak_repetition.step) == (0.4, 1)
    assert (numbers.apm_start, numbers.apm_drop, numbers.apm_end) == (0.1, 0.3, 0.8)
    assert (numbers.final_accuracy, numbers.final_loss) == (1.0, 1.0)


def test_what_is_the_same_at_every_step_is_told_and_not_drawn() -> None:
    silent = ColumnView("apm_zero_count", "sequences", "sequences without any attention")
    for counts, shown in (([0, 0], False), ([0, 3], True), ([np.nan, 0], False)):
        metrics = pd.DataFrame({"step": [1, 2], "loss": [2.0, 1.0], "apm_zero_count": counts})
        titles = [panel.lines[0].column for panel in panels(metrics, columns=[silent]) if panel.lines]
        assert ("apm_zero_count" in titles) == shown
        told = constants(metrics, columns=[silent])
        assert told == (() if shown else (("sequences without any attention", 0.0),))


def test_undefined_numbers_are_none() -> None:
    numbers = key_numbers(view_of(TABLE, PlateauView(True, 0, 1)))
    assert numbers.apm_drop is None  # null at step 1: no value is made up from its neighbors
    empty = key_numbers(view_of(pd.DataFrame({"step": []})))
    said = {name for name in empty.__dataclass_fields__ if getattr(empty, name) is not None}
    assert said == {"loss_unit"}


def test_a_loss_that_blew_up_is_undefined_not_a_peak() -> None:
    table = pd.DataFrame({"step": [1, 2], "loss": [2.0, np.inf], "repetition": [0.5, np.inf]})
    numbers = key_numbers(view_of(table))
    assert numbers.final_loss is None
    assert numbers.peak_repetition is not None
    assert numbers.peak_repetition.value == 0.5


def test_verdict_says_what_was_found() -> None:
    assert verdict(view_of(TABLE, PlateauView(True, 1, 2, 2.5, 1.0, 0.9))) == (
        "The loss stays on a plateau from step 1 to its drop at step 2. Confidence 0.90. "
        "Solved (accuracy ≥ 0.95): first at step 3."
    )
    assert verdict(view_of(TABLE, PlateauView(True, 1, 2, reason="It stays."))).startswith("It stays. ")
    lost = pd.DataFrame({"step": [1, 2, 3], "accuracy": [0.1, 1.0, 0.2]})  # not solved from step 2 on
    assert verdict(view_of(lost)).endswith("Solved (accuracy ≥ 0.95): first at step 2.")
    assert "the loss never drops" in verdict(
        view_of(TABLE, PlateauView(False, reason="the loss never drops"))
    )
    assert "not been looked for" in verdict(view_of(TABLE))


def test_paper_run(make_view: Callable[..., RunView]) -> None:
    numbers = key_numbers(make_view())
    assert numbers.peak_cos is not None
    assert numbers.peak_cos.value > 0.97
    assert numbers.peak_cos.step < 191
    assert numbers.final_accuracy == 1.0


def test_the_group_that_collapses_furthest_comes_first():
    metrics = pd.DataFrame(
        {
            "step": [1, 2],
            "cos_L0_resid_pre": [1.0, 1.0],
            "cos_final": [0.1, 0.5],
            "cos_final_w1": [np.nan, np.nan],
            "cos_final_w3": [0.9, 0.2],
            "cos_out_0": [1.0, 1.0],
        }
    )
    assert cos_columns(metrics) == ("cos_final_w3", "cos_final", "cos_final_w1", "cos_L0_resid_pre")
