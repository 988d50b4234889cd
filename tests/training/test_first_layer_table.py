"""Training, measuring and interventions with the first layer's table: the numbers of rows computed one by one."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from mechplateau.models import build_model, table
from mechplateau.models.attention import MaskedAttention
from mechplateau.training import train
from mechplateau.training.optimizers import build_optimizer
from mechplateau.training.step import update

from .conftest import tiny

SIZES = {
    "training": {"steps": 3, "batch_size": 32, "optimizer": "sgd", "lr": 0.5},
    "evaluation": {"samples": 32},
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A finished run that others take from."""
    return train(tiny(seed=7), runs_dir=tmp_path_factory.mktemp("source"))


@pytest.fixture
def paths(monkeypatch):
    """Whether each forward of the first layer was looked up, in order."""
    taken = []
    forward = MaskedAttention.forward

    def noting(self, *given, **options):
        out = forward(self, *given, **options)
        taken.append(self.looked_up)
        return out

    monkeypatch.setattr(MaskedAttention, "forward", noting)
    return taken


def rows_only(monkeypatch):
    monkeypatch.setattr(table, "PAYS_FROM", float("inf"))


INTERVENTIONS = {
    "none": lambda source: [],
    "scale": lambda source: [{"kind": "attention_scale", "c": 2.0}],
    "freeze": lambda source: [{"kind": "freeze", "parts": "KQ"}],
    "optimal": lambda source: [
        {"kind": "optimal_init", "source": str(source.checkpoint_path()), "parts": "KQOV", "freeze": False}
    ],
    "imposed": lambda source: [{"kind": "imposed_pattern", "source": str(source.maps_path())}],
    "reward": lambda source: [{"kind": "progress_reward", "weight": 1.0}],
}


@pytest.mark.parametrize(
    ("intervention", "attention"), [*((name, "linear") for name in INTERVENTIONS), ("none", "softmax")]
)
def test_a_run_is_that_of_rows_computed_one_by_one(
    tmp_path, monkeypatch, paths, source, attention, intervention
):
    given = INTERVENTIONS[intervention](source)
    config = tiny(**SIZES, model={"attention": attention, "d_model": 8}, interventions=given)
    ours = train(config, runs_dir=tmp_path / "ours")
    # Three updates, four measurements of one forward and three tokens each, and maps, which look at no row before.
    assert paths == [True] * len(paths)
    assert len(paths) >= 3 + 4 * 4
    paths.clear()
    rows_only(monkeypatch)
    theirs = train(config, runs_dir=tmp_path / "theirs")
    assert not any(paths)
    pd.testing.assert_frame_equal(ours.metrics, theirs.metrics, rtol=0, atol=1e-6)
    for step in ours.steps:
        other = theirs.weights(step)
        for name, tensor in ours.weights(step).items():
            torch.testing.assert_close(tensor, other[name], rtol=0, atol=1e-6)


def test_a_hook_that_comes_between_two_steps_changes_the_path_and_nothing_else(monkeypatch, paths):
    config = tiny(**SIZES)
    task = config.task
    batches = [task.batch(32, torch.Generator().manual_seed(seed)) for seed in range(3)]

    def trained(hooked):
        model = build_model(config.model, vocab_size=task.vocab_size, n_ctx=task.n_ctx)
        optimizer = build_optimizer(model, config.training)
        for step, batch in enumerate(batches):
            if hooked and step == 1:
                model.add_hook("hook_embed", lambda value, hook: None)
            if step == 2:
                model.reset_hooks()
            update(model, optimizer, batch, task.objective)
        return dict(model.named_parameters())

    plain = trained(hooked=False)
    assert paths == [True] * 3
    paths.clear()
    switched = trained(hooked=True)
    assert paths == [True, False, True]
    for name, parameter in switched.items():
        torch.testing.assert_close(parameter, plain[name], rtol=0, atol=1e-6)
