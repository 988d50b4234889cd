"""Matrix completion: the sampler's statistics, tokens, and wrong settings in one line."""

from __future__ import annotations

import pytest
import torch

from mechplateau.errors import ConfigError
from mechplateau.objectives import SquaredError
from mechplateau.tasks.matrix_completion import MatrixCompletion, MatrixCompletionGPT

TINY = MatrixCompletion(m=4, n=4, rank=1, factors="signed_grid", q=4, value_max=1)
SMALL = MatrixCompletion(m=4, n=4, rank=1, q=10, value_max=1)


def test_the_papers_numbers():
    task = MatrixCompletion()
    assert (task.vocab_size, task.n_cells) == (2002, 49)
    assert (TINY.vocab_size, SMALL.vocab_size) == (10, 22)
    batch = task.batch(40_000, seed=0)
    assert float(batch.targets.square().mean()) == pytest.approx(2 / 9, rel=0.02)
    assert task.second_moment == pytest.approx(2 / 9)
    assert float(batch.masked.float().mean()) == pytest.approx(0.3, abs=0.002)
    # Cells are masked one by one: their number varies as a binomial one does.
    count = batch.masked.sum(dim=1).float()
    assert float(count.var()) == pytest.approx(49 * 0.3 * 0.7, rel=0.05)
    assert task.grid.token(0.44) == 1045


@pytest.mark.parametrize(
    ("task", "moment"),
    [
        (TINY, 0.390625),
        (SMALL, 1 / 9),
        (MatrixCompletion(m=3, n=5, factors="gaussian", scale=0.5), 2 * 0.5**4),
        (MatrixCompletion(m=5, n=3, factors="laplace", scale=0.25), 2 * 4 * 0.25**4),
    ],
)
def test_matrices_are_low_rank_and_tokens_say_their_values(task, moment):
    batch = task.batch(20_000, seed=1)
    assert task.second_moment == pytest.approx(moment)
    assert float(batch.targets.square().mean()) == pytest.approx(moment, rel=0.05)
    assert batch.inputs.dtype == torch.int64
    assert batch.targets.dtype == torch.float32
    assert batch.observed.dtype == torch.bool
    values = task.token_values[batch.inputs]
    assert torch.equal(values[batch.observed], batch.targets[batch.observed])
    assert torch.equal(batch.inputs == 0, batch.masked)
    singular = torch.linalg.svdvals(batch.targets.view(-1, task.m, task.n)[:500].double())
    rounding = (task.m * task.n) ** 0.5 / (2 * task.grid.q)
    assert (singular[:, task.rank :] < rounding).all()


def test_rounded_values_are_input_and_target():
    batch = TINY.batch(2000, seed=2)
    # Products of ±1/2 and ±1: exact on the grid, and never 0.
    assert set(batch.targets.abs().unique().tolist()) == {0.25, 0.5, 1.0}


def test_rows_first():
    """Cell p is in row p // n: within a row, entries of rank 1 differ by the columns' factors only."""
    task = MatrixCompletion(m=2, n=3, rank=1, decimals=4)
    x = task.batch(50, seed=0).targets.view(50, 2, 3)
    torch.testing.assert_close(x[:, 0, 0] * x[:, 1, 2], x[:, 0, 2] * x[:, 1, 0], atol=3e-4, rtol=0)


def test_a_seed_makes_the_same_data():
    one, same, other = (TINY.batch(8, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.inputs, same.inputs)
    assert not torch.equal(one.inputs, other.inputs)


def test_another_token_in_masked_cells():
    batch = TINY.batch(8, seed=0)
    token = TINY.grid.token(0.5)
    changed = batch.with_masked_as(token)
    assert (changed.inputs[batch.masked] == token).all()
    assert torch.equal(changed.inputs[batch.observed], batch.inputs[batch.observed])


def test_a_mixture_has_every_size():
    task = MatrixCompletion(m=9, n=9, rank=1, mixture=(5, 7, 9))
    sizes = [task.batch(2, seed=seed).inputs.shape[1] for seed in range(60)]
    assert {sizes.count(25) > 8, sizes.count(49) > 8, sizes.count(81) > 8} == {True}
    assert set(sizes) == {25, 49, 81}
    assert task.size_of(25) == (5, 5)


def test_the_loss():
    assert TINY.objective == SquaredError("all")
    task = TINY.with_(loss_on="masked")
    batch = task.batch(50, seed=0)
    out = torch.zeros(50, 16)
    assert float(task.objective.loss(out, batch)) == pytest.approx(
        float(batch.targets[batch.masked].square().mean())
    )
    assert TINY.trivial_loss == 0.390625


def test_the_gpt_variant():
    task = MatrixCompletionGPT()
    assert (task.vocab_size, task.separator, task.n_ctx, task.n_input) == (405, 404, 99, 98)
    assert task.token_labels[245] == "0.44"
    assert (len(task.token_labels), task.token_labels[404]) == (405, "SEP")
    tokens = task.sample(200, seed=0)
    given, right = tokens[:, :49], tokens[:, 50:]
    assert (tokens[:, 49] == 404).all()
    assert ((right >= 1) & (right <= 401)).all()
    assert (given[given != 0] == right[given != 0]).all()
    assert 0.25 < float((given == 0).float().mean()) < 0.35


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rank": 8}, r"rank: expected at most min\(m, n\) = 7, got 8"),
        ({"p_mask": 0.0}, "p_mask: input should be greater than 0, got 0.0"),
        ({"p_mask": 1}, "p_mask: input should be less than 1, got 1"),
        ({"value_max": 1}, "value_max: expected at least 2, the largest value of rank 2, got 1"),
        ({"scale": 0.5}, "scale: only gaussian and laplace factors have one"),
        ({"k": 3}, "k: only signed_grid factors have one"),
        (
            {"decimals": 4, "value_max": 10_000},
            "value_max: expected at most 1,000,000 values that have a token",
        ),
        ({"mixture": [7]}, "mixture: expected at least two different sizes of 1 or more"),
        ({"mixture": [5, 9]}, "m: expected m and n to be the largest size of the mixture, 9, got 7 and 7"),
        ({"mixture": [5, 7], "rank": 6}, "rank: expected at most the smallest size of the mixture, 5"),
    ],
)
def test_wrong_settings_in_one_line(wrong, message):
    with pytest.raises(ConfigError, match=message) as caught:
        MatrixCompletion.parse(wrong)
    assert "\n" not in str(caught.value)


def test_a_value_off_the_range_is_an_error():
    task = MatrixCompletion(factors="gaussian", scale=2.0)
    with pytest.raises(
        ConfigError, match=r"task\.value_max: expected values from -10 to 10, and a cell of \d"
    ):
        task.batch(1000, seed=0)
