"""Permutation against following it by hand."""

from __future__ import annotations

import pytest
import torch

from mechplateau.config import RunConfig
from mechplateau.errors import ConfigError
from mechplateau.tasks import Permutation


def followed(permutation: list[int], start: int, times: int) -> int:
    for _ in range(times):
        start = permutation[start]
    return start


@pytest.mark.parametrize("compose", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [16, 5, 1])
def test_sequences_are_those_of_the_definition(n, compose):
    tokens = Permutation(n=n, compose=compose).sample(100, seed=0)
    assert tokens.shape == (100, 3 * n + 2)
    for row in tokens.tolist():
        x, pi, y = row[:n], [entry - 1 for entry in row[n + 1 : 2 * n + 1]], row[2 * n + 2 :]
        assert (row[n], row[2 * n + 1]) == (0, 0)
        assert all(n + 1 <= token <= 2 * n for token in x)
        assert sorted(pi) == list(range(n))
        assert y == [x[followed(pi, i, compose)] for i in range(n)]


def test_permutations_are_uniform():
    tokens = Permutation(n=3).sample(6000, seed=0)
    codes = (tokens[:, 4:7] * torch.tensor([100, 10, 1])).sum(1)
    _, counts = codes.unique(return_counts=True)
    assert len(counts) == 6
    assert (counts - 1000).abs().max() < 5 * 1000**0.5


def test_inputs_are_independent_and_uniform():
    x = Permutation().sample(5000, seed=0)[:, :16].flatten()
    counts = torch.bincount(x - 17, minlength=16)
    assert (counts - 5000).abs().max() < 5 * 5000**0.5


@pytest.mark.parametrize("compose", [1, 3])
def test_both_strategies_are_tracked(compose):
    task = Permutation(n=4, compose=compose)
    tokens = task.sample(3, seed=0)
    targets = {target.name: target for target in task.attention_targets(tokens)}
    assert {name: target.layer for name, target in targets.items()} == {
        "fetch": 1,
        "read": 0,
        "gather": 0,
        "collect": 1,
    }
    for b, row in enumerate(tokens.tolist()):
        pi = [entry - 1 for entry in row[5:9]]
        for r in range(4):
            assert targets["read"].mask[0, r].nonzero().flatten().tolist() == [5 + r]
            assert targets["fetch"].mask[b, r].nonzero().flatten().tolist() == [followed(pi, r, compose)]
            assert targets["gather"].mask[b, r].nonzero().flatten().tolist() == [pi[r]]
            assert targets["collect"].mask[0, r].nonzero().flatten().tolist() == [5 + r]
            # What the first strategy fetches is the answer.
            assert row[followed(pi, r, compose)] == row[10 + r]
    assert targets["read"].rows == task.output_rows == (9, 10, 11, 12)
    assert targets["gather"].rows == (5, 6, 7, 8)


def test_attention_can_look_at_every_source():
    task = Permutation(n=5)
    for target in task.attention_targets(task.sample(20, seed=0)):
        for row, sources in zip(target.rows, target.mask.any(0), strict=True):
            assert sources.nonzero().max() <= row


def test_the_papers_set_up():
    config = RunConfig.for_task("permutation")
    assert (config.model.n_layers, config.training.steps) == (2, 2000)
    assert (config.task.vocab_size, config.task.n_ctx) == (33, 50)
    assert config.task.counts_values


@pytest.mark.parametrize("compose", [0, 5])
def test_wrong_values_name_the_field(compose):
    with pytest.raises(ConfigError, match="compose: input should be"):
        Permutation.parse({"compose": compose})


def test_one_layer_is_refused():
    with pytest.raises(ConfigError, match=r"model\.n_layers: expected more than 1"):
        RunConfig.for_task("permutation", model={"n_layers": 1})
