"""What a step costs in operations, and what is said of it: the paper's matrix completion is made for a GPU."""

from __future__ import annotations

import pytest

from mechplateau.config import RunConfig
from mechplateau.training.arithmetic import Rate, made_for_a_gpu, tflop_of_a_step

SMALL = {
    "task": {"m": 3, "n": 3, "rank": 1, "value_max": 1, "decimals": 0},
    "model": {"n_layers": 1, "n_heads": 1, "d_model": 8},
    "training": {"steps": 3, "batch_size": 4},
    "evaluation": {"samples": 4},
}


def test_operations_of_a_step():
    assert tflop_of_a_step(RunConfig.for_task("matrix_completion")) == pytest.approx(2.16, rel=0.01)
    # By hand: 4 matrices of 9 cells; 4 products 8 × 8 and two 8 × 32, then 9 keys each way, at 2 an operation; thrice.
    by_hand = 3 * 4 * 9 * 2 * (4 * 64 + 2 * 8 * 32 + 2 * 9 * 8)
    assert tflop_of_a_step(RunConfig.for_task("matrix_completion", **SMALL)) == pytest.approx(by_hand / 1e12)
    assert tflop_of_a_step(RunConfig.for_task("mws")) is None


def test_the_papers_size_is_made_for_a_gpu_and_the_presets_are_not():
    assert made_for_a_gpu(RunConfig.for_task("matrix_completion"))
    assert not any(
        made_for_a_gpu(RunConfig.for_task("matrix_completion", preset=name)) for name in ("tiny", "small")
    )
    assert not made_for_a_gpu(RunConfig.for_task("mws"))


def test_the_rate_is_said_once_without_the_first_step():
    config, said, times = RunConfig.for_task("matrix_completion"), [], iter([100.0, 120.0])
    rate = Rate(config, "cpu", said.append, clock=lambda: next(times))
    for step in (0, 31, 32, 33):  # resumed at 30: nothing is measured at 0
        rate.on_step(step, None)
    assert said == [
        "2.15 TFLOP a step: 20 s each here, 0.108 TFLOP/s; the other 49,968 steps would take 278 hours"
    ]
