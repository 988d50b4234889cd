"""Learning-rate schedules and cadence, by hand."""

from __future__ import annotations

import pytest

from mechplateau.config import CheckpointConfig, TrainingConfig
from mechplateau.runs.cadence import checkpoint_steps, is_measured
from mechplateau.training.optimizers import is_linear_weight, learning_rate


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


def test_measured_steps():
    assert [step for step in range(12) if is_measured(step, 5, 11)] == [0, 5, 10, 11]


def test_which_weights_decay():
    assert is_linear_weight("blocks.0.attn.W_Q")
    assert is_linear_weight("blocks.0.mlp.W_out")
    assert is_linear_weight("unembed.W_U")
    for name in ("embed.W_E", "pos_embed.W_pos", "blocks.0.ln1.w", "blocks.0.attn.b_Q", "ln_final.b"):
        assert not is_linear_weight(name)
