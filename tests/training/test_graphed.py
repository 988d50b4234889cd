"""The CUDA graph: where it is refused, when it steps aside, and (on a GPU) that it equals ordinary steps."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mechplateau.config import RunConfig
from mechplateau.errors import UserError
from mechplateau.measurements import Setting
from mechplateau.models import ModelConfig, build_model
from mechplateau.tasks import MovingWindowSum, Permutation, Task
from mechplateau.training import train
from mechplateau.training.graphed import GraphedMeasurement, GraphedUpdate, has_hooks
from mechplateau.training.measure import Measurer
from mechplateau.training.optimizers import build_optimizer, set_learning_rate
from mechplateau.training.step import update

from .conftest import tiny
from .test_task_columns import SIZES


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
    step = GraphedUpdate(model, optimizer, config.training, config.task.objective)
    batch = config.task.batch(4, seed=0)
    assert not has_hooks(model)
    step(batch)
    assert said() == []
    model.add_hook("blocks.0.hook_resid_pre", lambda activation, hook: activation)
    assert has_hooks(model)
    step(batch)
    step(batch)
    assert said() == ["the model carries hooks"]


def test_off_a_gpu_it_is_the_ordinary_update(config):
    batch = config.task.batch(4, seed=0)
    losses = []
    for graphed in (False, True):
        model, optimizer = model_and_optimizer(config)
        step = GraphedUpdate(model, optimizer, config.training, config.task.objective)
        losses.append([(step if graphed else step._eager)(batch).item() for _ in range(4)])
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
    measurer = Measurer(Setting(config.task, config.model))
    graphed = GraphedMeasurement(model.eval(), measurer)
    batch = config.task.batch(4, seed=0)
    assert measurer.row_of(graphed(batch), 3) == measurer.row(model, 3, batch)
    both = (batch, config.task.batch(5, seed=1))
    assert measurer.row_of(graphed(*both), 3) == measurer.row(model, 3, *both)


class CaptureRules(TorchDispatchMode):
    """What a CUDA graph capture refuses, on any device: reading a tensor on the host (also to learn a result's
    size), tensors made of Python's numbers, and copies between the host and the device."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal.default", "lift_fresh")

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function)
        assert not any(forbidden in name for forbidden in self.FORBIDDEN), name
        target = (kwargs or {}).get("device")
        assert "_to_copy" not in name or target is None or target.type == args[0].device.type, name
        result = function(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
        if len({x.device.type for x in tensors}) > 1:
            assert "copy" not in name, name
            assert all(x.dim() == 0 for x in tensors if x.device.type == "cpu"), name
        return result


@pytest.fixture
def meta(monkeypatch):
    """The device without memory stands in for a GPU: what would read from one is an error there."""
    device = torch.device("meta")
    batch = Task.batch

    def batch_there(task, n, generator=None, device="cpu", **rest):
        return batch(task, n, generator, **rest).to(device)

    def sample_there(task, n, generator=None, device="cpu", **rest):
        return sample(task, n, generator, **rest).to(device)

    sample = Task.sample
    monkeypatch.setattr(Task, "batch", batch_there)
    monkeypatch.setattr(Task, "sample", sample_there)
    # It knows no autocast, which is off here.
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    return device


def rehearse(name, device, batch=4, fresh=3):
    """An update and both kinds of measurement under the rules; whether the latter can be captured at all."""
    config = RunConfig.for_task(name, task=SIZES[name], model={"d_model": 8})
    model, _ = model_and_optimizer(config)
    model.to(device)
    measured, fresh = (config.task.batch(number, device=device) for number in (batch, fresh))
    # Adam's own step is torch's to keep to the rules.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with CaptureRules():
        update(model, optimizer, measured, config.task.objective, clip_norm=1.0)
    assert model.blocks[0].attn.looked_up == (batch >= 2 * config.task.vocab_size)
    for where in ("final", "all"):
        measurer = Measurer(Setting(config.task, config.model, where, device))
        if measurer.fixed_shapes:
            with CaptureRules():
                assert len(measurer.numbers(model.eval(), measured, fresh)) > 10
    return measurer.fixed_shapes


@pytest.mark.parametrize("name", sorted(SIZES))
def test_nothing_is_read_back_in_what_is_captured(name):
    assert rehearse(name, torch.device("cpu")) == (name != "permutation")


def test_nothing_is_copied_between_host_and_device_in_what_is_captured(meta):
    assert rehearse("mws", meta)


def test_the_first_layers_table_can_be_captured(meta):
    assert rehearse("mws", meta, batch=40, fresh=40)
    assert rehearse("mws", torch.device("cpu"), batch=40, fresh=40)


def test_the_rules_of_a_capture_are_held(meta):
    x = torch.ones(3, device=meta)
    with CaptureRules():
        x.add(torch.ones(()))
        for forbidden in (x.nonzero, lambda: x.sum().item(), x.cpu, lambda: torch.ones(3).to(meta)):
            with pytest.raises(AssertionError):
                forbidden()


def test_targets_that_vary_are_not_captured():
    assert Measurer(Setting(MovingWindowSum(), ModelConfig())).fixed_shapes
    assert not Measurer(Setting(Permutation(), ModelConfig(n_layers=2))).fixed_shapes


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
