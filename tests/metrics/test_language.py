"""Measures of a language model on chains and losses written out by hand."""

import math

import pytest
import torch

from mechplateau.metrics import language

CHAIN = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5], [0.25, 0.75, 0.0]])


def test_the_floor_of_a_markov_chain_is_its_entropy():
    tokens = torch.tensor([0, 1, 2])
    entropy = (0 + math.log(2) - 0.25 * math.log(0.25) - 0.75 * math.log(0.75)) / 3
    assert float(language.bigram_floor(CHAIN, tokens)) == pytest.approx(entropy)
    exact = CHAIN[tokens].clamp(min=1e-30).log()
    assert float(language.bigram_score(exact, CHAIN, tokens)) == pytest.approx(entropy, abs=1e-6)
    uniform = language.bigram_score(torch.zeros(3, 3), CHAIN, tokens)
    assert float(uniform) == pytest.approx(math.log(3))


def test_bigrams_are_counted_and_a_token_without_successor_is_left_out():
    table = language.bigram_table(torch.tensor([0, 1, 0, 1, 2]), 4)
    assert table.tolist() == [[0, 1, 0, 0], [0.5, 0, 0.5, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    floor = language.bigram_floor(table, torch.tensor([1, 3]))
    assert float(floor) == pytest.approx(math.log(2))
    assert language.bigram_floor(table, torch.tensor([3])).isnan()


def test_scores_of_losses_along_the_context():
    losses = torch.arange(20.0)
    assert float(language.in_context_score(losses)) == pytest.approx((16 + 17 + 18 + 19) / 4 - (1 + 2) / 2)
    assert language.in_context_score(torch.zeros(3)) is None
    halves = torch.cat([torch.full((2, 10), 5.0), torch.full((2, 10), 1.0)], dim=1)
    halves[:, 8:10] = 7.0
    assert float(language.repeat_gain(halves, 10)) == 6.0
    assert language.repeat_gain(halves, 8) is None


def test_brownian_positions_have_the_known_first_share(generator):
    steps = torch.randn(200, 2000, generator=generator)
    shares = language.position_shares(steps.cumsum(0))
    assert float(shares[0]) == pytest.approx(language.BROWNIAN_SHARE, abs=0.03)
    line = torch.outer(torch.arange(5.0), torch.ones(3))
    assert float(language.position_shares(line)[0]) == pytest.approx(1.0)
