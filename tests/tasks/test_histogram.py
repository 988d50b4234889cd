"""Histogram against counting by hand."""

from __future__ import annotations

import pytest

from mechplateau.config import RunConfig
from mechplateau.errors import ConfigError
from mechplateau.tasks import Histogram


@pytest.mark.parametrize(("n", "alphabet"), [(16, 12), (3, 9), (7, 1), (1, 4)])
def test_sequences_are_those_of_the_definition(n, alphabet):
    task = Histogram(n=n, alphabet=alphabet)
    tokens = task.sample(200, seed=0)
    assert tokens.shape == (200, 2 * n + 1)
    assert int(tokens.max()) < task.vocab_size
    for row in tokens.tolist():
        x = row[:n]
        assert row[n] == 0
        assert all(1 <= token <= alphabet for token in x)
        assert row[n + 1 :] == [x.count(token) for token in x]


def test_structure():
    task = Histogram(n=3, alphabet=2)
    (target,) = task.attention_targets(task.sample(1, seed=0))
    assert (target.layer, target.rows) == (0, (3, 4, 5))
    assert target.mask.int().tolist() == [[[1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0]]]
    assert task.collapse_pairs[""].sum() == 3
    assert task.partial_outputs is None
    assert (Histogram().vocab_size, Histogram(n=4).vocab_size) == (17, 13)


def test_the_papers_set_up():
    config = RunConfig.for_task("histogram")
    assert (config.model.n_layers, config.training.steps, config.training.clip_norm) == (2, 5000, 1.0)


def test_wrong_values_name_the_field():
    with pytest.raises(ConfigError, match="alphabet: input should be greater than or equal to 1, got 0"):
        Histogram.parse({"alphabet": 0})
