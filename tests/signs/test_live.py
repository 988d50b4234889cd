"""When a run that goes on is told to be on its plateau: on the curves and tables on record, step by step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import mechplateau.studies
from mechplateau.signs import LivePlateau

DATA = Path(__file__).parents[1] / "data"
RESULTS = Path(mechplateau.studies.__file__).parent / "matrix" / "results" / "tables"
AUTHORS = pd.read_csv(DATA / "mws_authors_code_cpu.csv")["train_loss"].to_numpy()
STEPS = np.arange(1, len(AUTHORS) + 1)


def seen(steps, losses):
    live = LivePlateau()
    for step, loss in zip(steps, losses, strict=True):
        live.note(int(step), float(loss))
    return live.seen


@pytest.mark.parametrize(("stride", "step"), [(1, 21), (2, 31), (5, 141), (10, 161)])
def test_the_authors_curve(stride, step):
    """Onset 72, drop 192. Measured at every step, or every second one, the stay before the partial solution counts."""
    assert seen(STEPS[::stride], AUTHORS[::stride]) == step


def test_later_rows_change_nothing():
    for rows in (*range(1, 24), 60, 200, 400):
        assert seen(STEPS[:rows], AUTHORS[:rows]) == (21 if rows >= 21 else None)
    other = np.concatenate([AUTHORS[:21], np.linspace(2.7, 0.01, 379)])
    assert seen(STEPS, other) == 21


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("mc_0_tiny", 800),
        ("mc_1_tiny", 1300),
        ("mc_2_tiny", 650),
        ("mc_0_small", 650),
        ("mc_2_small", None),
        ("scale-3_1_tiny", 1500),
    ],
)
def test_matrix_completion_on_record(name, step):
    """The masked loss. Five rows at a single look, as it was asked before, say step 450 of most."""
    table = pd.read_parquet(RESULTS / f"{name}.parquet")
    assert seen(table["step"], table["loss_mask"]) == step


def test_curves_that_stay_nowhere_long_enough():
    repeat = pd.read_csv(DATA / "repeat1_loss.csv")
    assert seen(repeat["step"], repeat["train_loss"]) is None  # it comes down to its end within 20 steps
    language = pd.read_csv(DATA / "stagewise_lm.csv")
    assert seen(language["step"], language["test_loss"]) is None
    regression = pd.read_csv(DATA / "stagewise_lr.csv").query("seed == 0")
    assert seen(regression["step"], regression["mse"]) is None


@pytest.mark.parametrize(
    "shape",
    [
        lambda u: 2.9 - 1.6 * u,
        lambda u: 1.3 + 1.6 * np.exp(-u),
        lambda u: 1.3 + 1.6 * (1 + 100 * u) ** -0.5,
        lambda u: 2.9 - 0.3 * np.log1p(200 * u),
        lambda u: 2.1 + 0.8 * np.cos(np.pi * u),  # level at first, when nothing was learned yet
        lambda u: 2.9 + 0 * u,
        lambda u: np.where(u < 0.1, 3 - 27 * u, 0.3),  # level at the end, when nearly all is learned
    ],
)
def test_made_up_curves_without_one(shape):
    u = np.linspace(0, 1, 300)
    assert seen(np.arange(300), shape(u) + 0.003 * np.random.default_rng(0).standard_normal(300)) is None


def test_undefined_rows_say_nothing():
    curve = [3.0, 2.5, *[2.0] * 30]
    plain = seen(range(0, 320, 10), curve)
    live = LivePlateau()
    for step, loss in zip(range(0, 320, 10), curve, strict=True):
        live.note(step, loss)
        live.note(step + 1, None)
        live.note(step + 2, float("nan"))
    # Ten finite rows at least, twelve for this; three of them in a row.
    assert live.seen == plain == 130
