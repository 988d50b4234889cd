"""Prefix sum against a slow, obviously right version."""

from __future__ import annotations

import pytest

from mechplateau.errors import ConfigError
from mechplateau.tasks import PrefixSum


@pytest.mark.parametrize(("n", "p", "max_num"), [(16, 17, 16), (5, 7, 3), (1, 5, 4)])
def test_sequences_are_those_of_the_definition(n, p, max_num):
    tokens = PrefixSum(n=n, p=p, max_num=max_num).sample(200, seed=0)
    assert tokens.shape == (200, 2 * n + 1)
    for row in tokens.tolist():
        x = row[:n]
        assert row[n] == p
        assert all(1 <= token <= max_num for token in x)
        total, sums = 0, []
        for token in x:
            total += token
            sums.append(total % p)
        assert row[n + 1 :] == sums


def test_without_repeats_inputs_are_a_permutation():
    for row in PrefixSum(no_repeat=True).sample(50, seed=0).tolist():
        assert sorted(row[:16]) == list(range(1, 17))
    for row in PrefixSum(n=4, no_repeat=True).sample(50, seed=0).tolist():
        assert len(set(row[:4])) == 4


def test_omega_is_the_input_and_the_last_output():
    task = PrefixSum(n=3, p=7, max_num=6)
    (target,) = task.attention_targets(task.sample(1, seed=0))
    assert target.rows == (3, 4, 5)
    # Row 3 + r sees its input r, and itself: output r − 1 stands at position 3 + r.
    assert target.mask.int().tolist() == [[[1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 1, 0], [0, 0, 1, 0, 0, 1]]]
    tokens = task.sample(20, seed=0)
    for row in tokens.tolist():
        for r in (1, 2):
            assert row[3 + 1 + r] == (row[r] + row[3 + r]) % 7


def test_sizes_and_structure():
    task = PrefixSum()
    assert (task.vocab_size, task.prompt_length, task.n_outputs, task.n_ctx) == (18, 17, 16, 33)
    assert task.partial_outputs == (0,)
    pairs = PrefixSum(n=3).collapse_pairs[""]
    assert pairs.int().tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"p": 16}, "p: expected a modulus above the largest input token (max_num = 16), got 16"),
        (
            {"no_repeat": True, "n": 17},
            "max_num: expected at least n = 17 different numbers with no_repeat, got 16",
        ),
        ({"n": 0}, "n: input should be greater than or equal to 1, got 0"),
    ],
)
def test_wrong_values_name_the_field(values, message):
    with pytest.raises(ConfigError) as caught:
        PrefixSum.parse(values)
    assert str(caught.value) == message
