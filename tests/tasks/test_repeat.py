"""Repeat: blocks, Ω, and the pairs that are compared."""

from __future__ import annotations

import pytest

from mechplateau.errors import ConfigError
from mechplateau.tasks import Repeat


@pytest.mark.parametrize(("n", "blocks", "p"), [(16, 1, 17), (16, 2, 17), (16, 4, 17), (6, 3, 5), (2, 2, 3)])
def test_sequences_are_those_of_the_definition(n, blocks, p):
    tokens = Repeat(n=n, blocks=blocks, p=p).sample(200, seed=0)
    for row in tokens.tolist():
        x, y = row[:n], row[n + 1 :]
        assert row[n] == p
        assert all(1 <= token < p for token in x)
        expected = []
        for j in range(blocks):
            expected += [(x[0] + j) % p] * (n // blocks)
        assert y == expected


def test_omega_is_the_first_input():
    task = Repeat(n=2, blocks=2)
    (target,) = task.attention_targets(task.sample(1, seed=0))
    assert target.mask.int().tolist() == [[[1, 0, 0, 0], [1, 0, 0, 0]]]


def test_pairs_stay_within_blocks_and_leave_the_first_output_out():
    pairs = Repeat(n=6, blocks=2).collapse_pairs[""]
    assert pairs.nonzero().tolist() == [[2, 1], [5, 4]]
    assert Repeat(n=4, blocks=1).collapse_pairs[""].nonzero().tolist() == [[2, 1], [3, 1], [3, 2]]
    assert Repeat(n=4, blocks=4).collapse_pairs[""].sum() == 0


def test_parts_measured():
    assert Repeat().output_parts == {"half": 2, "quarter": 4}
    assert Repeat(n=6).output_parts == {"half": 2}
    assert Repeat(n=5).output_parts == {}


def test_wrong_values_name_the_field():
    with pytest.raises(ConfigError) as caught:
        Repeat.parse({"blocks": 3})
    assert str(caught.value) == "blocks: expected a divisor of n = 16, got 3"
