"""Plateau detection on recorded curves, distorted in every way a run can differ, and on made-up ones."""

import csv
import dataclasses
import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from mechplateau.signs import Plateau, find_plateau
from mechplateau.signs.finder import _non_increasing, _weighted_median

DATA = Path(__file__).parents[1] / "data"


def column(file: str, name: str) -> np.ndarray:
    with (DATA / file).open(newline="") as lines:
        return np.array([float(row[name]) for row in csv.DictReader(lines)])


# Rows are measured after the update: row s is step s + 1.
LOSS = column("mws_authors_code_cpu.csv", "train_loss")
ACCURACY = column("mws_authors_code_cpu.csv", "test_accuracy")
STEPS = np.arange(1, len(LOSS) + 1)
MIDDLE_OF_DROP = 192
REPEAT1 = column("repeat1_loss.csv", "train_loss")


def noise(seed: int, n: int, size: float) -> np.ndarray:
    return size * np.random.default_rng(seed).standard_normal(n)


def assert_none(plateau: Plateau, reason: str) -> None:
    assert not plateau.found
    assert plateau.onset is plateau.drop is plateau.midpoint is plateau.plateau_level is None
    assert 0 <= plateau.confidence < 0.5
    assert reason in plateau.reason


def assert_recorded(
    plateau: Plateau, *, scale: float = 1, onset: tuple[float, float], drop: tuple[float, float]
):
    assert plateau.found, plateau.reason
    assert onset[0] <= plateau.onset <= onset[1]
    assert drop[0] <= plateau.drop <= drop[1]
    assert plateau.midpoint == (plateau.onset + plateau.drop) / 2
    assert plateau.midpoint < plateau.end < plateau.drop
    assert f"from step {plateau.onset} to its drop at step {plateau.drop}," in plateau.reason
    assert plateau.plateau_level == pytest.approx(2.63 * scale, rel=0.02)
    assert plateau.final_level == pytest.approx(1.31 * scale, rel=0.03)
    assert 0.5 <= plateau.confidence <= 1


class TestRecordedCurve:
    def test_as_it_is(self):
        plateau = find_plateau(STEPS, LOSS)
        # y₀, the partial solution, is right at row 70.
        assert_recorded(plateau, onset=(66, 76), drop=(MIDDLE_OF_DROP - 2, MIDDLE_OF_DROP + 2))
        assert plateau.plateau_level == pytest.approx(2.626, abs=0.005)
        assert plateau.confidence > 0.85
        assert plateau.drop < STEPS[np.argmax(ACCURACY >= 0.99)]
        assert plateau.drop > STEPS[170]  # 5 % of the drop
        assert f"step {plateau.drop}" in plateau.reason

    @pytest.mark.parametrize("stride", [2, 5, 10, 20])
    def test_at_other_cadences(self, stride: int):
        for start in range(0, stride, max(1, stride // 5)):
            plateau = find_plateau(STEPS[start::stride], LOSS[start::stride])
            assert_recorded(plateau, onset=(66, 76 + stride), drop=(MIDDLE_OF_DROP, MIDDLE_OF_DROP + stride))

    @pytest.mark.parametrize("seed", range(5))
    def test_at_unequal_steps(self, seed: int):
        keep = np.sort(np.random.default_rng(seed).choice(len(LOSS), 120, replace=False))
        assert_recorded(find_plateau(STEPS[keep], LOSS[keep]), onset=(60, 90), drop=(188, 204))

    def test_dense_at_first_then_sparse(self):
        keep = np.concatenate([np.arange(0, 100), np.arange(100, 400, 8)])
        assert_recorded(find_plateau(STEPS[keep], LOSS[keep]), onset=(66, 80), drop=(190, 200))

    @pytest.mark.parametrize("seed", range(20))
    @pytest.mark.parametrize(("size", "onset"), [(0.003, (66, 80)), (0.02, (55, 105)), (0.05, (25, 120))])
    def test_under_noise(self, seed: int, size: float, onset: tuple[int, int]):
        plateau = find_plateau(STEPS, LOSS + noise(seed, len(LOSS), size))
        assert_recorded(plateau, onset=onset, drop=(MIDDLE_OF_DROP - 4, MIDDLE_OF_DROP + 4))

    @pytest.mark.parametrize("seed", range(10))
    def test_under_noise_every_ten_steps(self, seed: int):
        few = slice(seed, None, 10)
        plateau = find_plateau(STEPS[few], LOSS[few] + noise(seed, len(STEPS[few]), 0.005))
        assert_recorded(plateau, onset=(60, 110), drop=(MIDDLE_OF_DROP - 1, MIDDLE_OF_DROP + 12))

    def test_with_spikes_and_missing_rows(self):
        loss = LOSS.copy()
        loss[[30, 120, 260, 399]] = [9.0, 4.0, 6.0, 5.0]
        loss[100:140:2] = math.nan
        loss[[0, 150, 192]] = [math.inf, math.inf, -math.inf]
        assert_recorded(find_plateau(STEPS, loss), onset=(66, 80), drop=(190, 195))

    def test_none_is_a_missing_row(self):
        loss = [None if i % 3 == 0 else value for i, value in enumerate(LOSS.tolist())]
        assert find_plateau(STEPS, loss) == find_plateau(STEPS, [math.nan if x is None else x for x in loss])
        assert_recorded(find_plateau(STEPS, loss), onset=(66, 80), drop=(190, 195))

    @pytest.mark.parametrize("factor", [1e-3, 0.3, 7, 1e6])
    def test_rescaled(self, factor: float):
        plain, scaled = find_plateau(STEPS, LOSS), find_plateau(STEPS, LOSS * factor)
        assert (scaled.onset, scaled.drop) == (plain.onset, plain.drop)
        assert scaled.confidence == pytest.approx(plain.confidence)
        assert_recorded(scaled, scale=factor, onset=(66, 76), drop=(190, 194))

    @pytest.mark.parametrize("offset", [-3.0, 10.0])
    def test_shifted(self, offset: float):
        plain, shifted = find_plateau(STEPS, LOSS), find_plateau(STEPS, LOSS + offset)
        assert (shifted.onset, shifted.drop) == (plain.onset, plain.drop)

    @pytest.mark.parametrize("factor", [3, 30])
    def test_stretched_in_time(self, factor: int):
        """The same steps farther apart, then the same shape recorded at every step of a longer run."""
        plain, sparse = find_plateau(STEPS, LOSS), find_plateau(STEPS * factor, LOSS)
        assert (sparse.onset, sparse.drop) == (plain.onset * factor, plain.drop * factor)
        steps = np.arange(factor, 400 * factor + 1)
        dense = find_plateau(steps, np.interp(steps, STEPS * factor, LOSS) + noise(factor, len(steps), 0.003))
        assert_recorded(dense, onset=(60 * factor, 85 * factor), drop=(190 * factor, 194 * factor))

    def test_with_a_longer_plateau(self):
        """A flat stay of 4,000 steps in the middle of the recorded one."""
        flat = LOSS[130] + noise(0, 4000, 0.003)
        loss = np.concatenate([LOSS[:130], flat, LOSS[130:]])
        plateau = find_plateau(np.arange(1, len(loss) + 1), loss)
        assert_recorded(plateau, onset=(60, 90), drop=(4190, 4194))
        assert plateau.confidence > 0.95

    @pytest.mark.parametrize("every", [1, 10])
    def test_a_long_run_ended_soon_after_its_drop(self, every: int):
        """100 steps after the middle of the drop, of 5,000."""
        loss = np.concatenate([LOSS[:130], LOSS[130] + noise(1, 4708, 0.003), LOSS[130:292]])[::every]
        plateau = find_plateau(np.arange(1, 5001, every), loss)
        assert_recorded(plateau, onset=(60, 90), drop=(4898, 4902 + every))

    def test_with_a_plateau_of_thirty_steps(self):
        """Cut out of the recorded one, and the drop made as much faster."""
        loss = np.concatenate([LOSS[:75], LOSS[75:165:4], LOSS[165::4]])
        plateau = find_plateau(np.arange(1, len(loss) + 1), loss)
        assert_recorded(plateau, onset=(66, 78), drop=(103, 107))

    def test_after_a_bad_initialization(self):
        """Initial weights ten times too large: the loss comes down from 30 within 20 steps."""
        loss = LOSS + 27 * np.exp(-STEPS / 4)
        assert_recorded(find_plateau(STEPS, loss), onset=(20, 80), drop=(190, 194))

    @pytest.mark.parametrize("rows", [100, 120, 140, 160, 170])
    def test_cut_off_before_the_drop(self, rows: int):
        assert_none(find_plateau(STEPS[:rows], LOSS[:rows]), "never drops again")

    @pytest.mark.parametrize("rows", [60, 70, 80, 90, 175])
    def test_cut_off_in_the_partial_solution_or_as_the_drop_begins(self, rows: int):
        """There is a short stay before the partial solution, too; it is not taken for the plateau."""
        assert_none(find_plateau(STEPS[:rows], LOSS[:rows]), "The loss")

    @pytest.mark.parametrize("rows", [200, 220, 300])
    def test_cut_off_after_the_middle_of_the_drop(self, rows: int):
        plateau = find_plateau(STEPS[:rows], LOSS[:rows])
        assert plateau.found
        assert 66 <= plateau.onset <= 76
        assert 180 <= plateau.drop <= 194

    def test_any_length_gives_an_answer(self):
        for rows in range(0, len(LOSS) + 1, 4):
            plateau = find_plateau(STEPS[:rows], LOSS[:rows])
            assert plateau.found == (plateau.confidence >= 0.5) == (plateau.drop is not None)
            assert plateau.found or rows < 190


class TestNoPlateau:
    def test_repeat_once_falls_at_once(self):
        steps = np.arange(len(REPEAT1))
        for stride in (1, 3, 10):
            plateau = find_plateau(steps[::stride], REPEAT1[::stride])
            assert_none(plateau, "never drops again")
            assert plateau.confidence < 0.2
            assert plateau.final_level == pytest.approx(1.323, abs=0.01)

    SHAPES = (
        ("linear", lambda u: 2.9 - 1.6 * u, "without a lasting stay"),
        ("exponential", lambda u: 1.3 + 1.6 * np.exp(-6 * u), "never drops again"),
        ("slow exponential", lambda u: 1.3 + 1.6 * np.exp(-u), "The loss"),
        ("power law", lambda u: 1.3 + 1.6 * (1 + 100 * u) ** -0.5, "never drops again"),
        ("logarithm", lambda u: 2.9 - 0.3 * np.log1p(200 * u), "The loss"),
        ("half cosine", lambda u: 2.1 + 0.8 * np.cos(np.pi * u), "without a lasting stay"),
        (
            "fast then flat",
            lambda u: np.interp(u, np.linspace(0, 1, len(REPEAT1)), REPEAT1),
            "never drops again",
        ),
        ("flat", lambda u: 2.9 + 0 * u, "never drops"),
        ("rising", lambda u: 1.5 + u, "never drops"),
    )

    @pytest.mark.parametrize(("name", "shape", "reason"), SHAPES, ids=[name for name, *_ in SHAPES])
    @pytest.mark.parametrize("rows", [12, 40, 400, 3000])
    @pytest.mark.parametrize("size", [0.0, 0.003, 0.03])
    def test_curves_without_one(self, name: str, shape, reason: str, rows: int, size: float):
        u = np.linspace(0, 1, rows)
        for seed in range(5 if rows < 1000 and size else 1):
            assert_none(find_plateau(np.arange(rows), shape(u) + noise(seed, rows, size)), reason)

    @pytest.mark.parametrize("rows", [40, 400])
    def test_heavy_noise_is_no_plateau(self, rows: int):
        for seed in range(20):
            assert_none(find_plateau(np.arange(rows), 2.9 + noise(seed, rows, 0.3)), "The loss never drops")
            sloped = find_plateau(np.arange(rows), np.linspace(2.9, 1.3, rows) + noise(seed, rows, 0.3))
            assert not sloped.found

    def test_too_few_points(self):
        assert_none(find_plateau([], []), "Only 0 finite losses were recorded")
        assert_none(find_plateau([0], [2.0]), "Only 1 finite loss was recorded; at least 10 are needed")
        assert_none(find_plateau(range(9), LOSS[::45][:9]), "Only 9 finite losses")
        loss = LOSS[::40].copy()
        loss[3] = math.nan
        assert_none(find_plateau(range(10), loss), "Only 9 finite losses")
        assert find_plateau(range(9), LOSS[::45][:9]).final_level is None

    def test_too_many_losses_that_are_not_finite(self):
        loss = LOSS.copy()
        loss[199:] = math.nan
        assert_none(find_plateau(STEPS, loss), "Only 199 of 400 losses are finite")

    def test_a_run_that_ends_in_nan_after_its_drop_is_judged_by_what_it_has(self):
        loss = LOSS.copy()
        loss[300:] = math.nan
        assert find_plateau(STEPS, loss).drop == pytest.approx(MIDDLE_OF_DROP, abs=2)


def logistic(steps: np.ndarray, center: float, width: float) -> np.ndarray:
    return 1 / (1 + np.exp(-(steps - center) / width))


class TestMadeUpCurves:
    @pytest.mark.parametrize("seed", range(10))
    @pytest.mark.parametrize(("length", "total"), [(30, 150), (100, 400), (1000, 2000), (6000, 10000)])
    def test_known_plateaus(self, seed: int, length: int, total: int):
        steps = np.arange(total)
        drop = 20 + length
        loss = 2.9 - 0.3 * (1 - np.exp(-steps / 5)) - 1.3 * logistic(steps, drop, length / 25)
        plateau = find_plateau(steps, loss + noise(seed, total, 0.005))
        assert plateau.found, plateau.reason
        assert plateau.drop == pytest.approx(drop, abs=2 + 0.01 * length)
        # 90 % of the first fall takes 5·ln 10 = 11.5 steps.
        assert 8 <= plateau.onset <= 17
        assert plateau.plateau_level == pytest.approx(2.6, abs=0.01)
        assert plateau.final_level == pytest.approx(1.3, abs=0.01)

    def test_a_plateau_at_the_initial_level_begins_at_the_first_step(self):
        steps = np.arange(400)
        for seed in range(10):
            plateau = find_plateau(steps, 2.8 - 1.5 * logistic(steps, 250, 6) + noise(seed, 400, 0.005))
            assert plateau.found
            assert plateau.onset <= 10
            assert plateau.drop == pytest.approx(250, abs=2)

    @pytest.mark.parametrize("seed", range(10))
    @pytest.mark.parametrize(("first", "second"), [(0.7, 0.6), (0.5, 0.8), (0.9, 0.4)])
    def test_a_staircase_gives_the_stay_before_the_last_deep_drop(
        self, seed: int, first: float, second: float
    ):
        steps = np.arange(400)
        loss = 2.9 - 0.3 * (1 - np.exp(-steps / 4)) - first * logistic(steps, 120, 4)
        loss -= second * logistic(steps, 280, 4)
        plateau = find_plateau(steps, loss + noise(seed, 400, 0.005))
        assert plateau.found
        assert plateau.plateau_level == pytest.approx(2.6 - first, abs=0.01)
        assert 120 < plateau.onset < 140
        assert plateau.drop == pytest.approx(280, abs=3)

    def test_a_last_step_too_shallow_to_count_leaves_the_stay_before(self):
        steps = np.arange(400)
        loss = 2.9 - 0.3 * (1 - np.exp(-steps / 4)) - 1.2 * logistic(steps, 120, 4)
        loss -= 0.15 * logistic(steps, 250, 4)
        plateau = find_plateau(steps, loss)
        assert plateau.plateau_level == pytest.approx(2.6, abs=0.01)
        assert plateau.drop == pytest.approx(120, abs=3)
        assert find_plateau(steps, loss, min_depth=0.05).drop == pytest.approx(250, abs=3)

    def test_a_drop_within_one_row(self):
        loss = [2.9, 2.7] + [2.6] * 8 + [1.3] * 10
        plateau = find_plateau(range(0, 200, 10), loss)
        assert (plateau.onset, plateau.drop, plateau.plateau_level, plateau.final_level) == (
            20,
            100,
            2.6,
            1.3,
        )
        assert plateau.midpoint == 60.0

    def test_min_stay_is_the_bound_it_says_it_is(self):
        steps = np.arange(400)
        # The fall from 10 % to 50 % takes 20·ln 9 = 44 steps, the stay before it 220 − 44 = 176: 4 times.
        loss = 2.8 - 1.5 * logistic(steps, 220, 20)
        assert find_plateau(steps, loss, min_stay=3.8).found
        assert not find_plateau(steps, loss, min_stay=4.2).found

    def test_confidence_grows_with_the_stay(self):
        steps = np.arange(1000)
        confidences = []
        for center in (60, 120, 200, 400, 800):
            loss = 2.9 - 0.3 * (1 - np.exp(-steps / 3)) - 1.3 * logistic(steps, center, 10)
            confidences.append(find_plateau(steps, loss).confidence)
        assert all(a <= b + 1e-6 for a, b in pairwise(confidences))
        assert confidences[0] < 0.5 < confidences[1]


class TestContract:
    def test_wrong_input_is_named(self):
        with pytest.raises(ValueError, match=r"one loss for each step; got shapes \(3,\) and \(2,\)"):
            find_plateau([1, 2, 3], [1.0, 2.0])
        with pytest.raises(ValueError, match="increasing steps"):
            find_plateau([1, 2, 2], [1.0, 2.0, 3.0])

    def test_the_result_is_frozen_and_can_be_written_down(self):
        plateau = find_plateau(STEPS, LOSS)
        with pytest.raises(dataclasses.FrozenInstanceError):
            plateau.drop = 3
        assert Plateau(**json.loads(json.dumps(dataclasses.asdict(plateau)))) == plateau
        assert {type(plateau.onset), type(plateau.drop)} == {int}

    def test_the_input_is_not_changed(self):
        steps, loss = STEPS.copy(), LOSS.copy()
        find_plateau(steps, loss)
        assert (steps == STEPS).all()
        assert (loss == LOSS).all()


def test_the_non_increasing_fit_by_hand():
    assert _non_increasing(np.array([3.0, 1.0, 2.0])).tolist() == [3.0, 1.5, 1.5]
    assert _non_increasing(np.array([1.0, 2.0, 6.0])).tolist() == [3.0, 3.0, 3.0]
    assert _non_increasing(np.array([3.0, 2.0, 2.0, 1.0])).tolist() == [3.0, 2.0, 2.0, 1.0]


@pytest.mark.parametrize("seed", range(5))
def test_no_non_increasing_curve_is_nearer(seed: int):
    """Against the closed form: fit_i = min over j ≤ i of max over k ≥ i of mean(y_j … y_k)."""
    y = np.random.default_rng(seed).standard_normal(25) - np.linspace(0, 2, 25)
    n = len(y)
    closed = [min(max(y[j : k + 1].mean() for k in range(i, n)) for j in range(i + 1)) for i in range(n)]
    assert _non_increasing(y) == pytest.approx(closed)


def test_the_weighted_median_by_hand():
    assert _weighted_median(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 1.0])) == 2.0
    assert _weighted_median(np.array([3.0, 1.0, 2.0]), np.array([5.0, 1.0, 1.0])) == 3.0
