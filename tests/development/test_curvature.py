"""Hessian, trajectory and calibration, against what is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from mechplateau.development import calibrate, hessian, toys, trajectory
from mechplateau.errors import UserError

from .small import mlp, rows, squared


def dense(model, batch, names):
    """The Hessian over these parameters, row by row."""
    start = dict(model.named_parameters())
    sizes = [start[name].numel() for name in names]

    def loss(flat):
        pieces = [piece.view_as(start[name]) for piece, name in zip(flat.split(sizes), names, strict=True)]
        return squared(
            lambda x: torch.func.functional_call(model, dict(zip(names, pieces, strict=True)), (x,)), batch
        ).mean()

    flat = torch.cat([start[name].detach().reshape(-1) for name in names])
    return torch.autograd.functional.hessian(loss, flat).numpy()


@pytest.mark.parametrize("parts", [None, ["0.weight", "3.bias"], [("0.weight", 1)]])
def test_eigenvalues_and_trace_equal_those_of_the_whole_matrix(parts):
    model, data = mlp(torch.float64), rows(dtype=torch.float64)
    found = hessian(model, squared, data, top=3, probes=200, batches=2, parts=parts, tolerance=1e-8)
    names = [name for name, _ in model.named_parameters()] if parts is None else ["0.weight", "3.bias"]
    if parts == [("0.weight", 1)]:
        names = ["0.weight"]
    matrix = np.mean([dense(model, data.batch(step), names) for step in (0, 1)], axis=0)
    if parts == [("0.weight", 1)]:
        matrix = matrix[5:10, 5:10]
    assert found.parameters == len(matrix)
    np.testing.assert_allclose(found.eigenvalues, np.linalg.eigvalsh(matrix)[::-1][:3], rtol=1e-6)
    assert abs(found.trace - np.trace(matrix)) < 4 * found.trace_error + 1e-9
    again = hessian(model, squared, data, top=3, probes=2, batches=2, parts=parts, tolerance=1e-8)
    assert again.eigenvalues == found.eigenvalues
    assert again.probes == found.probes[:2]


def test_curvature_where_it_is_known_and_where_there_is_none():
    quadratic = toys.quadratic([4.0, 1.0, 0.0])
    found = hessian(quadratic.start, quadratic.losses, None, top=3, probes=4)
    assert found.eigenvalues == pytest.approx((4.0, 1.0, 0.0))
    assert (found.trace, found.trace_error) == (pytest.approx(5.0), pytest.approx(0.0))
    flat = hessian({"w": torch.ones(3)}, lambda weights: weights["w"].sum(), None, top=1, probes=0)
    assert (flat.eigenvalues, flat.trace) == ((0.0,), None)
    with pytest.raises(UserError, match="expected 0 to 3 eigenvalues"):
        hessian(quadratic.start, quadratic.losses, None, top=4)

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.square().sum()

        @staticmethod
        def backward(ctx, gradient):
            if torch.is_grad_enabled():
                raise RuntimeError("not twice")
            return gradient * torch.ones(3)

    with pytest.raises(UserError, match=r"no second derivative \(not twice\)"):
        hessian({"w": torch.ones(3)}, lambda weights: Once.apply(weights["w"]).pow(2), None, top=1)


def test_a_trajectory_in_a_plane():
    angles = np.linspace(0, 1.5, 7)
    plane = torch.linalg.qr(torch.randn(2, 30, generator=torch.Generator().manual_seed(0)).double().T)[0]
    points = np.stack([3 * np.cos(angles), np.sin(angles)], axis=1)
    states = [{"w": (plane @ torch.from_numpy(p)).view(5, 6), "count": torch.tensor(3)} for p in points]
    found = trajectory(states, components=3)
    assert found.shares.sum() == pytest.approx(1.0)
    assert found.shares[2] == pytest.approx(0.0, abs=1e-12)
    gaps = np.linalg.norm(np.diff(points, axis=0), axis=1)
    np.testing.assert_allclose(found.steps[1:], gaps)
    np.testing.assert_allclose(np.linalg.norm(np.diff(found.positions, axis=0), axis=1), gaps)
    assert np.isnan(found.steps[0])
    assert (found.positions[-1] >= 0).all()
    tensors = trajectory([state["w"] for state in states], components=3)
    np.testing.assert_allclose(tensors.positions, found.positions)
    with pytest.raises(UserError, match="number 1 differs from the first in shape or name of w"):
        trajectory([{"w": torch.ones(2)}, {"w": torch.ones(3)}], components=1)
    with pytest.raises(UserError, match="not finite"):
        trajectory([torch.ones(2), torch.full((2,), torch.inf)], components=1)
    assert np.isnan(trajectory([torch.ones(2)] * 3, components=1).shares).all()


def test_a_scan_has_one_line_a_setting_with_its_verdict():
    toy = toys.quadratic([1.0] * 4, 20)
    table = calibrate(
        toy.start,
        toy.losses,
        None,
        step_sizes=[1e-3, 1e-2, 1e-1],
        localizations=[1.0],
        n_betas=[100.0],
        chains=3,
        draws=200,
        burn_in=60,
        trivial_loss=float("inf"),
    )
    assert list(table["step_size"]) == [1e-3, 1e-2, 1e-1]
    assert list(table["verdict"]) == ["local", "step too large", "chain lost"]
    assert "all 3 chains" in table["reason"].iloc[2]
    assert pd.isna(table["llc"].iloc[2])
    assert table["llc"].iloc[0] / toy.copies == pytest.approx(2.0, rel=0.15)
    with pytest.raises(UserError, match="at least one value each"):
        calibrate(toy.start, toy.losses, None, step_sizes=[], localizations=[1.0], n_betas=[1.0])


@pytest.mark.parametrize("copies", [3, 400])
def test_a_flat_point_has_curvature_zero(copies):
    """w₁²w₂² at 0: every second derivative is 0, with few weights and with many."""
    toy = toys.product_of_powers(2, 2, copies)
    found = hessian(toy.start, toy.losses, None, top=2, probes=2)
    assert found.eigenvalues == (0.0, 0.0)
    assert found.trace == 0.0
