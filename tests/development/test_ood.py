"""Regression on inputs and tasks of another size."""

import pytest
import torch
from torch import nn

from mechplateau.development.ood import out_of_distribution, scaled
from mechplateau.errors import UserError
from mechplateau.tasks.in_context_regression import InContextRegression


class Constant(nn.Module):
    def __init__(self, value: float):
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value))

    def forward(self, inputs):
        return self.value.expand(inputs.shape[0], inputs.shape[1] // 2)


def test_a_model_that_answers_0_is_as_far_off_as_y_is_large():
    values = out_of_distribution(Constant(0.0), InContextRegression(), factors=(3, 100), contexts=4000)
    for what in ("inputs", "tasks"):
        assert values[f"ood_{what}_x3"] == pytest.approx(4 * 9 + 0.125, rel=0.05)
        assert values[f"ood_{what}_x3_per_g2"] == values[f"ood_{what}_x3"] / 9
        assert values[f"ood_{what}_x100_per_y2"] == pytest.approx(1.0)


def test_only_what_is_named_grows_and_the_noise_stays():
    batch = InContextRegression(d=2, n_pairs=3).batch(5, seed=0)
    noise = batch.targets - (batch.x @ batch.w[..., None])[..., 0]
    for what in ("inputs", "tasks"):
        changed = scaled(batch, what, 10.0)
        assert torch.equal(changed.x, batch.x * (10 if what == "inputs" else 1))
        left = changed.targets - (changed.x @ changed.w[..., None])[..., 0]
        torch.testing.assert_close(left, noise, atol=1e-4, rtol=1e-4)
    with pytest.raises(UserError, match="above 0"):
        out_of_distribution(Constant(0.0), InContextRegression(), factors=(0,))
