"""What single tasks measure besides: α₁ within parts, counts of values, groups of pairs. And every task trains."""

from __future__ import annotations

import pytest
import torch

from mechplateau.config import RunConfig
from mechplateau.measurements import Setting
from mechplateau.models import ModelConfig, build_model
from mechplateau.tasks import Permutation, Repeat, task_names
from mechplateau.training import train
from mechplateau.training.measure import Measurer

CPU = torch.device("cpu")
SIZES = {
    "mws": {"n": 4, "p": 7, "max_num": 6},
    "prefix": {"n": 4, "p": 7, "max_num": 6},
    "addition": {"digits": 2},
    "histogram": {"n": 4, "alphabet": 3},
    "permutation": {"n": 3},
    "copy": {"n": 4, "max_num": 5},
    "reverse": {"n": 4, "max_num": 5},
    "repeat": {"n": 4, "p": 7, "blocks": 2},
    "concat_mws": {"p": 7, "max_num": 6},
}


def test_every_task_has_a_size_here():
    assert set(SIZES) <= set(task_names())


@pytest.mark.parametrize("name", sorted(SIZES))
def test_every_task_trains_measures_and_is_opened_again(name, tmp_path):
    config = RunConfig.for_task(
        name,
        task=SIZES[name],
        model={"d_model": 8},
        training={"steps": 4, "batch_size": 8, "lr": 1e-2},
        evaluation={"samples": 8},
        checkpoints={"every": 2},
    )
    run = train(config, runs_dir=tmp_path)
    defined = run.metrics.notna().all()
    for column in ("loss", "accuracy", "repetition", "entropy", "alpha_1"):
        assert defined[column], column
    progress = [c for c in run.metrics.columns if c.startswith("apm_") and c != "apm_zero_count"]
    assert progress
    assert defined[progress].all()
    assert run.metrics[progress].stack().between(0, 1).all()
    assert run.metrics["loss"].iloc[-1] < run.metrics["loss"].iloc[0]
    assert run.task == config.task


def measured(task, generated):
    """A row of a model that generates just these tokens."""
    config = ModelConfig(d_model=8, n_layers=2)
    model = build_model(config, vocab_size=task.vocab_size, n_ctx=task.n_ctx)
    model.generate_on = lambda seen, prompt_length, n_outputs: generated
    return Measurer(Setting(task, model.model_config, "final")).row(
        model.eval(), 0, task.batch(len(generated), seed=0)
    )


def test_repetition_within_halves_and_quarters():
    row = measured(Repeat(n=8, blocks=2), torch.tensor([[5, 5, 5, 1, 6, 2, 6, 6]]))
    assert row["alpha_1"] == pytest.approx(3 / 8)
    assert row["alpha_1_half_0"] == pytest.approx(3 / 4)
    assert row["alpha_1_half_1"] == pytest.approx(3 / 4)
    assert [row[f"alpha_1_quarter_{i}"] for i in range(4)] == [1.0, 0.5, 0.5, 1.0]


def test_counts_of_values():
    task = Permutation(n=3)
    (true,) = task.sample(1, seed=0)[:, task.prompt_length :].tolist()
    right = measured(task, torch.tensor([true[::-1]]))
    assert (right["count_check"], right["count_check_all"]) == (1.0, 1.0)
    wrong = measured(task, torch.tensor([[0, 0, 0]]))
    # Of the three values that an output can have, those that the target lacks are rightly absent.
    assert (wrong["count_check"], wrong["count_check_all"]) == (0.0, pytest.approx(1 - len({*true}) / 3))


def test_groups_of_windows_have_their_own_columns():
    from mechplateau.tasks import ConcatenatedWindows

    columns = Measurer(Setting(ConcatenatedWindows(), ModelConfig())).columns()
    assert [c for c in columns if c.startswith("cos_final")] == [
        "cos_final",
        "cos_final_w1",
        "cos_final_w2",
        "cos_final_w3",
    ]
