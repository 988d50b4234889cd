"""Muon on the blocks' matrices: the right ones, whole across heads, and the same after going on."""

from __future__ import annotations

import pytest
import torch

from mechplateau.config import RunConfig, TrainingConfig
from mechplateau.models import ModelConfig, build_model
from mechplateau.models.roles import Roles
from mechplateau.training import train
from mechplateau.training.muon import MuonAndAdamW, as_linear_weight, from_linear_weight
from mechplateau.training.optimizers import build_optimizer, set_learning_rate

from .conftest import tiny

# Of AdamW, what the authors' Muon package has.
CONFIG = TrainingConfig(
    optimizer="muon",
    lr=1e-3,
    betas=(0.9, 0.95),
    eps=1e-10,
    muon_lr=0.05,
    muon_momentum=0.9,
    weight_decay=0.1,
)

axes_of = Roles().matrix


@pytest.fixture
def model():
    return build_model(ModelConfig(d_model=8, n_heads=2, d_head=3), vocab_size=5, n_ctx=4)


def test_it_trains_the_matrices_of_attention_and_mlp(model):
    chosen = [name for name, _ in model.named_parameters() if axes_of(name)]
    assert sorted(chosen) == [
        f"blocks.0.{name}"
        for name in ("attn.W_K", "attn.W_O", "attn.W_Q", "attn.W_V", "mlp.W_in", "mlp.W_out")
    ]


def test_merged_matrices_act_as_the_heads_do(model):
    parameters = dict(model.named_parameters())
    x = torch.randn(8)
    query = parameters["blocks.0.attn.W_Q"]
    by_head = torch.einsum("d,hdk->hk", x, query).flatten()
    assert torch.allclose(as_linear_weight(axes_of("blocks.0.attn.W_Q"), query) @ x, by_head)
    out = parameters["blocks.0.attn.W_O"]
    z = torch.randn(2, 3)
    assert torch.allclose(
        as_linear_weight(axes_of("blocks.0.attn.W_O"), out) @ z.flatten(), torch.einsum("hk,hkd->d", z, out)
    )
    assert as_linear_weight(axes_of("blocks.0.mlp.W_in"), parameters["blocks.0.mlp.W_in"]).shape == (32, 8)
    for name, parameter in parameters.items():
        if axes := axes_of(name):
            back = from_linear_weight(axes, as_linear_weight(axes, parameter), parameter)
            assert torch.equal(back, parameter)


def test_a_step_is_torchs_muon_on_the_merged_matrix_and_adamw_on_the_rest(model):
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    generator = torch.Generator().manual_seed(1)
    before = {name: p.detach().clone() for name, p in named}
    gradients = [{n: torch.randn(p.shape, generator=generator) for n, p in named} for _ in range(3)]

    optimizer = build_optimizer(model, CONFIG)
    assert isinstance(optimizer, MuonAndAdamW)
    for step in gradients:
        for name, parameter in named:
            parameter.grad = step[name].clone()
        optimizer.step()

    name = "blocks.0.attn.W_K"
    axes = axes_of(name)
    matrix = torch.nn.Parameter(as_linear_weight(axes, before[name]).contiguous())
    muon = torch.optim.Muon([matrix], lr=0.05, momentum=0.9, weight_decay=0.1)
    rest = torch.nn.Parameter(before["embed.W_E"].clone())
    adam = torch.optim.AdamW([rest], lr=1e-3, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0, fused=True)
    for step in gradients:
        matrix.grad = as_linear_weight(axes, step[name]).contiguous()
        rest.grad = step["embed.W_E"].clone()
        muon.step()
        adam.step()
    after = dict(named)
    assert torch.equal(as_linear_weight(axes, after[name]), matrix)
    assert torch.equal(after["embed.W_E"], rest)


def test_a_schedule_keeps_the_ratio_of_the_rates(model):
    optimizer = build_optimizer(model, CONFIG)
    set_learning_rate(optimizer, 5e-4)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.025, 5e-4])


def test_the_final_layer_norm_can_be_left_alone(tmp_path):
    run = train(tiny(training={"optimizer": "muon", "muon_ln_final": False}), runs_dir=tmp_path)
    before, after = run.weights(0), run.weights("after")
    for name, tensor in after.items():
        kept = name.startswith("ln_final.") or name == "unembed.b_U"
        assert torch.equal(tensor, before[name]) == kept, name


def test_a_run_with_muon_goes_on_to_the_bit(tmp_path, monkeypatch):
    config = tiny(
        training={"optimizer": "muon", "schedule": "warmup", "warmup_steps": 3}, model={"n_heads": 2}
    )
    whole = train(config, runs_dir=tmp_path / "whole")

    class Stop(Exception):
        pass

    class Stopper:
        def on_step(self, step, row):
            if step == 9:
                raise Stop

    with pytest.raises(Stop):
        train(config, runs_dir=tmp_path / "parts", listeners=[Stopper()])
    resumed = train(config, runs_dir=tmp_path / "parts")
    for name, tensor in whole.weights().items():
        assert torch.equal(tensor, resumed.weights()[name]), name


def test_muon_and_a_cuda_graph_are_refused(monkeypatch):
    from mechplateau.errors import UserError
    from mechplateau.training.graphed import check_graph

    config = RunConfig.for_task("mws", training={"optimizer": "muon"})
    with pytest.raises(UserError, match="works with adam and adamw, got muon"):
        check_graph(torch.device("cuda"), config)


def test_gradients_of_what_muon_leaves_untrained_are_forgotten_too(model):
    """They would pile up from step to step, and count in a clipped norm."""
    optimizer = build_optimizer(model, CONFIG.model_copy(update={"muon_ln_final": False}))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    optimizer.zero_grad()
    assert [name for name, p in model.named_parameters() if p.grad is not None] == []
