"""From losses along chains to an estimate: every number by hand, and every verdict."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mechplateau.development import AllChainsLost, Rows, Sampling, estimate, llc, sample
from mechplateau.development.verdicts import VERDICTS, Evidence, judge
from mechplateau.errors import UserError

from .small import mlp, rows, squared


def test_burn_in_is_left_out():
    losses = np.concatenate([np.full(200, 100.0), np.full(50, 0.05)])
    found = estimate(losses, 0.0, 100.0, burn_in=200)
    assert found.llc == pytest.approx(5.0)
    assert (found.first_half, found.second_half) == pytest.approx((5.0, 5.0))
    assert (found.draws, found.burn_in, found.mean_loss) == (50, 200, pytest.approx(0.05))


def test_every_number_by_hand():
    losses = np.array([[9.0, 2.0, 4.0], [9.0, 3.0, 5.0]])
    at_start = np.array([0.0, 1.0, 2.0])
    distances = np.array([[0.0, 1.0, 2.0], [0.0, 2.0, 3.0]])
    found = estimate(
        losses, 1.0, 10.0, burn_in=1, at_start=at_start, distances=distances, norm=4.0, doubled_llc=40.0
    )
    assert found.llc == pytest.approx(10 * (3.5 - 1))
    assert found.paired == pytest.approx(10 * (3.5 - 1.5))
    assert found.chain_llcs == pytest.approx((20.0, 30.0))
    assert found.chain_sd == pytest.approx(math.sqrt(50))
    assert (found.first_half, found.second_half) == pytest.approx((15.0, 25.0))  # of the paired ones
    assert found.distance == pytest.approx(2.0 / 4.0)
    assert found.elasticity == pytest.approx(1.0)
    np.testing.assert_allclose(found.running, [[10, 20], [20, 30]])
    assert found.row()["llc"] == found.llc
    assert "losses" not in found.row()


def test_one_chain_has_no_standard_deviation():
    found = estimate(np.ones((1, 10)), 0.5, 10.0, doubled_llc=5.0, trivial_loss=math.inf)
    assert found.chain_sd is None
    assert found.verdict == "undetermined"
    assert "single chain" in found.reason


def test_a_negative_estimate_is_never_clipped():
    found = estimate(np.array([[0.5, 0.52], [0.5, 0.5]]), 1.0, 100.0)
    assert found.llc == pytest.approx(-49.5)
    assert found.verdict == "sliding"
    assert "no minimum" in found.reason


def test_a_lost_chain_is_named_and_left_out():
    losses = np.array([[1.0, 1.0], [1.0, np.inf], [2.0, 2.0]])
    found = estimate(losses, 0.0, 1.0)
    assert (found.llc, found.lost, found.chain_llcs) == (1.5, (1,), (1.0, None, 2.0))
    assert found.verdict == "chain lost"
    assert "1 of 3 chains went to infinity (chain 1)" in found.reason
    with pytest.raises(UserError, match="all 2 chains went to infinity"):
        estimate(np.full((2, 3), np.nan), 0.0, 1.0)


def test_chains_that_are_all_lost_are_an_error():
    settings = {"step_size": 100.0, "n_beta": 1000.0, "draws": 40, "step_check": False}
    with pytest.raises(AllChainsLost, match=r"all 4 chains went to infinity.*step size 100"):
        llc({"w": rows().rows[0]}, lambda weights: weights["w"].pow(4).sum(), None, **settings)


def test_chains_lost_at_twice_n_beta_only_leave_no_elasticity():
    # ε·a is 3.3 here and 6.6 there, where 4 is the limit.
    settings = {"step_size": 1.0, "n_beta": 3.3, "localization": 0.0, "chains": 2, "draws": 120}
    start = {"w": torch.zeros(4, dtype=torch.float32)}
    found = llc(start, lambda w: 0.5 * w["w"].square().sum(), None, **settings, step_check=False)
    assert math.isfinite(found.llc)
    assert (found.doubled_llc, found.elasticity) == (None, None)
    assert found.verdict == "undetermined"


GOOD = {
    "llc": 5.0,
    "chain_sd": 0.5,
    "halves": (5.2, 4.8),
    "mean_loss": 0.2,
    "loss": 0.1,
    "trivial_loss": 1.0,
    "elasticity": 0.1,
    "doubled": "sampled",
    "stability": 0.1,
    "lost": (),
    "chains": 4,
}


@pytest.mark.parametrize(
    ("changes", "verdict", "said"),
    [
        ({}, "local", "elasticity 0.10"),
        ({"lost": (2,), "stability": 1.0}, "chain lost", "chain 2"),
        ({"stability": 0.4, "elasticity": 0.9}, "step too large", "0.5 times"),
        ({"mean_loss": 1.0, "llc": -5.0}, "saturated", "trivial loss 1"),
        ({"mean_loss": 1.2, "loss": 1.0}, "saturated", "the loss here, 1,"),
        ({"elasticity": 0.51, "llc": -5.0}, "saturated", "elasticity 0.51"),
        ({"llc": -1.1, "elasticity": None}, "sliding", "−2 chain sd"),
        ({"elasticity": 0.25}, "undetermined", "elasticity 0.25"),
        ({"elasticity": -0.3}, "undetermined", "elasticity -0.30"),
        ({"elasticity": None}, "undetermined", "not positive"),
        ({"elasticity": None, "doubled": "no"}, "undetermined", "elasticity=True"),
        ({"elasticity": None, "doubled": "lost"}, "undetermined", "half the step size"),
        ({"halves": (6.2, 5.1)}, "undetermined", "halves differ by 1.1"),
        ({"halves": None}, "undetermined", "take more"),
        ({"trivial_loss": None}, "undetermined", "trivial_loss"),
        ({"chain_sd": None}, "undetermined", "single chain"),
        ({"stability": None}, "local", "halves agree"),
    ],
)
def test_verdicts_and_their_precedence(changes, verdict, said):
    found, reason = judge(Evidence(**{**GOOD, **changes}))
    assert found == verdict
    assert found in VERDICTS
    assert said in reason


def test_n_beta_comes_from_the_data_or_is_asked_for():
    settings = {"step_size": 1e-5, "draws": 2, "chains": 1, "elasticity": False, "step_check": False}
    found = llc(mlp(), squared, rows(60), **settings)
    assert (found.n, found.n_beta) == (60, pytest.approx(60 / math.log(60)))
    with pytest.raises(UserError, match="no n"):
        llc({"w": rows().rows[0]}, lambda weights: weights["w"].sum(), None, **settings)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((np.ones((2, 3, 4)), 0.0, 1.0), "chain, step"),
        ((np.ones(5), math.nan, 1.0), "finite loss"),
        ((np.ones(5), 0.0, 0.0), "n_beta above 0"),
    ],
)
def test_wrong_input_is_one_line(arguments, said):
    with pytest.raises(UserError, match=said) as caught:
        estimate(*arguments)
    assert "\n" not in str(caught.value)


def test_no_draw_after_the_burn_in_is_an_error():
    with pytest.raises(UserError, match="burn_in: expected 0 to 4"):
        estimate(np.ones(5), 0.0, 1.0, burn_in=5)
    with pytest.raises(UserError, match=r"at_start: expected one loss a step, \[5\]"):
        estimate(np.ones(5), 0.0, 1.0, at_start=np.ones(4))
    with pytest.raises(UserError, match="draws: expected a whole number of at least 1, got 0"):
        Sampling(step_size=1e-3, n_beta=1.0, draws=0)
    with pytest.raises(UserError, match="batch_size: expected 1 to 60, the rows of this data set, got 61"):
        rows(60, 61)
    with pytest.raises(UserError, match="could be either"):
        sample(mlp(), squared, rows().rows[0], Sampling(step_size=1e-3, n_beta=1.0))


def test_a_regression_at_its_minimum_is_local_and_beside_it_slides():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(800, 4, dtype=torch.float64, generator=generator)
    noise = torch.randn(800, 1, dtype=torch.float64, generator=generator)
    targets = inputs.sum(1, keepdim=True) + 0.3 * noise
    start = {"w": torch.linalg.lstsq(inputs, targets).solution}

    def losses(weights, batch):
        return (batch[0] @ weights["w"] - batch[1]).square()

    trivial = float(targets.square().mean())
    settings = {"step_size": 3e-4, "n_beta": 300.0, "chains": 6, "draws": 300, "burn_in": 60, "seed": 1}
    data = Rows((inputs, targets), batch_size=200)
    found = llc(start, losses, data, **settings, trivial_loss=trivial)
    assert found.verdict == "local"
    assert abs(found.paired - 2.0) < 4 * found.chain_sd / math.sqrt(6) + 0.2  # half of four weights
    beside = llc({"w": start["w"] / 2}, losses, data, **settings, trivial_loss=trivial)
    assert beside.verdict == "sliding"
    assert beside.llc < 0
