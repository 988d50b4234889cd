"""The CUDA graph: where it is refused, when it steps aside, and (on a GPU) that it equals ordinary steps."""

from __future__ import annotations

import pytest
import torch

from mechplateau.errors import UserError
from mechplateau.models import build_model
from mechplateau.tasks import MovingWindowSum, Permutation
from mechplateau.training import train
from mechplateau.training.graphed import GraphedMeasurement, GraphedUpdate, has_hooks
from mechplateau.training.measure import Measurer
from mechplateau.training.optimizers import build_optimizer, set_learning_rate

from .conftest import tiny


def model_and_optimizer(config, device="cpu", capturable=False):
    model = build_model(
        config.model, vocab_size=config.task.vocab_size, n_ctx=config.task.n_ctx, device=device
    )
    return model, build_optimizer(model, config.training, capturable=capturable)


def test_a_graph_without_cuda_is_one_clear_error(tmp_path, config):
    with pytest.raises(UserError, match="--cuda-graph: needs a CUDA device, got cpu"):
        train(config, runs_dir=tmp_path, cuda_graph=True)
    assert list(tmp_path.iterdir()) == []


def test_hooks_turn_it_off_with_one_notice(config, caplog):
    def said():
        return [record.getMessage()[:23] for record in caplog.records if record.name == "mechplateau"]

    model, optimizer = model_and_optimizer(config)
    step = GraphedUpdate(model, optimizer, config.training)
    tokens = config.task.sample(4, seed=0)
    assert not has_hooks(model)
    step(tokens)
    assert said() == []
    model.add_hook("blocks.0.hook_resid_pre", lambda activation, hook: activation)
    assert has_hooks(model)
    step(tokens)
    step(tokens)
    assert said() == ["the model carries hooks"]


def test_off_a_gpu_it_is_the_ordinary_update(config):
    tokens = config.task.sample(4, seed=0)
    losses = []
    for graphed in (False, True):
        model, optimizer = model_and_optimizer(config)
        step = GraphedUpdate(model, optimizer, config.training)
        losses.append([(step if graphed else step._eager)(tokens).item() for _ in range(4)])
    assert losses[0] == losses[1]


def test_a_rate_that_is_a_tensor_is_changed_in_place(config):
    _, optimizer = model_and_optimizer(config)
    rate = torch.tensor(0.5)
    optimizer.param_groups[0]["lr"] = rate
    set_learning_rate(optimizer, 0.25)
    assert rate.item() == 0.25
    assert optimizer.param_groups[0]["lr"] is rate


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_graph_equals_ordinary_steps_over_a_trajectory(tmp_path):
    interventions = [{"kind": "attention_scale", "c": 3.0, "start": 25, "stop": 40}]
    config = tiny(
        training={"steps": 50, "schedule": "warmup", "warmup_steps": 10}, interventions=interventions
    )
    eager = train(config, runs_dir=tmp_path / "eager", device="cuda")
    graph = train(config, runs_dir=tmp_path / "graph", device="cuda", cuda_graph=True)
    assert (eager.metrics["loss"] - graph.metrics["loss"]).abs().max() < 1e-5
    for name, tensor in eager.weights().items():
        torch.testing.assert_close(graph.weights()[name], tensor, rtol=0, atol=1e-5)


def test_measurements_off_a_gpu_are_the_ordinary_ones(config):
    model, _ = model_and_optimizer(config)
    measurer = Measurer(config.task, 1, "final", torch.device("cpu"))
    graphed = GraphedMeasurement(model.eval(), measurer)
    tokens = config.task.sample(4, seed=0)
    assert measurer.row_of(graphed(tokens), 3) == measurer.row(model, 3, tokens)
    both = (tokens, config.task.sample(5, seed=1))
    assert measurer.row_of(graphed(*both), 3) == measurer.row(model, 3, *both)


def test_targets_that_vary_are_not_captured():
    assert Measurer(MovingWindowSum(), 1, "final", torch.device("cpu")).fixed_shapes
    assert not Measurer(Permutation(), 2, "final", torch.device("cpu")).fixed_shapes


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("triton", "MECHPLATEAU_KERNELS=triton: Triton cannot run here"),
        ("cuda", "MECHPLATEAU_KERNELS"),
    ],
)
def test_kernels_that_cannot_run_are_one_error_before_anything_is_written(
    value, message, tmp_path, config, monkeypatch
):
    monkeypatch.setenv("MECHPLATEAU_KERNELS", value)
    with pytest.raises(UserError, match=message):
        train(config, runs_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
