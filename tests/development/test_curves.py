"""On the released curves and on made ones: is the coefficient more than the loss, and where are the stages?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mechplateau.development import affine_check, stages
from mechplateau.errors import UserError

DATA = Path(__file__).parents[1] / "data"
REGRESSION = pd.read_csv(DATA / "stagewise_lr.csv")
LANGUAGE = pd.read_csv(DATA / "stagewise_lm.csv")
RELEASED_N_BETA = 66.667


def of_seed(seed):
    return REGRESSION[REGRESSION["seed"] == seed]


@pytest.mark.parametrize("seed", range(5))
def test_the_released_coefficients_are_affine_in_the_loss_until_60k(seed):
    early, late = (of_seed(seed).query(which) for which in ("step <= 60000", "step >= 200000"))
    check = affine_check(early["llc"], early["mse"], RELEASED_N_BETA)
    assert check.saturated
    assert check.r < -0.9999
    assert -67.0 < check.slope < -66.5
    assert not affine_check(late["llc"], late["mse"], RELEASED_N_BETA).saturated


def test_the_affine_check_by_hand_and_where_it_says_nothing():
    check = affine_check([10.0, 20.0, np.nan, 30.0], [3.0, 2.0, 5.0, 1.0], 10.0)
    assert (check.r, check.slope, check.checkpoints, check.saturated) == (
        pytest.approx(-1),
        pytest.approx(-10),
        3,
        True,
    )
    assert affine_check([10.0, 20.0, 30.0], [3.0, 2.0, 1.0], 11.0).saturated is False  # another slope
    assert affine_check([1.0, 2.0], [2.0, 1.0], 1.0).saturated is None
    assert affine_check([1.0, 1.0, 1.0], [2.0, 1.0, 0.0], 1.0).r is None
    with pytest.raises(UserError, match="one of each"):
        affine_check([1.0], [1.0, 2.0], 1.0)


def near(found, low, high):
    """A boundary within a quarter of the range's ends."""
    return [b.step for b in found.boundaries if 0.75 * low <= b.step <= 1.25 * high]


@pytest.mark.parametrize("seed", range(5))
def test_stages_of_the_released_regression_curves(seed):
    found = stages(of_seed(seed), "llc", loss="mse")
    for low, high in ((1100, 1300), (34000, 39000), (350000, 394000)):
        assert near(found.column, low, high), found
    assert bool(near(found.column, 133000, 145000)) == (seed in (0, 1, 4))
    for low, high in ((1100, 1300), (33000, 45000)):
        assert near(found.loss, low, high), found
    assert not near(found.loss, 350000, 394000)
    assert all(b.low <= b.step <= b.high for b in found.column.boundaries)
    table = found.table
    assert set(table["of"]) == {"llc", "mse"}
    last = table[(table["of"] == "llc") & (table["step"] > 300000)]
    assert not last["in_loss"].any()


def test_stages_of_the_released_language_curve():
    found = stages(LANGUAGE, "llc", loss="test_loss", length=0.3, noise=0.02)
    for step in (796, 6300, 8900, 18300, 42000):
        assert near(found.column, step, step), found
    assert "None" in str(found.loss)


STEPS = np.unique(np.geomspace(1, 100000, 120).astype(int))
LOGS = np.log(STEPS + 1)
MONOTONE = {
    "line": LOGS,
    "decay": np.exp(-LOGS / 3),
    "power": np.exp(LOGS / 2),
    "curved": -(LOGS**2),
    "one rise": np.tanh(LOGS - 8),
    "constant": np.full(len(LOGS), 3.0),
}


@pytest.mark.parametrize("shape", MONOTONE)
def test_monotone_and_constant_curves_have_no_stages(shape):
    found = stages(pd.DataFrame({"step": STEPS, "loss": MONOTONE[shape]}), "loss")
    assert found.column.boundaries == ()
    assert str(found).startswith("loss: None")
    assert found.column is found.loss
    assert len(found.table) == 0


def test_a_turn_and_a_pause_are_found_where_they_are():
    bend = np.log(3000)
    turn = np.abs(LOGS - bend)
    pause = np.tanh(2 * (LOGS - bend + 1.5)) + np.tanh(2 * (LOGS - bend - 1.5))
    for curve, kind in ((turn, "turn"), (pause, "pause")):
        noisy = curve + 0.01 * np.random.default_rng(0).standard_normal(len(curve))
        found = stages(pd.DataFrame({"step": STEPS, "loss": noisy}), "loss").column
        certain = [b for b in found.boundaries if b.certain and 2000 < b.step < 4500]
        assert [b.kind for b in certain] == [kind]
        assert certain[0].low <= 3000 <= certain[0].high


def test_tables_that_cannot_be_read_are_one_line():
    table = pd.DataFrame({"step": [1, 2], "loss": [1.0, 2.0], "name": ["a", "b"]})
    for column, said in (("none", "no column 'none'; this table has step"), ("name", "column of numbers")):
        with pytest.raises(UserError, match=said):
            stages(table, column)
    wide = table.assign(**{f"mse_{i}": 0.0 for i in range(20)})
    with pytest.raises(UserError, match="no column 5; this table has "):
        stages(wide, 5)
    with pytest.raises(UserError, match=r"no column 'mse_99'; this table has mse_9, mse_19, mse_8, …$"):
        stages(wide, "mse_99")
    with pytest.raises(UserError, match="those of a single run"):
        stages(REGRESSION, "llc", loss="mse")
    assert "too few" in str(stages(table, "loss"))
