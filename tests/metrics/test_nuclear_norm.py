"""Completion by nuclear norm: known answers, and what cvxpy finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mechplateau.metrics.nuclear_norm import complete, lower_singular_values, nuclear_norm
from mechplateau.tasks.matrix_completion import MatrixCompletion

CORNER = torch.tensor([[[True, True], [True, False]]])


@pytest.mark.parametrize(("a", "corner"), [(1.0, 1.0), (0.5, 0.5), (2.0, 0.5)])
def test_the_smallest_norm_is_not_the_smallest_rank(a, corner):
    """[[a, 1], [1, ?]]: rank 1 would need 1 / a, the smallest norm is reached at min(a, 1 / a)."""
    completed, converged = complete(torch.tensor([[[a, 1.0], [1.0, 9.0]]]), CORNER)
    assert converged.all()
    expected = torch.tensor([[[a, 1.0], [1.0, corner]]], dtype=torch.float64)
    torch.testing.assert_close(completed, expected, atol=1e-4, rtol=0)


def stored():
    data = json.loads((Path(__file__).parent.parent / "data" / "nuclear_norm.json").read_text())
    matrices = torch.tensor(data["matrices"]) / 100
    observed = torch.tensor(data["observed"], dtype=torch.bool)
    return data, matrices, observed


@pytest.mark.parametrize(("name", "penalty"), [("exact", None), ("penalty 0.01", 0.01)])
def test_equal_to_cvxpy(name, penalty):
    data, matrices, observed = stored()
    theirs = torch.tensor(data[name], dtype=torch.float64)
    completed, converged = complete(matrices, observed, penalty)
    assert converged.all()
    assert (completed - theirs).abs().max() < 1e-3
    assert (nuclear_norm(completed) - nuclear_norm(theirs)).abs().max() < 1e-4
    if penalty is None:
        assert (completed - matrices)[observed].abs().max() < 1e-6


@pytest.mark.parametrize(
    ("p_mask", "penalty", "error", "masked", "norm"),
    [
        (0.3, None, 0.0115, 0.039, 4.25),
        (0.5, None, 0.0561, 0.112, 3.86),
        (0.6, None, 0.0902, 0.153, 3.59),
        (0.3, 2e-3, 0.0115, None, None),
        (0.3, 5e-3, 0.0132, None, None),
        (0.3, 1e-2, 0.0167, None, None),
    ],
)
def test_errors_of_the_papers_matrices(p_mask, penalty, error, masked, norm):
    """7 × 7, rank 2: what another program found on 256 matrices, of all cells and of masked ones, within 15 %."""
    batch = MatrixCompletion(p_mask=p_mask).batch(256, seed=0)
    matrices, observed = batch.targets.view(-1, 7, 7), batch.observed.view(-1, 7, 7)
    completed, converged = complete(matrices, observed, penalty, tolerance=1e-3)
    assert converged.all()
    squares = (completed - matrices).square()
    assert float(squares.mean()) == pytest.approx(error, rel=0.15)
    if masked is not None:
        assert float(squares[~observed].mean()) == pytest.approx(masked, rel=0.15)
        assert float(nuclear_norm(completed).mean()) == pytest.approx(norm, rel=0.15)


def test_few_masked_cells_leave_little_error():
    """At p_mask 0.1 some matrices in a hundred make the whole error, so that 256 of them tell it to 25 %."""
    batch = MatrixCompletion(p_mask=0.1).batch(512, seed=3)
    matrices, observed = batch.targets.view(-1, 7, 7), batch.observed.view(-1, 7, 7)
    completed, _ = complete(matrices, observed, tolerance=1e-3)
    squares = (completed - matrices).square()
    assert float(squares.mean()) == pytest.approx(0.0010, rel=0.5)
    assert float(squares[~observed].mean()) == pytest.approx(0.0098, rel=0.5)
    assert float(nuclear_norm(completed).mean()) == pytest.approx(4.41, rel=0.05)


@pytest.mark.filterwarnings("ignore")
def test_equal_to_the_cvxpy_that_is_installed():
    cvxpy = pytest.importorskip("cvxpy")
    _, matrices, observed = stored()
    completed, _ = complete(matrices[:3], observed[:3])
    for ours, x, seen in zip(completed, matrices[:3].double(), observed[:3].double(), strict=True):
        z = cvxpy.Variable(x.shape)
        given = cvxpy.multiply(seen.numpy(), z) == (seen * x).numpy()
        cvxpy.Problem(cvxpy.Minimize(cvxpy.normNuc(z)), [given]).solve(solver=cvxpy.CLARABEL)
        assert (ours - torch.from_numpy(z.value)).abs().max() < 1e-3


def test_a_matrix_alone_is_what_it_is_in_a_batch():
    _, matrices, observed = stored()
    together, _ = complete(matrices[:4], observed[:4])
    for index in range(4):
        alone, _ = complete(matrices[index : index + 1], observed[index : index + 1])
        torch.testing.assert_close(alone[0], together[index], atol=1e-9, rtol=0)


def test_edges():
    x = torch.ones(2, 2, 3)
    everything = torch.ones(2, 2, 3, dtype=torch.bool)
    torch.testing.assert_close(complete(x, everything)[0], x.double(), atol=1e-6, rtol=0)
    nothing, converged = complete(x, ~everything)
    assert converged.all()
    assert not nothing.any()
    # Given up before it came to its tolerance: said so.
    _, converged = complete(torch.rand(1, 4, 4), torch.eye(4, dtype=torch.bool)[None], max_iterations=1)
    assert not converged.any()
    with pytest.raises(ValueError, match="penalty: expected a number above 0"):
        complete(x, everything, 0.0)
    for mask in (everything[:1], everything.float()):
        with pytest.raises(ValueError, match="a bool mask of the matrices' shape"):
            complete(x, mask)
    with pytest.raises(ValueError, match=r"matrices \[batch, m, n\], got shape \[2, 3\]"):
        complete(x[0], everything[0])


def test_lowered_singular_values(generator):
    for shape in ((3, 4, 4), (3, 2, 5), (3, 5, 2)):
        a = torch.randn(shape, generator=generator, dtype=torch.float64)
        u, s, v = torch.linalg.svd(a, full_matrices=False)
        expected = u @ torch.diag_embed((s - 0.7).clamp(min=0)) @ v
        torch.testing.assert_close(lower_singular_values(a, 0.7), expected)
    assert not lower_singular_values(torch.zeros(1, 2, 2).double(), 0.5).isnan().any()
