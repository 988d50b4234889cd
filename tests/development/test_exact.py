"""Estimates on losses whose learning coefficient is known: exact targets, with the step's own bias."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mechplateau.development import StepSizeWarning, llc, toys

N_BETA = 1085.7
CURVATURES = np.logspace(-1, 1, 10)


def estimated(toy, step_size, localization=1.0, **settings):
    """λ̂ of one copy and its standard error over chains."""
    defaults = {"chains": 8, "draws": 700, "burn_in": 400, "paired": False}
    own = {"elasticity": False, "step_check": False, **defaults, **settings}
    found = llc(
        toy.start, toy.losses, None, step_size=step_size, n_beta=N_BETA, localization=localization, **own
    )
    return found.llc / toy.copies, found.chain_sd / toy.copies / math.sqrt(own["chains"]), found


@pytest.mark.parametrize(
    ("step_size", "localization", "known"), [(1e-4, 1.0, 5.400), (4e-5, 1.0, 5.133), (1e-4, 100.0, 4.656)]
)
def test_a_quadratic_is_exact_at_any_step(step_size, localization, known):
    toy = toys.quadratic(CURVATURES, 64)
    target = toy.expected(N_BETA, localization, step_size)
    assert target == pytest.approx(known, abs=1e-3)
    burn_in = 400 if step_size == 1e-4 else 1000
    value, error, _ = estimated(toy, step_size, localization, burn_in=burn_in)
    assert abs(value - target) < 4 * error
    assert 4 * error < 0.2  # else the test says little


@pytest.mark.parametrize(
    ("toy", "step_size", "localization"),
    [
        (toys.quadratic([1.0, 0.0], 200), 1e-4, 1.0),
        (toys.sum_of_powers(4, 4, 200), 1e-4, 1.0),
        (toys.product_of_powers(2, 2, 200), 1e-3, 100.0),
        (toys.product_of_powers(2, 4, 200), 2e-3, 30.0),
        (toys.linear_network(4, 3, 64, rank=1), 1e-4, 1.0),
        (toys.linear_network(4, 3, 64, rank=0), 2e-4, 100.0),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_estimates_on_toys_are_within_four_errors(toy, step_size, localization):
    exact, stepped = (toy.expected(N_BETA, localization, step) for step in (0.0, step_size))
    value, error, _ = estimated(toy, step_size, localization)
    # The first-order bias is itself known to about its square; for the network, so is the quadratic part.
    assert abs(value - stepped) < 4 * error + (stepped - exact) ** 2 / exact
    assert 4 * error < 0.08 * exact


@pytest.mark.slow
@pytest.mark.parametrize(
    ("toy", "step_size", "exact"),
    [
        (toys.product_of_powers(2, 2, 200), 1e-4, 0.391),
        (toys.product_of_powers(2, 4, 200), 1e-4, 0.225),
        (toys.linear_network(4, 3, 64, rank=0), 2e-4, 1.476),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_long_valleys_need_long_chains(toy, step_size, exact):
    assert toy.expected(N_BETA, 1.0) == pytest.approx(exact, abs=1e-3)
    value, error, _ = estimated(toy, step_size, draws=5000, burn_in=10000)
    assert abs(value - exact) < 4 * error + abs(toy.expected(N_BETA, 1.0, step_size) - exact)


def test_the_targets_approach_the_learning_coefficient():
    product = toys.product_of_powers(2, 2)
    finite = [product.expected(n_beta, 1.0) for n_beta in (1e2, 1e3, 1e4, 1e5)]
    assert finite == pytest.approx([0.354, 0.390, 0.412, 0.427], abs=1e-3)
    assert toys.sum_of_powers(4, 4).expected(N_BETA, 1.0) == pytest.approx(0.495, abs=1e-3)
    for toy in (toys.linear_network(4, 3, rank=0), toys.linear_network(4, 3, rank=1)):
        assert toy.expected(1e6, 1.0) == pytest.approx(toy.coefficient, rel=0.01)


def test_a_step_that_is_too_large_warns_and_says_so():
    toy = toys.linear_network(4, 3, 16, rank=1)
    with pytest.warns(StepSizeWarning, match=r"2\.17, which should be below 0\.4 \(h_max 2\)"):
        value, _, found = estimated(toy, 1e-3, step_check=True)
    assert value > 1.5 * toy.coefficient
    assert found.verdict == "step too large"
    assert found.stability == pytest.approx(1e-3 * (N_BETA * 2 + 1), rel=1e-3)
    assert "0.092 times" in found.reason


def test_a_quadratic_is_local():
    toy = toys.quadratic(np.ones(10), 20, start=1.0)
    _, _, found = estimated(
        toy, 1e-4, draws=600, burn_in=200, elasticity=True, step_check=True, trivial_loss=math.inf
    )
    assert abs(found.elasticity) < 0.1
    assert found.verdict == "local"
    # ‖w − w*‖² has mean 1/a a coordinate.
    assert found.distance == pytest.approx(math.sqrt(1 / N_BETA), rel=0.1)


def test_a_loss_with_a_ceiling_is_saturated():
    """L = 1 − exp(−‖w‖²): beyond the hollow it is flat, and the pull alone decides where chains are."""
    import torch

    def losses(weights):
        return (1 - torch.exp(-weights["w"].square().sum(-1))).mean()

    start = {"w": torch.zeros(16, 20, dtype=torch.float64)}
    settings = {
        "step_size": 0.05,
        "n_beta": 20.0,
        "localization": 0.3,
        "chains": 3,
        "draws": 300,
        "burn_in": 300,
    }
    found = llc(start, losses, None, **settings, step_check=False)
    assert found.elasticity > 0.5
    assert found.verdict == "saturated"
    assert "elasticity" in found.reason
    against = llc(start, losses, None, **settings, step_check=False, elasticity=False, trivial_loss=0.9)
    assert (against.verdict, against.elasticity) == ("saturated", None)
    assert "trivial loss 0.9" in against.reason
