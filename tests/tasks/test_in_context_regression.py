"""Regression in context: the layout of tokens, the data's moments, and a finite number of tasks."""

import pytest
import torch

from mechplateau.errors import ConfigError
from mechplateau.metrics.regression import squared_errors
from mechplateau.tasks.in_context_regression import InContextRegression, context_of


def test_a_context_is_x_and_y_in_turn():
    x = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    batch = context_of(torch.zeros(1, 2), x, torch.tensor([[5.0, 6.0]]))
    assert batch.inputs.tolist() == [[[0, 1, 2], [5, 0, 0], [0, 3, 4], [6, 0, 0]]]
    assert torch.equal(batch.x, x)
    assert batch.targets.tolist() == [[5.0, 6.0]]


def test_the_data_have_the_moments_of_their_definition(generator):
    task = InContextRegression()
    batch = task.batch(40_000, generator)
    assert batch.inputs.shape == (40_000, task.n_ctx, task.d_token)
    clean = (batch.x @ batch.w[..., None])[..., 0]
    assert float((batch.targets - clean).var()) == pytest.approx(0.125, rel=0.02)
    assert float(batch.targets.square().mean()) == pytest.approx(task.trivial_loss, rel=0.02)
    assert task.trivial_loss == 4.125
    zero = task.objective.loss(torch.zeros_like(batch.targets), batch)
    assert float(zero) == pytest.approx(float(batch.targets.square().mean()))


def test_the_same_seed_gives_the_same_contexts_and_the_next_call_others():
    task = InContextRegression(d=2, n_pairs=3)
    assert torch.equal(task.batch(4, seed=1).inputs, task.batch(4, seed=1).inputs)
    assert not torch.equal(task.batch(4).inputs, task.batch(4).inputs)
    moved = task.batch(4, seed=1).to("cpu")
    assert moved.w.shape == (4, 2)


def test_without_noise_ridge_is_exact_once_there_are_d_pairs(generator):
    task = InContextRegression(noise=0.0)
    batch = task.batch(64, generator)
    errors = squared_errors(task.ridge(batch), batch.targets)
    assert errors[4:].max() < 1e-4 < errors[:4].min()
    assert task.finite_prior(batch) is None


def test_a_finite_number_of_tasks_is_drawn_once(generator):
    task = InContextRegression(n_tasks=4)
    batch = task.batch(200, generator)
    assert torch.equal(batch.w.unique(dim=0), task.tasks().unique(dim=0))
    assert torch.equal(task.tasks(), InContextRegression(n_tasks=4).tasks())
    assert task.trivial_loss == pytest.approx(float(task.tasks().square().sum(1).mean()) + 0.125)
    known, ridge = (
        squared_errors(p, batch.targets).mean() for p in (task.finite_prior(batch), task.ridge(batch))
    )
    assert known < 0.7 * ridge
    assert InContextRegression().finite_prior(batch) is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"d": 0}, "d: "),
        ({"n_pairs": 0}, "n_pairs: "),
        ({"noise": -0.1}, "noise: "),
        ({"n_tasks": 0}, "n_tasks: "),
    ],
)
def test_wrong_sizes_are_said_in_a_line(wrong, said):
    with pytest.raises(ConfigError) as error:
        InContextRegression.parse(wrong)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
