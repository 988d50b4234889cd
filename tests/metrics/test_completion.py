"""Losses, spread, COS and attention over cells, on numbers written out by hand and against slow loops."""

from __future__ import annotations

import math

import pytest
import torch

from mechplateau.metrics.cells import (
    attention_masses,
    fixedness,
    head_class,
    mean_pattern,
    partners,
)
from mechplateau.metrics.completion import (
    cosine_among,
    cosine_of_equals,
    masked_value,
    spread,
    squared_errors,
)
from mechplateau.tasks.matrices import same_column, same_row

OBSERVED = torch.tensor([[True, True, False, False], [True, False, True, True]])
TARGETS = torch.tensor([[1.0, 2.0, 3.0, 1.0], [0.0, 2.0, 1.0, 1.0]])
GIVEN = torch.tensor([[1.0, 1.0, 1.0, -1.0], [0.0, 1.0, 1.0, 3.0]])
# Errors squared: 0 1 | 4 4; 0 | 1 | 0 4. Masked: 4 4 1; observed: 0 1 0 0 4.


def test_losses_by_hand():
    everything, observed, masked = squared_errors(GIVEN, TARGETS, OBSERVED)
    assert (float(everything), float(observed), float(masked)) == (14 / 8, 1.0, 3.0)
    q = 3 / 8
    assert float(everything) == (1 - q) * float(observed) + q * float(masked)
    assert float(masked_value(GIVEN, OBSERVED)) == 1.0
    assert float(spread(GIVEN, TARGETS, OBSERVED)) == pytest.approx(3 / 14)


def test_without_masked_or_observed_cells_it_is_undefined():
    everything = torch.ones(2, 4, dtype=torch.bool)
    for seen, which in ((everything, 2), (~everything, 1)):
        losses = squared_errors(GIVEN, TARGETS, seen)
        assert losses[which].isnan()
        assert not losses[0].isnan()
        assert not losses[3 - which].isnan()
    assert masked_value(GIVEN, everything).isnan()
    assert spread(GIVEN, TARGETS, everything).isnan()
    assert spread(GIVEN, torch.zeros(2, 4), OBSERVED).isnan()
    with pytest.raises(ValueError, match="at least one sequence"):
        squared_errors(GIVEN[:0], TARGETS[:0], OBSERVED[:0])


def test_cosine_among_by_hand():
    hidden = torch.tensor([[[1.0, 0], [0, 2], [3, 0], [1, 1]], [[1, 0], [1, 0], [0, 0], [9, 9]]])
    # First matrix, cells 0, 1, 2: cosines 0, 1, 0. Second, cells 0, 2: a zero vector.
    chosen = torch.tensor([[True, True, True, False], [True, False, True, False]])
    assert float(cosine_among(hidden, chosen)) == pytest.approx((1 / 3 + 0) / 2)
    # A matrix with a single cell does not count.
    chosen[1] = torch.tensor([True, False, False, False])
    assert float(cosine_among(hidden, chosen)) == pytest.approx(1 / 3)
    assert cosine_among(hidden, torch.zeros_like(chosen)).isnan()


def test_identical_hidden_states_have_cosine_one(generator):
    hidden = torch.randn(1, 1, 5, generator=generator).expand(2, 4, 5)
    assert float(cosine_among(hidden, ~OBSERVED)) == pytest.approx(1.0, abs=1e-6)
    assert float(cosine_among(-3 * hidden, OBSERVED)) == pytest.approx(1.0, abs=1e-6)


def masses_of(pattern, queries, observed, m, n):
    return attention_masses(pattern, queries, observed, same_row(m, n), same_column(m, n))


def test_attention_masses_against_a_loop(generator):
    m, n, batch, heads = 2, 3, 4, 2
    pattern = torch.rand(batch, heads, 6, 6, generator=generator).softmax(-1)
    observed = torch.rand(batch, 6, generator=generator) > 0.4
    for queries in (observed, ~observed):
        found = masses_of(pattern, queries, observed, m, n)
        total = {name: torch.zeros(heads) for name in found}
        count = 0
        for b in range(batch):
            for q in range(6):
                if not queries[b, q]:
                    continue
                count += 1
                i, j = divmod(q, n)
                for k in range(6):
                    a, c = divmod(k, n)
                    weight = pattern[b, :, q, k]
                    total["self"] += weight * (q == k)
                    total["row"] += weight * (q != k and i == a)
                    total["col"] += weight * (q != k and j == c)
                    total["obs"] += weight * bool(observed[b, k])
                    total["omega"] += weight * (bool(observed[b, k]) and q != k and (i == a or j == c))
                    total["entropy"] -= weight * weight.log()
        for name in found:
            torch.testing.assert_close(found[name], total[name] / count)
    assert masses_of(pattern, torch.zeros_like(observed), observed, m, n)["row"].isnan().all()


def test_planted_heads():
    size, cells = 7, 49
    uniform = torch.full((cells, cells), 1 / cells)
    row = same_row(size, size).float() / 6
    observed = torch.ones(3, cells, dtype=torch.bool)
    observed[:, ::3] = False
    pattern = torch.stack([row, uniform, torch.eye(cells)]).expand(3, -1, -1, -1)
    masses = masses_of(pattern, ~observed, observed, size, size)
    torch.testing.assert_close(masses["row"], torch.tensor([1.0, 6 / 49, 0.0]))
    torch.testing.assert_close(masses["col"], torch.tensor([0.0, 6 / 49, 0.0]))
    torch.testing.assert_close(masses["self"], torch.tensor([0.0, 1 / 49, 1.0]))
    torch.testing.assert_close(masses["entropy"], torch.tensor([math.log(6), math.log(49), 0.0]))
    fixed = fixedness(mean_pattern(pattern, torch.ones_like(observed)))
    assert float(fixed[1]) == pytest.approx(1.0, abs=1e-6)
    assert float(fixed[2]) == pytest.approx(1 / 49, abs=1e-6)
    # Half the distance of a row from the mean of all: 6 cells at 1/6 against 1/49, 43 at 0 against 1/49.
    assert float(fixed[0]) == pytest.approx(1 - 43 / 49, abs=1e-6)
    names = [
        head_class({name: float(masses[name][head]) for name in ("row", "col", "self")}, size, size)
        for head in range(3)
    ]
    assert names == ["row", "mixed", "self"]


def test_names_of_heads():
    assert head_class({"row": 0.3, "col": 0.3, "self": 0.1}, 4, 4) == "cross"
    assert head_class({"row": 0.1, "col": 0.6, "self": 0.3}, 4, 4) == "col"
    assert head_class({"row": 0.3, "col": 0.1, "self": 0.2}, 4, 4) == "mixed"
    assert head_class({"row": math.nan, "col": 0.1, "self": 0.2}, 4, 4) is None


def test_fixedness_leaves_queries_out_that_never_come():
    pattern = torch.eye(4).expand(2, 1, 4, 4)
    mean = mean_pattern(pattern, ~OBSERVED)  # query 0 is never masked
    assert mean[0, 0].isnan().all()
    assert torch.equal(mean[0, 1:], torch.eye(4)[1:])
    assert float(fixedness(mean)[0]) == pytest.approx(1 / 3)
    assert partners(mean).tolist() == [[-1, 1, 2, 3]]


def test_cosine_of_cells_that_hold_one_token(generator):
    hidden = torch.randn(3, 5, 4, generator=generator)
    tokens = torch.tensor([[1, 2, 1, 1, 2], [1, 2, 3, 4, 5], [7, 7, 7, 1, 1]])
    chosen = torch.tensor([[1, 1, 1, 0, 1], [1, 1, 1, 1, 1], [1, 0, 1, 1, 0]], dtype=torch.bool)

    def cosine(b, i, j):
        return float(torch.nn.functional.cosine_similarity(hidden[b, i], hidden[b, j], dim=0))

    # First matrix: cells 0 and 2, cells 1 and 4. Second: none. Third: cells 0 and 2.
    expected = ((cosine(0, 0, 2) + cosine(0, 1, 4)) / 2 + cosine(2, 0, 2)) / 2
    assert float(cosine_of_equals(hidden, tokens, chosen)) == pytest.approx(expected, abs=1e-6)
    assert cosine_of_equals(hidden[1:2], tokens[1:2], chosen[1:2]).isnan()
