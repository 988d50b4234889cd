"""Copy and reverse."""

from __future__ import annotations

import pytest

from mechplateau.errors import ConfigError
from mechplateau.tasks import Copy, Reverse, task_class


@pytest.mark.parametrize(("n", "max_num"), [(16, 16), (5, 3), (1, 1)])
@pytest.mark.parametrize("cls", [Copy, Reverse])
def test_sequences_are_those_of_the_definition(cls, n, max_num):
    tokens = cls(n=n, max_num=max_num).sample(100, seed=0)
    for row in tokens.tolist():
        x, y = row[:n], row[n + 1 :]
        assert row[n] == 0
        assert all(1 <= token <= max_num for token in x)
        assert y == (x if cls is Copy else x[::-1])


def test_omega_is_where_the_answer_stands():
    for cls, sources in ((Copy, [0, 1, 2]), (Reverse, [2, 1, 0])):
        task = cls(n=3)
        (target,) = task.attention_targets(task.sample(1, seed=0))
        assert target.rows == (3, 4, 5)
        assert [row.nonzero().item() for row in target.mask[0]] == sources


def test_structure():
    assert (Copy().vocab_size, Copy().n_ctx, Copy().default_training["steps"]) == (17, 33, 100)
    assert Copy(n=4).collapse_pairs[""].sum() == 6
    assert Copy().partial_outputs is None
    assert task_class("reverse") is Reverse


def test_wrong_values_name_the_field():
    with pytest.raises(ConfigError, match="max_num: input should be greater than or equal to 1, got 0"):
        Copy.parse({"max_num": 0})
