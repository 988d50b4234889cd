"""Chains: the step by hand, equal bits however they are run, and nothing of the caller's changed."""

from __future__ import annotations

import copy
import dataclasses
import gc
import warnings

import numpy as np
import pytest
import torch

from mechplateau.development import Fresh, Rows, Sampling, resume, sample, sgld_step
from mechplateau.development.data import as_batches
from mechplateau.errors import UserError

from .small import mlp, rows, squared

SETTINGS = Sampling(step_size=1e-3, n_beta=30.0, localization=5.0, chains=3, draws=6, burn_in=2, seed=7)


def same(a, b):
    return (
        np.array_equal(a.losses, b.losses)
        and np.array_equal(a.distances, b.distances)
        and np.array_equal(a.at_start, b.at_start)
        and a.loss == b.loss
    )


def test_a_step_by_hand():
    weight, start = (
        torch.tensor([[2.0, -1.0]], dtype=torch.float64),
        torch.tensor([1.0, 1.0], dtype=torch.float64),
    )
    gradient = torch.tensor([[0.5, 3.0]], dtype=torch.float64)
    noise = torch.empty(2, dtype=torch.float64).normal_(generator=torch.Generator().manual_seed(5))
    mask = torch.tensor([True, False])
    moved = sgld_step(
        [weight],
        [gradient],
        [start],
        [torch.Generator().manual_seed(5)],
        step_size=0.01,
        n_beta=10.0,
        localization=4.0,
        masks=[mask],
    )
    assert moved.tolist() == [5.0]
    expected = 2.0 - 0.005 * (10 * 0.5 + 4 * (2 - 1)) + 0.1 * float(noise[0])
    assert weight[0, 0].item() == pytest.approx(expected, abs=1e-14)
    assert weight[0, 1].item() == -1.0


def test_a_parameter_may_be_one_number():
    """As the bias of a read-out with one output may be."""
    weight, start = torch.tensor([2.0, 4.0], dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)
    noise = [
        torch.empty((), dtype=torch.float64).normal_(generator=torch.Generator().manual_seed(s))
        for s in (5, 6)
    ]
    generators = [torch.Generator().manual_seed(seed) for seed in (5, 6)]
    gradient = torch.tensor([0.5, 3.0], dtype=torch.float64)
    moved = sgld_step(
        [weight], [gradient], [start], generators, step_size=0.01, n_beta=10.0, localization=4.0
    )
    assert moved.tolist() == [1.0, 9.0]
    expected = [2 - 0.005 * (5 + 4) + 0.1 * float(noise[0]), 4 - 0.005 * (30 + 12) + 0.1 * float(noise[1])]
    assert weight.tolist() == pytest.approx(expected, abs=1e-14)


def test_the_first_draw_is_the_model_itself():
    trace = sample(mlp(), squared, rows(), dataclasses.replace(SETTINGS, burn_in=0))
    assert (trace.losses[:, 0] == trace.at_start[0]).all()
    assert (trace.distances[:, 0] == 0).all()
    assert (trace.distances[:, 1:] > 0).all()
    assert len(set(trace.losses[:, 1])) == 3  # each chain has noise of its own
    assert trace.loss == pytest.approx(float(squared(mlp(), rows().rows).mean().detach()))
    assert (trace.n, trace.parameters) == (60, 66)


@pytest.mark.parametrize("stacked", [True, False])
def test_chains_give_the_same_bits_side_by_side_and_one_after_the_other(stacked):
    together = sample(mlp(), squared, rows(), SETTINGS, stacked=stacked)
    assert same(together, sample(mlp(), squared, rows(), SETTINGS, stacked=stacked))
    for at_once in (1, 2):
        assert same(
            together, sample(mlp(), squared, rows(), SETTINGS, stacked=stacked, chains_at_once=at_once)
        )
    fewer = sample(mlp(), squared, rows(), dataclasses.replace(SETTINGS, chains=1), stacked=stacked)
    np.testing.assert_array_equal(fewer.losses[0], together.losses[0])
    other = sample(mlp(), squared, rows(), dataclasses.replace(SETTINGS, seed=8), stacked=stacked)
    assert not np.array_equal(other.losses[:, 1:], together.losses[:, 1:])


def test_stacked_chains_agree_with_chains_evaluated_one_by_one():
    double = {"dtype": torch.float64}
    one, all_ = (sample(mlp(**double), squared, rows(**double), SETTINGS, stacked=s) for s in (False, True))
    np.testing.assert_allclose(one.losses, all_.losses, rtol=1e-12)


def test_resumed_chains_equal_longer_ones():
    whole = sample(mlp(), squared, rows(), SETTINGS, keep_state=True, chains_at_once=2)
    first = sample(mlp(), squared, rows(), dataclasses.replace(SETTINGS, draws=1), keep_state=True)
    rest = resume(first, mlp(), squared, rows(), 5)
    assert same(whole, rest)
    assert rest.sampling == whole.sampling
    for a, b in zip(whole.state.weights, rest.state.weights, strict=True):
        assert torch.equal(a, b)
    with pytest.raises(UserError, match="keep_state"):
        resume(sample(mlp(), squared, rows(), SETTINGS), mlp(), squared, rows(), 5)
    with pytest.raises(UserError, match="other weights"):
        resume(first, mlp(), squared, rows(), 5, parts=["0.*"])


def test_nothing_of_the_callers_changes():
    model = mlp(dropout=0.5).train()
    model[3].eval()
    seen = []
    model[0].register_forward_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    before, hooks = copy.deepcopy(model.state_dict()), dict(model[0]._forward_hooks)
    torch.manual_seed(11)
    state = torch.get_rng_state()
    with torch.no_grad():
        first = sample(model, squared, rows(), SETTINGS)
    assert same(first, sample(model, squared, rows(), SETTINGS))  # dropout is off in chains
    assert torch.equal(state, torch.get_rng_state())
    assert [module.training for module in model] == [True, True, True, False]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert dict(model[0]._forward_hooks) == hooks
    assert any(seen)  # the caller's own hooks see every forward

    def fails(model, batch):
        torch.rand(1)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        sample(model, fails, rows(), SETTINGS)
    assert torch.equal(state, torch.get_rng_state())
    assert [module.training for module in model] == [True, True, True, False]


def test_only_the_named_parts_move():
    whole = mlp()
    whole[3].bias.requires_grad_(False)
    mask = torch.zeros(8, 5, dtype=torch.bool)
    mask[2, 1:] = True
    for parts, counts in [
        (None, {"0.weight": 40, "0.bias": 8, "3.weight": 16}),
        (["0.*"], {"0.weight": 40, "0.bias": 8}),
        ([("0.weight", 2), "3.weight"], {"0.weight": 5, "3.weight": 16}),
        ([("0.weight", 2), ("0.weight", 0)], {"0.weight": 10}),
        ({"0.weight": mask}, {"0.weight": 4}),
    ]:
        trace = sample(whole, squared, rows(), SETTINGS, parts=parts, keep_state=True)
        assert trace.parameters == sum(counts.values())
        changed = {}
        for name, moved in zip(counts, trace.state.weights, strict=True):
            start = dict(whole.named_parameters())[name].detach()
            changed[name] = int((moved[0] != start).sum())
        assert changed == counts
    for parts, said in [
        (["nothing"], "no such weights 'nothing'"),
        (["3.bias"], "frozen"),
        ([("0.weight", 8)], "8 entries"),
        ([], "at least one weight"),
        ({"0.weight": mask[0]}, r"shape \[8, 5\]"),
    ]:
        with pytest.raises(UserError, match=said):
            sample(whole, squared, rows(), SETTINGS, parts=parts)


def test_a_chain_that_is_lost_leaves_the_others_as_they_are():
    start = {"w": torch.zeros(1)}

    def steep(weights):  # chains whose first noise is large enough run away
        return weights["w"].pow(4).sum()

    settings = Sampling(step_size=0.3, n_beta=1.0, localization=0.0, chains=6, draws=60)
    for stacked in (True, False):
        trace = sample(start, steep, None, settings, stacked=stacked)
        assert 0 < len(trace.lost) < 6
        for chain in trace.lost:
            end = int(np.isfinite(trace.losses[chain]).sum())
            assert np.isnan(trace.losses[chain, end:]).all()
        alone = sample(start, steep, None, settings, stacked=stacked, chains_at_once=1)
        np.testing.assert_array_equal(trace.losses, alone.losses)


def test_memory_is_flat_in_draws():
    model, counts = mlp(), []
    gc.collect()

    def counting(model, batch):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            counts.append(sum(1 for thing in gc.get_objects() if type(thing) is torch.Tensor))
        return squared(model, batch)

    sample(model, counting, rows(), Sampling(step_size=1e-4, n_beta=10.0, chains=1, draws=6), paired=False)
    assert len(set(counts[-4:])) == 1


def test_batches_depend_on_seed_and_step_alone():
    data = Rows(torch.arange(10), batch_size=4)
    first_pass = torch.cat([data.batch(0), data.batch(1)])
    assert len(set(first_pass.tolist())) == 8
    assert torch.equal(data.batch(3), Rows(torch.arange(10), batch_size=4).batch(3))
    assert not torch.equal(data.batch(0), data.batch(2))
    assert torch.cat([batch for _, batch in data.baseline()]).tolist() == list(range(10))
    assert [weight for weight, _ in data.baseline()] == [4, 4, 2]
    fresh = Fresh(
        lambda size, generator: torch.rand(size, generator=generator), batch_size=3, baseline_batches=2
    )
    assert torch.equal(fresh.batch(5), fresh.batch(5))
    made = [fresh.batch(0), fresh.batch(1), *(batch for _, batch in fresh.baseline())]
    assert len({tuple(batch.tolist()) for batch in made}) == 4
    listed = as_batches([torch.ones(3), torch.zeros(2)])
    assert (listed.n, listed.batch(3).tolist()) == (5, [0.0, 0.0])


def test_progress_is_told(heard):
    sample(
        mlp(),
        squared,
        rows(),
        SETTINGS,
        chains_at_once=2,
        progress=heard,
    )
    assert heard.counts[-1] == ("chain steps", 24, 24)
    done = [done for _, done, _ in heard.counts]
    assert done == sorted(done)
    assert heard.open == 0
