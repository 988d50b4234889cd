"""Phases of matrix completion, on tables written out by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from mechplateau.signs.copying import completion_phases

E = 0.4


def table(masked, observed=None, every=50):
    masked = np.array(masked, dtype=float)
    observed = np.zeros(len(masked)) if observed is None else observed
    return pd.DataFrame({"step": every * np.arange(len(masked)), "loss_obs": observed, "loss_mask": masked})


def test_a_plateau_and_its_drop():
    masked = [0.9, 0.40, 0.41, 0.39, 0.40, 0.35, 0.37, 0.34, 0.29, 0.31, 0.28, 0.28, 0.15, 0.18, 0.05, 0.01]
    found = completion_phases(table(masked, [0.5, *[0.001] * 15]), E)
    # On the plateau: 0.40 0.41 0.39 0.40 and 0.37; its median is 0.40.
    assert found.level == pytest.approx(0.40)
    assert found.copying == 50
    # Below 0.36: rows 5, then 7 and on; two running from row 7. Below 0.30: row 8, then 10 and 11. Below 0.2: row 12.
    assert (found.onset, found.drop, found.half) == (350, 500, 600)
    assert (found.second_level, found.second_from) == (None, None)
    assert found.verdict == "dropped at step 500"
    assert (found.rows.first, found.rows.last) == (50, 300)
    assert found.column == "loss_obs, loss_mask"


def test_not_dropped_yet():
    found = completion_phases(table([0.9, *[0.4] * 20, 0.38]), E)
    assert (found.onset, found.drop, found.half) == (None, None, None)
    assert found.verdict == "copying plateau, not dropped yet"


def test_no_plateau():
    found = completion_phases(table(np.linspace(0.9, 0.0, 30), np.linspace(0.9, 0.0, 30)), E)
    assert (found.level, found.copying, found.onset) == (None, None, None)
    assert found.verdict.startswith("no plateau")
    assert completion_phases(table([]), E).level is None


def test_a_second_plateau():
    noise = np.tile([0.004, -0.004], 20)
    masked = [0.9, *[0.4] * 20, 0.29, 0.28, 0.25, *(0.22 + noise)]
    found = completion_phases(table(masked), E)
    assert found.drop == 50 * 21
    assert found.half is None
    assert found.second_level == pytest.approx(0.22, abs=0.005)
    assert found.second_from == 50 * 24
    assert "second plateau at 5" in found.verdict


def test_solved_or_still_falling_is_no_second_plateau():
    solved = [0.9, *[0.4] * 20, 0.2, *[0.01] * 40]
    falling = [0.9, *[0.4] * 20, *np.linspace(0.29, 0.1, 40)]
    for masked in (solved, falling):
        assert completion_phases(table(masked), E).second_level is None


def test_undefined_rows_are_left_out():
    masked = [0.9, *[0.4] * 10, np.nan, 0.1, 0.1]
    assert completion_phases(table(masked), E).onset == 600
