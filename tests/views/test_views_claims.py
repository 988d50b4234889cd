"""The paper's claims, measured: known answers by hand, the paper's own curves, and where they are undecided."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from mechplateau.metrics.plateau import Plateau, find_plateau
from mechplateau.reporting_claims import Ranges, claims_of
from mechplateau.tasks import MovingWindowSum

from .conftest import metrics_of

TASK = MovingWindowSum(n=3, k=2, p=10, max_num=9)
PLATEAU = Plateau(True, 20, 60, 40.0, 2.0, 1.0, 0.9, "by hand")
NONE = Plateau(False, None, None, None, None, 1.0, 0.0, "none")


def table(**columns):
    """Ten evaluations; the loss is on its plateau until step 40, half-way down at 60, down at 70."""
    base = {
        "step": np.arange(0, 100, 10),
        "loss": [3.0, 2.2, 2.0, 2.0, 2.0, 1.8, 1.5, 1.0, 1.0, 1.0],
        "accuracy_out_0": [0.1, 0.5, 0.97, 1, 1, 1, 1, 1, 1, 1],
        "accuracy_out_1": [0.1, 0.1, 0.2, 0.2, 0.2, 0.3, 0.5, 1, 1, 1],
        "accuracy_out_2": [0.1, 0.1, 0.1, 0.2, 0.2, 0.3, 0.5, 1, 1, 1],
        "repetition": [0.1, 0.9, 0.6, 0.6, 0.5, 0.4, 0.2, 0.1, 0.1, 0.1],
        "repetition_data": [0.1] * 10,
        "entropy": [1.0, 0.6, 0.5, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0, 1.0],
        "entropy_data": [1.0] * 10,
        "apm_window": [0.1, 0.1, 0.2, 0.4, 0.5, 0.6, 0.7, 0.9, 0.9, 0.9],
        "apm_zero_count": [0] * 10,
        "cos_final": [0.1, 0.9, 0.95, 0.9, 0.5, 0.2, 0.1, 0.99, 0.1, 0.1],
    }
    return pd.DataFrame({**base, **columns})


def measured(metrics, plateau=PLATEAU, task=TASK, **options):
    return {claim.key: claim for claim in claims_of(metrics, task, plateau, **options)}


def test_numbers_by_hand():
    found = measured(table())
    assert list(found) == ["partial", "repetition", "collapse", "attention"]
    assert all(claim.passed is True for claim in found.values())
    assert found["partial"].value == pytest.approx(20 / 60)
    assert found["partial"].measured == "output 0 right from step 20, 0.33 of the way; others 0.15"
    # The lone 0.9 is no finding; the median of 0.9, 0.6, 0.6 is.
    assert found["repetition"].value == pytest.approx(0.6 - 0.1)
    assert "entropy 0.50 of the data's at step 20" in found["repetition"].measured
    assert found["collapse"].value == 0.95  # the 0.99 comes after the drop
    assert found["collapse"].measured == "0.950 at step 20, 0.10 at the drop"
    # The loss leaves 2.0 − 0.1 · 1.0 after step 40, where APM is at 0.5 of 0.1 … 0.9.
    assert found["attention"].value == pytest.approx(0.5)
    assert found["attention"].measured == "0.50 at step 40: APM 0.50 of 0.10 → 0.90"


def test_what_does_not_hold():
    found = measured(
        table(
            accuracy_out_0=[0.1] * 5 + [0.9] + [1.0] * 4,
            accuracy_out_1=[0.9] * 10,
            repetition=[0.1, 0.9, 0.1, 0.1, 0.1, 0.1, 0.1, 0.9, 0.9, 0.9],
            entropy=[0.9] * 10,
            cos_final=[0.1, 0.3, 0.3, 0.2, 0.1, 0.1, 0.1, 1.0, 1.0, 1.0],
            apm_window=[0.1, 0.1, 0.1, 0.1, 0.12, 0.2, 0.5, 0.9, 0.9, 0.9],
        )
    )
    assert {claim.passed for claim in found.values()} == {False}
    assert found["partial"].value == pytest.approx(1.0)
    assert found["repetition"].value == pytest.approx(0.0)
    assert found["attention"].value == pytest.approx(0.025)
    never = measured(table(accuracy_out_0=[0.1, 1.0, 0.1, 1.0, 1.0, 0.1, 0.1, 0.1, 0.1, 0.1]))["partial"]
    assert (never.value, never.passed) == (None, False)


def test_low_entropy_is_enough_and_ranges_can_be_given():
    quiet = table(repetition=[0.1] * 10)
    assert measured(quiet)["repetition"].passed is True
    narrow = measured(table(), ranges=Ranges(cos_peak=(0.4, 0.6), repetition_above=0.6, entropy_below=0.1))
    assert narrow["collapse"].passed is False
    assert narrow["collapse"].expected.startswith("COS 0.4 – 0.6")
    assert narrow["repetition"].passed is False
    with pytest.raises(ValueError, match=r"Ranges\.cos_peak: expected a finite number"):
        Ranges(cos_peak=(0.4, np.nan))


def test_undecided_where_there_is_no_plateau_or_no_number():
    for metrics, plateau in (
        (table(), NONE),
        (table().assign(**dict.fromkeys(table().columns[1:])), PLATEAU),
    ):
        for claim in measured(metrics, plateau).values():
            assert claim.passed is None, claim
            assert claim.value is None
            assert claim.measured.startswith("undefined: no")
    flat = measured(table(apm_window=[0.3] * 10))["attention"]
    assert (flat.value, flat.passed) == (None, None)
    assert "APM goes from 0.30 to 0.30" in flat.measured
    no_rows = table().iloc[:0]
    assert {claim.passed for claim in measured(no_rows, NONE).values()} == {None}


def test_left_out_where_it_means_nothing():
    assert "partial" not in measured(table(), task=MovingWindowSum(n=3, k=1, p=10, max_num=9))
    assert "repetition" not in measured(table(repetition_data=[0.9] * 10))
    bare = table().drop(columns=["apm_window", "cos_final", "repetition"])
    assert list(measured(bare)) == ["partial"]


def test_the_apm_that_grows_most_and_the_group_of_outputs_that_collapses_most():
    metrics = table(apm_window=[0.1] * 10, apm_window_L1=[0.0, 0.0, 0.1, 0.2, 0.4, 0.5, 0.6, 0.8, 0.8, 0.8])
    found = measured(metrics.rename(columns={"cos_final": "cos_final_pairs"}).assign(cos_final=0.5))
    assert found["attention"].value == pytest.approx(0.5)
    assert "APM (window_L1)" in found["attention"].measured
    assert found["collapse"].value == 0.95


def test_the_papers_own_code_holds_its_claims(curves):
    metrics = metrics_of(curves)
    plateau = find_plateau(metrics["step"].to_numpy(), metrics["loss"].to_numpy())
    found = measured(metrics, plateau, MovingWindowSum())
    assert all(claim.passed for claim in found.values())
    assert 0.3 < found["partial"].value < 0.5
    assert found["collapse"].value == pytest.approx(0.974, abs=1e-3)
    assert 0.4 < found["attention"].value < 0.7
