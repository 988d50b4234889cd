"""Low-rank matrices as tokens: moments, tokens, neighbors and what is determined."""

from __future__ import annotations

import itertools

import pytest
import torch

from mechplateau.errors import ConfigError, UserError
from mechplateau.tasks.matrices import (
    Grid,
    factor,
    factor_square,
    identifiable,
    neighbors,
    require_sizes,
    same_column,
    same_row,
)

CPU = torch.device("cpu")


def test_tokens_of_the_paper():
    grid = Grid(q=100, value_max=10)
    assert grid.n_values == 2001
    assert (grid.token(0.44), grid.token(-0.24), grid.token(0), grid.token(-10)) == (1045, 977, 1001, 1)
    values = grid.values()
    assert values.shape == (2002,)
    assert values[0] == 0
    assert values[1045] == torch.tensor(0.44)
    assert Grid(q=100, value_max=2).token(0.44) == 245
    with pytest.raises(UserError, match=r"expected one from -10 to 10, got 10\.1"):
        grid.token(10.1)


def test_rounding_and_values_off_the_range():
    grid = Grid(q=10, value_max=1)
    tokens, values = grid.rounded(torch.tensor([[0.26, -1.0, 0.949, -0.04]]), check=True)
    assert tokens.tolist() == [[14, 1, 20, 11]]
    assert torch.equal(values, torch.tensor([[0.3, -1.0, 0.9, 0.0]]))
    with pytest.raises(
        ConfigError, match=r"task\.value_max: expected values from -1 to 1, and a cell of 1\.2"
    ):
        grid.rounded(torch.tensor([[0.1, -1.2]]), check=True)


@pytest.mark.parametrize(
    ("kind", "k"), [("uniform", 2), ("gaussian", 2), ("laplace", 2), ("signed_grid", 2), ("signed_grid", 3)]
)
def test_moments_of_the_factors(kind, k):
    drawn = factor(kind, (200_000,), 0.5, k, torch.Generator().manual_seed(0), CPU)
    assert abs(float(drawn.mean())) < 0.01
    assert float(drawn.square().mean()) == pytest.approx(factor_square(kind, 0.5, k), rel=0.02)
    assert torch.isfinite(drawn).all()


def test_the_shapes_of_the_factors():
    generator = torch.Generator().manual_seed(0)
    grid = factor("signed_grid", (100_000,), 1.0, 3, generator, CPU) * 3
    values, counts = grid.round().unique(return_counts=True)
    assert values.tolist() == [-3, -2, -1, 1, 2, 3]
    assert torch.allclose(grid, grid.round(), atol=1e-6)
    assert (counts - 100_000 / 6).abs().max() < 5 * (100_000 / 6) ** 0.5
    # Kurtosis tells a uniform (1.8), a normal (3) and a Laplace (6) distribution apart.
    for kind, kurtosis in (("uniform", 1.8), ("gaussian", 3.0), ("laplace", 6.0)):
        drawn = factor(kind, (400_000,), 1.0, 2, generator, CPU)
        found = drawn.pow(4).mean() / drawn.square().mean() ** 2
        assert float(found) == pytest.approx(kurtosis, rel=0.06)


def test_rows_columns_and_neighbors():
    m, n = 2, 3
    row, column = same_row(m, n), same_column(m, n)
    observed = torch.tensor([[True, False, True, True, True, False]])
    omega = neighbors(observed, m, n)[0]
    for query, key in itertools.product(range(6), range(6)):
        (i, j), (a, b) = divmod(query, n), divmod(key, n)
        assert row[query, key] == (i == a and query != key)
        assert column[query, key] == (j == b and query != key)
        expected = bool(observed[0, key]) and query != key and (i == a or j == b)
        assert bool(omega[query, key]) == expected


def connected(matrix: list[list[float]], seen: list[list[bool]], i: int, j: int) -> bool:
    """Whether a path of observed non-zero entries joins row i and column j, by search."""
    rows, columns = {i}, set()
    while True:
        grown = {b for a in rows for b in range(len(matrix[0])) if seen[a][b] and matrix[a][b] != 0}
        back = {a for b in grown for a in range(len(matrix)) if seen[a][b] and matrix[a][b] != 0}
        if grown == columns and back <= rows:
            return j in columns
        rows, columns = rows | back, grown


@pytest.mark.parametrize(("m", "n"), [(4, 4), (3, 6), (1, 3)])
def test_identifiable_cells(m, n):
    generator = torch.Generator().manual_seed(2)
    x = torch.randint(-1, 2, (60, m, 1), generator=generator) * torch.randint(
        -1, 2, (60, 1, n), generator=generator
    )
    observed = torch.rand(60, m * n, generator=generator) > 0.6
    found = identifiable(x.flatten(1).float(), observed, m, n).view(60, m, n)
    assert found.any()
    assert not found.all()
    for b in range(60):
        for i, j in itertools.product(range(m), range(n)):
            assert bool(found[b, i, j]) == connected(x[b].tolist(), observed[b].view(m, n).tolist(), i, j)


def test_a_long_path_identifies():
    """A staircase of observed cells joins the first row to the last column."""
    n = 9
    observed = torch.zeros(n, n, dtype=torch.bool)
    for i in range(n):
        observed[i, i] = True
        if i + 1 < n:
            observed[i, i + 1] = True
    x = torch.ones(1, n * n)
    assert identifiable(x, observed.view(1, -1), n, n).all()
    x[0, 4 * n + 4] = 0  # a zero breaks it
    assert not identifiable(x, observed.view(1, -1), n, n)[0, n - 1]


def test_sizes_that_are_mixed():
    assert require_sizes([5, 7], "mixture") == (5, 7)
    for wrong in ([5], [5, 5], [], [0, 2]):
        with pytest.raises(ValueError, match="mixture: expected at least two different sizes"):
            require_sizes(wrong, "mixture")
