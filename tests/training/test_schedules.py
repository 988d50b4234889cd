"""Learning-rate schedules and cadence, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mechplateau.config import CheckpointConfig, TrainingConfig
from mechplateau.errors import ConfigError
from mechplateau.runs.cadence import Cadence, checkpoint_steps
from mechplateau.training.optimizers import learning_rate

from .conftest import tiny


def test_warmup_begins_at_zero_and_ends_at_the_rate():
    config = TrainingConfig(steps=20, lr=1.0, schedule="warmup", warmup_steps=4)
    assert [learning_rate(config, step) for step in range(7)] == [0, 0.25, 0.5, 0.75, 1, 1, 1]


def test_cosine_falls_to_zero_after_the_warmup():
    config = TrainingConfig(steps=12, lr=2.0, schedule="warmup_cosine", warmup_steps=4)
    assert learning_rate(config, 0) == 0
    assert learning_rate(config, 4) == 2.0
    assert learning_rate(config, 8) == pytest.approx(1.0)  # half-way
    assert learning_rate(config, 10) == pytest.approx(1 - 2**-0.5)  # three quarters: (1 + cos(3π/4))
    assert learning_rate(config, 12) == pytest.approx(0, abs=1e-12)


def test_constant_is_constant():
    assert {learning_rate(TrainingConfig(lr=3e-4), step) for step in (0, 1, 399)} == {3e-4}


def test_checkpoints_are_a_twentieth_apart_and_include_both_ends():
    assert sorted(checkpoint_steps(CheckpointConfig(), 400)) == list(range(0, 401, 20))
    assert sorted(checkpoint_steps(CheckpointConfig(every=30), 100)) == [0, 30, 60, 90, 100]
    assert sorted(checkpoint_steps(CheckpointConfig(at=(7, 500)), 1)) == [0, 1]
    assert sorted(checkpoint_steps(CheckpointConfig(every=50, at=(7,)), 100)) == [0, 7, 50, 100]


def test_log_spaced_checkpoints_double():
    assert sorted(checkpoint_steps(CheckpointConfig(log_spaced=11), 1024)) == [0, *(2**i for i in range(11))]
    assert sorted(checkpoint_steps(CheckpointConfig(log_spaced=20), 3)) == [0, 1, 2, 3]


def test_checkpoints_are_the_union_of_what_is_given():
    def steps(total, **given):
        return sorted(checkpoint_steps(CheckpointConfig(**given), total))

    assert steps(16, every=6, log_spaced=5) == [0, 1, 2, 4, 6, 8, 12, 16]
    assert steps(10, linear_spaced=4) == [0, 3, 7, 10]
    assert steps(10, linear_spaced=4, rounding="down") == [0, 3, 6, 10]
    assert steps(1000, log_spaced=7, rounding="down") == [0, 1, 3, 10, 31, 100, 316, 1000]
    assert steps(1024, log_spaced=11, rounding="down") == [0, *(2**i for i in range(11))]
    assert steps(100, linear_spaced=2, at=(7, 12)) == [0, 7, 12, 100]


def test_the_checkpoints_of_in_context_regression():
    """Those of arXiv 2402.02364: int of numpy's logspace and linspace, of which 190 lie below the last step."""
    total = 500_000
    theirs = {int(step) for step in np.logspace(0, np.log10(total), 100)}
    theirs |= {int(step) for step in np.linspace(0, total, 100)}
    config = CheckpointConfig(log_spaced=100, linear_spaced=100, rounding="down")
    ours = checkpoint_steps(config, total)
    # 10**log10(500000) comes out a hair below where they cut it off, so that they keep the last step but one as well.
    assert theirs - {total - 1} == ours
    assert len(ours) == 190
    given = CheckpointConfig(linear_spaced=2, at=tuple(sorted(theirs)))
    assert checkpoint_steps(given, total) == theirs
    assert sum(step < total for step in theirs) == 190


def measured(total=11, checkpoints=None, **evaluation):
    config = tiny(training={"steps": total}, checkpoints=checkpoints or {"every": 4}, evaluation=evaluation)
    rows = Cadence(config).rows
    assert [step for step in range(total + 1) if step in rows] == rows.until(total)
    return rows.until(total)


def test_measured_steps():
    assert measured(every=5) == [0, 5, 10, 11]
    assert measured(every=5, log_spaced=2) == [0, 1, 5, 10, 11]
    assert measured(16, log_spaced=5) == [0, 1, 2, 4, 8, 16]
    assert measured(at="checkpoints") == [0, 4, 8, 11]
    assert measured(at="checkpoints", checkpoints={"every": None, "log_spaced": 3, "at": [7]}) == [
        0,
        1,
        3,
        7,
        11,
    ]
    assert measured(every=5, at="checkpoints") == [0, 4, 5, 8, 10, 11]
    assert measured() == list(range(12))


def test_every_step_and_more_is_refused():
    with pytest.raises(
        ConfigError, match=r"evaluation\.every: expected null or more than 1 beside at, got 1"
    ):
        tiny(evaluation={"every": 1, "at": "checkpoints"})
    assert tiny().with_(evaluation={"every": None, "at": "checkpoints"}).evaluation.every is None


@pytest.mark.parametrize(
    "given", [{}, {"pct_start": 0.5, "div_factor": 9.0, "final_div_factor": 9.0}, {"pct_start": 0.0}]
)
@pytest.mark.parametrize("steps", [3, 20])
def test_one_cycle_is_torchs(steps, given):
    config = TrainingConfig(steps=steps, lr=0.003, schedule="one_cycle", **given)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=config.lr,
        total_steps=steps,
        pct_start=config.pct_start,
        div_factor=config.div_factor,
        final_div_factor=config.final_div_factor,
        anneal_strategy="linear",
        cycle_momentum=False,
    )
    for step in range(steps):
        assert learning_rate(config, step) == pytest.approx(theirs.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        if step < steps - 1:
            theirs.step()


def test_one_cycle_of_in_context_regression_rises_by_the_same_at_every_step():
    """lr = 0.003 / 249999 · (step + 1) up to step 249999, as arXiv 2402.02364 trains."""
    factor = 249_999.0
    config = TrainingConfig(
        steps=500_000,
        lr=0.003,
        schedule="one_cycle",
        pct_start=0.5,
        div_factor=factor,
        final_div_factor=factor,
    )
    for step in (0, 1, 984, 5050, 200_000):
        assert learning_rate(config, step) == pytest.approx(0.003 / factor * (step + 1), rel=1e-4)
    assert learning_rate(config, 249_999) == 0.003
    assert learning_rate(config, 499_999) == pytest.approx(0.003 / factor**2)
