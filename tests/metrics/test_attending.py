"""Where heads look, on patterns written out by hand."""

import math

import pytest
import torch

from mechplateau.metrics import attending


def uniform(batch: int = 2, heads: int = 1, n: int = 4) -> torch.Tensor:
    rows = torch.tril(torch.ones(n, n))
    return (rows / rows.sum(1, keepdim=True)).expand(batch, heads, n, n)


def previous(n: int = 4) -> torch.Tensor:
    pattern = torch.zeros(2, 1, n, n)
    pattern[:, :, 0, 0] = 1
    pattern[:, :, torch.arange(1, n), torch.arange(n - 1)] = 1
    return pattern


def test_entropy_is_1_for_uniform_and_0_for_one_key_and_at_position_0():
    assert attending.attention_entropy(uniform(), [1, 3]).tolist() == pytest.approx([1.0])
    assert attending.attention_entropy(previous(), [1, 3]).tolist() == [0.0]
    assert attending.attention_entropy(uniform(), [0, 1]).tolist() == pytest.approx([0.5])
    half = torch.zeros(1, 1, 4, 4)
    half[0, 0, 3, :2] = 0.5  # one bit of the two that four keys allow
    assert attending.attention_entropy(half, [3]).tolist() == pytest.approx([0.5])


def test_variability_is_0_for_the_same_pattern_and_half_for_two_disjoint_ones():
    assert attending.attention_variability(uniform(), [1, 2, 3]).tolist() == [0.0]
    two = torch.zeros(2, 1, 2, 2)
    two[0, 0, 1, 0] = two[1, 0, 1, 1] = 1
    assert attending.attention_variability(two, [1]).tolist() == [0.5]


def test_offsets_and_masses():
    profile = attending.offset_profile(previous(), [1, 2, 3], 3)
    assert profile.tolist() == [[0.0, 1.0, 0.0]]
    # Offset 2 exists for queries 2 and 3 only.
    assert attending.offset_profile(uniform(), [1, 2, 3], 3)[0, 2].item() == pytest.approx(
        (1 / 3 + 1 / 4) / 2
    )
    assert math.isnan(attending.offset_profile(uniform(), [0], 2)[0, 1])
    even = torch.tensor([True, False, True, False])
    assert attending.mass_on(uniform(), [2, 3], even).tolist() == pytest.approx([(2 / 3 + 1 / 2) / 2])


def test_planted_heads_score_1_and_uniform_ones_1_over_length():
    assert attending.previous_token_score(previous()[:, :, -1]).tolist() == [1.0]
    assert attending.previous_token_score(uniform()[:, :, -1]).tolist() == [0.25]
    rows = torch.zeros(2, 1, 6)
    rows[0, 0, 2] = rows[1, 0, 4] = 1
    target = torch.tensor([2, 4])
    assert attending.prefix_matching_score(rows, target).tolist() == [1.0]
    assert attending.prefix_matching_score(rows, target - 1).tolist() == [0.0]
    assert attending.prefix_matching_score(uniform(n=6)[:, :, -1], target).tolist() == pytest.approx([1 / 6])


def test_what_does_not_fit_is_said_in_a_line():
    with pytest.raises(ValueError, match="from 0 to 3"):
        attending.attention_entropy(uniform(), [4])
    with pytest.raises(ValueError, match="at least 2 keys"):
        attending.previous_token_score(torch.ones(1, 1, 1))
    with pytest.raises(ValueError, match="a key for each sequence"):
        attending.prefix_matching_score(torch.ones(2, 1, 3), torch.zeros(3, dtype=torch.int64))
