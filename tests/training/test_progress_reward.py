"""Attention progress as a training signal: its weight, its gradient, and that nothing else changes."""

from __future__ import annotations

import pytest
import torch

from mechplateau.config import RunConfig
from mechplateau.errors import ConfigError, UserError
from mechplateau.interventions import ProgressReward
from mechplateau.measurements.targets import AttentionTargets
from mechplateau.models import build_model
from mechplateau.tasks import Permutation
from mechplateau.training import train
from mechplateau.training.graphed import check_graph
from mechplateau.training.step import Reward, update

from .conftest import tiny

CPU = torch.device("cpu")


def test_the_weight_rises_over_its_ramp():
    reward = ProgressReward(weight=2.0, start=10, ramp=4)
    assert [reward.weight_at(step) for step in (10, 11, 12, 14, 50)] == [0, 0.5, 1.0, 2.0, 2.0]
    assert ProgressReward(weight=2.0).weight_at(0) == 2.0


def test_the_gradient_is_that_of_loss_minus_weight_times_apm():
    config = tiny()
    task = config.task
    model = build_model(config.model, vocab_size=task.vocab_size, n_ctx=task.n_ctx)
    batch = task.batch(8, seed=0)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    reward = Reward(0.7, AttentionTargets(task, 1, CPU).of(batch))
    update(model, optimizer, batch, task.objective, reward=reward)
    moved = {name: before[name] - p.detach() for name, p in model.named_parameters()}

    other = build_model(config.model, vocab_size=task.vocab_size, n_ctx=task.n_ctx)
    kept = []
    hooks = [("blocks.0.attn.hook_pattern", lambda pattern, hook: kept.append(pattern))]
    logits = other.run_with_hooks(batch.inputs, fwd_hooks=hooks)
    pattern = kept[0].abs()
    (target,) = task.attention_targets(batch.tokens)
    rows = pattern[:, 0, list(target.rows)]
    progress = ((rows * target.mask).sum((1, 2)) / rows.sum((1, 2))).mean()
    (task.objective.loss(logits, batch) - 0.7 * progress).backward()
    for name, parameter in other.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(moved[name], parameter.grad, rtol=1e-4, atol=1e-6)


def test_it_raises_attention_progress_and_only_while_it_lasts(tmp_path):
    plain = train(tiny(training={"steps": 40}), runs_dir=tmp_path)
    reward = {"kind": "progress_reward", "weight": 5.0, "stop": 40}
    pulled = train(tiny(training={"steps": 40}, interventions=[reward]), runs_dir=tmp_path)
    assert pulled.metrics["apm_window"].iloc[-1] > plain.metrics["apm_window"].iloc[-1] + 0.1
    late = {"kind": "progress_reward", "weight": 5.0, "start": 8}
    delayed = train(tiny(training={"steps": 40}, interventions=[late]), runs_dir=tmp_path)
    for step in (4, 8):
        assert all(torch.equal(t, plain.weights(step)[n]) for n, t in delayed.weights(step).items())
    assert not torch.equal(delayed.weights(12)["embed.W_E"], plain.weights(12)["embed.W_E"])


def test_a_weight_of_zero_changes_nothing(tmp_path):
    reward = {"kind": "progress_reward", "weight": 0.0}
    one = train(tiny(), runs_dir=tmp_path)
    other = train(tiny(interventions=[reward]), runs_dir=tmp_path)
    assert all(torch.equal(tensor, other.weights()[name]) for name, tensor in one.weights().items())


def test_the_table_shows_the_plain_loss(tmp_path):
    """At step 0 both models are the same, and so is their loss."""
    reward = {"kind": "progress_reward", "weight": 5.0}
    one, other = train(tiny(), runs_dir=tmp_path), train(tiny(interventions=[reward]), runs_dir=tmp_path)
    assert one.metrics["loss"].iloc[0] == other.metrics["loss"].iloc[0]


def test_a_task_whose_targets_vary_is_rewarded_too(tmp_path):
    config = RunConfig.parse(
        {
            "task": {"name": "permutation", "n": 3},
            "model": {"d_model": 8},
            "training": {"steps": 30, "batch_size": 16, "lr": 1e-2},
            "evaluation": {"every": 30},
            "interventions": [{"kind": "progress_reward", "weight": 3.0}],
        }
    )
    run = train(config, runs_dir=tmp_path)
    columns = [f"apm_{name}" for name in ("fetch", "read", "gather", "collect")]
    assert list(run.metrics.columns[run.metrics.columns.str.startswith("apm_")])[:4] == columns
    first, last = (run.metrics[columns].iloc[row].mean() for row in (0, -1))
    assert last > first


def test_targets_of_a_batch_are_its_own():
    task = Permutation(n=3)
    one, other = task.batch(4, seed=0), task.batch(4, seed=5)
    targets = AttentionTargets(task, 2, CPU)
    sets = targets.of(one).sets
    assert sets[1][0].shape == (4, task.n_input, task.n_input)
    assert sets[0][0].shape == (task.n_input, task.n_input)  # `read` is the same for all
    assert not torch.equal(sets[1][0], targets.of(other).sets[1][0])
    assert [t.column for t in targets.tracked] == ["apm_fetch", "apm_read", "apm_gather", "apm_collect"]


def test_wrong_values_name_the_field():
    with pytest.raises(ConfigError, match=r"interventions\.0.*weight: missing"):
        tiny(interventions=[{"kind": "progress_reward"}])
    with pytest.raises(ConfigError, match=r"ramp: input should be greater than or equal to 0"):
        tiny(interventions=[{"kind": "progress_reward", "weight": 1, "ramp": -1}])


def test_a_cuda_graph_is_refused():
    config = tiny(interventions=[{"kind": "progress_reward", "weight": 1.0}])
    with pytest.raises(UserError, match="progress_reward changes its weight"):
        check_graph(torch.device("cuda"), config)


def test_a_reward_beside_an_imposed_pattern_is_refused(tmp_path):
    run = train(tiny(), runs_dir=tmp_path)
    imposed = {"kind": "imposed_pattern", "source": str(run.maps_path("after"))}
    reward = {"kind": "progress_reward", "weight": 1.0}
    for both in ([imposed, reward], [reward, imposed]):
        with pytest.raises(
            ConfigError, match=r"interventions\.1: a reward cannot move the pattern .* see interventions\.0"
        ):
            tiny(interventions=both)
    assert tiny(interventions=[{**imposed, "stop": 4}, {**reward, "start": 4}])
