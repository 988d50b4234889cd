"""The numbers of a run, from tables written by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from mechplateau.signs import Signs, progress_column
from mechplateau.studies.numbers import rounded
from mechplateau.studies.plateau.summary import summarize
from mechplateau.tasks import ConcatenatedWindows, MovingWindowSum

TASK = MovingWindowSum(n=3, k=2, p=7, max_num=6)
CONCAT = ConcatenatedWindows()


def table(**columns) -> pd.DataFrame:
    """100 steps: a plateau at 2 from step 10, a drop at step 60 to 0.5."""
    steps = np.arange(101)
    loss = np.where(steps < 10, 3 - steps / 10, np.where(steps < 60, 2.0, 0.5))
    accuracy = np.where(steps < 60, 0.1, 1.0)
    base = {
        "step": steps,
        "loss": loss,
        "accuracy": accuracy,
        "loss_out_0": np.where(steps < 30, 2.0, 0.89),
        "accuracy_out_1": accuracy,
        "accuracy_out_2": accuracy + 0.2 * (steps < 60),
        "repetition": np.where(steps == 20, 0.6, np.where(steps == 70, 0.9, 0.05)),
        "repetition_data": np.full(101, 0.1),
        "entropy": np.where(steps == 25, 0.3, 1.0),
        "entropy_data": np.full(101, 1.5),
        "alpha_1": np.where(steps == 0, 0.99, 0.4),
        "apm_window": 0.1 + steps / 200,
        "apm_zero_count": 0,
        "cos_final": np.where(steps == 40, 0.97, np.where(steps == 0, 0.99, np.where(steps > 55, 0.02, 0.8))),
    }
    return pd.DataFrame({**base, **columns})


def test_a_plateau_by_hand():
    numbers = summarize(table(), TASK)
    assert numbers["plateau"] == 1
    assert (numbers["drop"], numbers["learned_at"], numbers["took"], numbers["solved_at"]) == (60, 60, 60, 60)
    assert numbers["plateau_level"] == 2.0
    assert (numbers["loss_start"], numbers["loss_end"], numbers["accuracy_end"]) == (3.0, 0.5, 1.0)
    assert (numbers["partial_at"], numbers["partial_lead"]) == (30, 0.5)
    assert numbers["others_then"] == pytest.approx(0.2)  # 0.1 and 0.3
    # Step 0 and what comes after the drop do not count as peaks.
    assert (numbers["cos_peak"], numbers["cos_peak_at"]) == (0.97, 40)
    assert (numbers["cos_first"], numbers["cos_learned"], numbers["cos_end"]) == (0.8, 0.02, 0.02)
    assert (numbers["repetition_peak"], numbers["repetition_data"]) == (0.6, pytest.approx(0.1))
    assert numbers["repetition_excess"] == pytest.approx(0.5)
    assert (numbers["entropy_low"], numbers["entropy_share"]) == (0.3, pytest.approx(0.2))
    assert numbers["alpha_peak"] == 0.4
    assert (numbers["apm_start"], numbers["apm_half"]) == (0.1, pytest.approx(0.25))
    assert numbers["apm_gain"] == pytest.approx(2.5)
    assert numbers["apm_end"] == pytest.approx(0.6)
    # Onset 9 (within 10 % of the way), drop 60: of the rows around the middle, 34.5, the first.
    assert numbers["apm_plateau"] == pytest.approx(0.1 + 34 / 200)
    assert numbers["apm_plateau_gain"] == pytest.approx(2.7)


def test_without_a_plateau_learning_is_being_solved():
    numbers = summarize(table(loss=np.where(np.arange(101) < 60, 2.0, 2.0)), TASK)
    assert numbers["plateau"] == 0
    assert numbers["drop"] is None
    assert numbers["learned_at"] == 60
    assert numbers["apm_half"] == pytest.approx(0.25)
    assert numbers["apm_plateau"] is numbers["apm_plateau_gain"] is None


def test_runs_with_and_without_a_plateau_are_compared_by_when_they_solve():
    steps = np.arange(101)
    gradual = table(loss=3 - steps * 0.02, accuracy=np.where(steps < 70, 0.9, 0.95))
    assert summarize(gradual, TASK)["took"] == 70
    # A first loss however high changes nothing.
    high = gradual.assign(loss=gradual["loss"].where(gradual["step"] > 0, 50.0))
    assert summarize(high, TASK)["took"] == 70


def test_what_never_learns_is_undefined_and_bounded():
    flat = table(loss=np.full(101, 2.0), accuracy=np.full(101, 0.1))
    numbers = summarize(flat, TASK)
    assert numbers["learned_at"] is None
    assert numbers["took"] == 100
    assert numbers["partial_lead"] == pytest.approx(1 - numbers["partial_at"] / 100)
    assert numbers["apm_half"] is None
    assert numbers["cos_learned"] is None
    assert numbers["repetition_peak"] == 0.9  # every row is on the way


def test_missing_values_are_undefined_never_nan():
    nothing = np.full(101, np.nan)
    numbers = summarize(table(repetition=nothing, cos_final=nothing, apm_window=nothing), TASK)
    for name in ("repetition_peak", "repetition_excess", "cos_peak", "cos_end", "apm_start", "apm_gain"):
        assert numbers[name] is None, name
    assert all(value is None or value == value for value in numbers.values())


def test_places_and_layers():
    places = {"cos_L0_resid_pre": np.linspace(0, 1, 101), "cos_L0_resid_post": np.full(101, 0.3)}
    numbers = summarize(table(**places), TASK)
    assert numbers["cos_peak_L0_resid_pre"] == pytest.approx(0.59)
    assert numbers["cos_peak_L0_resid_post"] == 0.3
    slow = np.linspace(0.1, 0.2, 101)
    # What rises most, not what is highest: a large target is high before anything is learned.
    deep = table().drop(columns="apm_window").assign(apm_window_L0=0.4, apm_window_L1=slow)
    assert progress_column(deep) == "apm_window_L1"
    assert summarize(deep, TASK)["apm_end"] == pytest.approx(0.2)
    rising = np.linspace(0.05, 0.6, 101)
    assert progress_column(deep.assign(apm_window_L0=rising)) == "apm_window_L0"
    assert summarize(deep.assign(apm_window_L0=rising), TASK)["apm_end"] == pytest.approx(0.6)
    assert progress_column(deep.assign(apm_window_L1=np.nan)) == "apm_window_L0"
    assert progress_column(table().drop(columns="apm_window")) is None


def test_a_partial_solution_is_known_where_its_loss_stays_low():
    steps = np.arange(101)
    # The first output is one of six values, each as often: half of its entropy is ln(6) / 2 = 0.896 nats.
    dips = np.where((steps == 12) | (steps == 13) | (steps >= 50), 0.89, 2.0)  # two rows are a lucky batch
    numbers = summarize(table(loss_out_0=dips), TASK)
    assert (numbers["partial_at"], numbers["partial_lead"]) == (50, pytest.approx(1 / 6))
    assert numbers["others_then"] == pytest.approx(0.2)
    never = summarize(table(loss_out_0=0.9 + 0 * steps), TASK)
    assert (never["partial_at"], never["partial_lead"], never["others_then"]) == (None, None, None)
    assert summarize(table(loss_out_0=dips).head(2), TASK)["partial_at"] is None
    constant = MovingWindowSum(n=3, k=2, p=7, max_num=1)
    assert summarize(table(loss_out_0=0 * steps), constant)["partial_at"] is None


def test_of_several_groups_the_one_that_collapses_furthest_before_learning():
    # As in concatenated windows: copies never do, and after the drop does not count.
    copies = np.where(np.arange(101) > 60, 1.0, 0.3)
    triples = np.where(np.arange(101) == 50, 0.99, 0.7)
    grouped = table(cos_final=0.4, cos_final_w1=copies, cos_final_w3=triples)
    assert Signs(grouped).collapse_column == "cos_final_w3"
    numbers = summarize(
        grouped.assign(cos_L0_resid_mid=0.1, cos_L0_resid_mid_w1=0.2, cos_L0_resid_mid_w3=0.5), CONCAT
    )
    assert (numbers["cos_peak"], numbers["cos_peak_at"]) == (0.99, 50)
    assert (numbers["cos_first"], numbers["cos_learned"], numbers["cos_end"]) == (0.7, 0.7, 0.7)
    assert numbers["cos_peak_L0_resid_mid"] == 0.5
    assert not [name for name in numbers if name.endswith(("_w1", "_w3"))]
    # A column whose name only ends like the group's is another group's.
    odd = grouped.assign(cos_L0_resid_mid_w3=0.5, cos_L0_resid_mid_not_w3=0.9)
    layers = {name: value for name, value in summarize(odd, CONCAT).items() if "L0" in name}
    assert layers == {"cos_peak_L0_resid_mid": 0.5}
    # 0 is a value: that of a zero vector.
    assert Signs(table(cos_final=-0.3, cos_final_w2=0.0)).collapse_column == "cos_final_w2"
    # All outputs together have the group without a name.
    alone = grouped.assign(cos_final=1.0, cos_L0_resid_mid=0.1, cos_L0_resid_mid_w1=0.2)
    assert Signs(alone).collapse_column == "cos_final"
    assert summarize(alone, CONCAT)["cos_peak_L0_resid_mid"] == 0.1
    assert Signs(table().drop(columns="cos_final")).collapse_column == "cos_final"
    assert summarize(table().drop(columns="cos_final"), TASK)["cos_peak"] is None


def test_rounding_keeps_whole_numbers_whole():
    assert rounded({"a": 1.0, "b": 0.12345678, "c": None}) == {"a": 1, "b": 0.123457, "c": None}


def test_signs_that_an_odd_initialization_or_the_fall_cannot_give():
    """COS is 0.8 but for one row of 0.97 at 40, entropy 1 but for 0.3 at 25; the plateau is 10 to 60."""
    numbers = summarize(table(), TASK)
    assert (numbers["cos_start"], numbers["cos_first"]) == (0.99, 0.8)
    # Half-way is step 30: the peak is after it, the lowest entropy before.
    assert (numbers["cos_late"], numbers["entropy_late_share"]) == (0.97, pytest.approx(1 / 1.5))
    assert numbers["entropy_plateau_share"] == pytest.approx(0.3 / 1.5)
    assert numbers["repetition_peak_share"] == pytest.approx(20 / 60)
    # ρ is above the data's 0.1 by 0.2 in one row, which stands for the step since the row before.
    assert numbers["repetition_lasted"] == 1
    assert summarize(table().iloc[::5], TASK)["repetition_lasted"] == 5
    never = summarize(table(loss=np.full(101, 2.0), accuracy=np.full(101, 0.1)), TASK)
    assert (never["cos_late"], never["repetition_peak_share"]) == (0.8, None)  # steps 50 to 100


def test_outputs_equal_to_the_first_count_while_most_are_wrong():
    steps = np.arange(101)
    rightly = table(alpha_1=np.where(steps < 60, 0.3, 0.99))
    assert (summarize(rightly, TASK)["alpha_wrong"], summarize(rightly, TASK)["alpha_peak"]) == (0.3, 0.3)
    half = np.where(steps < 40, 0.1, np.where(steps < 60, 0.6, 1.0))
    late = table(accuracy=half, alpha_1=np.where(steps < 40, 0.3, 0.9))
    assert (summarize(late, TASK)["alpha_wrong"], summarize(late, TASK)["alpha_peak"]) == (0.3, 0.9)


def test_when_counts_are_right_is_compared_with_when_the_order_is():
    steps = np.arange(101)
    lucky = np.where((steps == 9) | (steps >= 30), 0.95, 0.2)
    numbers = summarize(table(count_check=lucky, count_check_all=np.where(steps >= 45, 1.0, 0.4)), TASK)
    assert (numbers["counts_right_at"], numbers["counts_lead"]) == (30, 0.5)
    assert (numbers["counts_all_lead"], numbers["count_check_all_peak"]) == (0.25, 1.0)
    assert summarize(table(), TASK)["counts_lead"] is None


def test_how_far_attention_falls_back():
    steps = np.arange(101)
    rises = 0.1 + steps / 200
    assert summarize(table(), TASK)["apm_falls_back"] == 0
    # From 0.2 at step 20 back to 0.15 and on: 0.05 of a rise of 0.5. After the drop nothing counts.
    dips = np.where((steps > 20) & (steps < 40), 0.15, rises)
    assert summarize(table(apm_window=dips), TASK)["apm_falls_back"] == pytest.approx(0.1)
    assert summarize(table(apm_window=np.where(steps == 80, 0.0, rises)), TASK)["apm_falls_back"] == 0
    assert summarize(table(apm_window=np.full(101, 0.3)), TASK)["apm_falls_back"] is None
