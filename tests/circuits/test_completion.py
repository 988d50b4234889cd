"""Tools for matrix completion, on planted heads, planted solutions and slow loops."""

from __future__ import annotations

import math

import pytest
import torch

from mechplateau.circuits.completion import (
    by_identifiable,
    by_partner,
    completion_losses,
    copy_check,
    full_rank,
    heads,
    negated,
    patch_negated,
    permuted_positions,
    probe_cells,
)
from mechplateau.circuits.least_squares import least_squares
from mechplateau.circuits.number_embeddings import number_embeddings, position_cosines
from mechplateau.circuits.patching import Patch, activations, run_patched
from mechplateau.circuits.pattern_ablation import ablate_patterns, run_with_patterns
from mechplateau.circuits.switching import RELEASED, both_ways, named_like, switched
from mechplateau.errors import UserError
from mechplateau.models.config import ModelConfig
from mechplateau.models.encoder import Encoder, build_encoder
from mechplateau.models.encoder_config import EncoderConfig
from mechplateau.models.transformer import build_model
from mechplateau.objectives import TokenBatch
from mechplateau.tasks.matrices import same_column, same_row
from mechplateau.tasks.matrix_completion import MatrixCompletion, MatrixCompletionGPT

TASK = MatrixCompletion(m=3, n=4, rank=1, factors="signed_grid", q=4, value_max=1)
CONFIG = EncoderConfig(n_layers=2, n_heads=2, d_model=16, init_std=0.4)


def encoder(seed: int = 0) -> Encoder:
    generator = torch.Generator().manual_seed(seed)
    return build_encoder(CONFIG, values=TASK.token_values, n_ctx=12, generator=generator)


@pytest.fixture
def batch():
    return TASK.batch(40, seed=0)


class Copier(torch.nn.Module):
    """Gives every cell the value of its token."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return TASK.token_values[tokens]


def test_a_gpt_is_refused_in_one_line():
    """Each tool, of the sequences that a GPT writes, and of its task."""
    task = MatrixCompletionGPT(m=2, n=2, rank=1, factors="signed_grid", q=4)
    model, given = torch.nn.Identity(), TokenBatch(task.sample(2, seed=0))
    calls = (
        lambda: completion_losses(given),
        lambda: copy_check(model, task, given),
        lambda: heads(model, task, given),
        lambda: by_partner(model, task, given),
        lambda: by_identifiable(model, task, given),
        lambda: negated(task, given),
        lambda: patch_negated(model, task, given, {"all": [(0, 0)]}),
        lambda: permuted_positions(model, given),
        lambda: probe_cells(model, task),
    )
    for call in calls:
        with pytest.raises(
            UserError, match=r"expected the task matrix_completion, and its batches, got \w+; for"
        ):
            call()


def test_a_copier_passes_the_copy_check(batch):
    table = copy_check(Copier(), TASK, batch, (None, 0.5, -0.25))
    assert table["value"].tolist()[1:] == [0.5, -0.25]
    assert math.isnan(table["value"][0])
    assert (table[["loss_obs", "loss_repeated"]] == 0).all(axis=None)
    losses = completion_losses(batch)(Copier()(batch.inputs))
    assert losses["loss_obs"] == 0
    assert losses["loss_mask"] == pytest.approx(float(batch.targets[batch.masked].square().mean()))
    anything = full_rank(TASK, 30, seed=0)
    assert (copy_check(Copier(), TASK, anything)["loss_obs"] == 0).all()
    assert torch.linalg.matrix_rank(anything.targets.view(-1, 3, 4)).float().mean() > 2.9


def constant_heads() -> Encoder:
    """Without queries and keys, every pattern is uniform."""
    model = encoder()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.W_Q.zero_()
    return model


def test_ablating_a_pattern_by_itself_changes_nothing(batch):
    model = constant_heads()
    before = model(batch.inputs)
    every = [(layer, head) for layer in range(2) for head in range(2)]
    for mode in ("mean", "uniform"):
        torch.testing.assert_close(
            run_with_patterns(model, batch.inputs, every, mode), before, atol=1e-6, rtol=0
        )
    assert (run_with_patterns(model, batch.inputs, every, "zero") - before).abs().max() > 0.01
    torch.testing.assert_close(model(batch.inputs), before)


def test_mean_and_uniform_differ_where_a_head_looks_somewhere(batch):
    """A head with a fixed pattern loses nothing by its mean, and everything by a uniform one."""
    model = constant_heads()
    fixed = torch.eye(12).roll(1, dims=1)

    def plant(pattern, hook):
        pattern[:, 0] = fixed
        return pattern

    model.add_hook("blocks.0.attn.hook_pattern", plant)
    table = ablate_patterns(
        model, batch.inputs, completion_losses(batch), groups={"planted": [(0, 0)], "other": [(0, 1)]}
    )
    loss = {(line.group, line.mode): line.loss for line in table.itertuples()}
    assert loss["planted", "mean"] == pytest.approx(loss["none", ""], abs=1e-6)
    assert abs(loss["planted", "uniform"] - loss["none", ""]) > 1e-4
    assert loss["other", "uniform"] == pytest.approx(loss["none", ""], abs=1e-6)
    every = ablate_patterns(model, batch.inputs, completion_losses(batch))
    assert set(every["group"]) == {"none", "L0H0", "L0H1", "L1H0", "L1H1", "L0", "L1"}
    assert len(every) == 1 + 6 * 3


def test_uniform_sees_nothing_of_the_future():
    config = ModelConfig(attention="softmax", d_model=8, n_heads=2)
    model = build_model(config, vocab_size=7, n_ctx=5)
    with torch.no_grad():
        model.blocks[0].attn.W_Q.zero_()
        model.blocks[0].attn.b_Q.zero_()
    tokens = torch.randint(0, 7, (4, 5), generator=torch.Generator().manual_seed(0))
    ablated = run_with_patterns(model, tokens, [(0, 0), (0, 1)], "uniform")
    torch.testing.assert_close(ablated, model(tokens), atol=1e-6, rtol=0)


def test_wrong_requests_in_one_line(batch):
    model = encoder()
    smaller = TASK.with_(n=3).batch(2, seed=0)
    with pytest.raises(UserError, match="matrices: expected 3 × 4, as this task has, got 9 cells"):
        heads(model, TASK, smaller)
    for value in (float("nan"), float("inf"), 5.0):
        with pytest.raises(UserError, match="value: expected one from -1 to 1"):
            copy_check(model, TASK, batch, (value,))
    with pytest.raises(UserError, match="mode: expected one of mean, uniform, zero, got 'off'"):
        run_with_patterns(model, batch.inputs, [(0, 0)], "off")
    with pytest.raises(UserError, match=r"heads: expected layers below 2 and heads below 2, got \(2, 0\)"):
        run_with_patterns(model, batch.inputs, [(2, 0)], "zero")
    with pytest.raises(UserError, match="at least 2 sequences"):
        run_with_patterns(model, batch.inputs[:1], [(0, 0)], "mean")
    with pytest.raises(UserError, match="names: expected parameters of both models, got nothing_like_it"):
        switched(model, encoder(1), ["nothing_like_it"])
    with pytest.raises(UserError, match="at least one parameter"):
        switched(model, encoder(1), [])


def test_patching_a_runs_own_activations_changes_nothing(batch):
    model = encoder()
    hooks = ["blocks.0.attn.hook_z", "blocks.1.attn.hook_pattern", "embed.hook_embed"]
    kept = activations(model, batch.inputs, hooks)
    out = run_patched(model, batch.inputs, [Patch(name, kept[name]) for name in hooks])
    torch.testing.assert_close(out, model(batch.inputs), atol=1e-6, rtol=0)


def test_negated_matrices(batch):
    other = negated(TASK, batch)
    assert torch.equal(other.targets, -batch.targets)
    assert torch.equal(TASK.token_values[other.inputs[batch.observed]], -batch.targets[batch.observed])
    assert torch.equal(other.masked, batch.masked)


def test_patching_into_negated_inputs(batch):
    model = encoder()
    table = patch_negated(model, TASK, batch, {"one": [(1, 0)], "layer": [(1, 0), (1, 1)]}, cells=[0, 5])
    line = {(row.place, row.cells): row for row in table.itertuples()}
    assert line["none", "masked"].recovery == 0
    # By hand: layer 1's z at two cells from the clean run.
    _, clean = model.run_with_cache(batch.inputs)

    def edit(z, hook):
        z[:, [0, 5]] = clean["blocks.1.attn.hook_z"][:, [0, 5]]
        return z

    out = model.run_with_hooks(negated(TASK, batch).inputs, fwd_hooks=[("blocks.1.attn.hook_z", edit)])
    out = out.detach()
    error = float((out - batch.targets).square()[batch.masked].mean())
    assert line["layer", "masked"].error_clean == pytest.approx(error, rel=1e-5)
    assert line["layer", "masked"].recovery == pytest.approx(
        1 - error / line["none", "masked"].error_clean, rel=1e-4
    )
    assert line["layer", "observed"].error_corrupted == pytest.approx(
        float((out + batch.targets).square()[batch.observed].mean()), rel=1e-5
    )


def test_switching_every_component_gives_the_other_model(batch):
    early, late = encoder(0), encoder(1)
    everything = [name for name, _ in early.named_parameters()]
    assert torch.equal(switched(early, late, everything)(batch.inputs), late(batch.inputs))
    models = both_ways(early, late, {"all": everything, "readout": ["readout.w", "readout.b"]})
    assert torch.equal(models["all", "early into late"](batch.inputs), early(batch.inputs))
    half = models["readout", "late into early"]
    assert torch.equal(half.readout.w, late.readout.w)
    assert torch.equal(half.embed.pos_embed.W_pos, early.embed.pos_embed.W_pos)


def test_the_released_groups():
    model = encoder()
    att, mlp = (set(named_like(model, RELEASED[name])) for name in ("att", "mlp"))
    assert att == {
        f"blocks.{layer}.attn.{kind}_{letter}" for layer in (0, 1) for kind in "Wb" for letter in "QKV"
    }
    left = {name for name, _ in model.named_parameters()} - att - mlp
    assert left == {
        f"blocks.{layer}.{name}" for layer in (0, 1) for name in ("attn.W_O", "attn.b_O", "ln1.w", "ln1.b")
    }


def planted(model: Encoder, pattern: torch.Tensor, layer: int = 0) -> Encoder:
    model.add_hook(f"blocks.{layer}.attn.hook_pattern", lambda _, hook: pattern.expand(40, 2, -1, -1))
    return model


def test_heads_by_where_they_look(batch):
    row = same_row(3, 4).float() / 3
    column = same_column(3, 4).float() / 2
    table = heads(planted(encoder(), torch.stack([row, column])), TASK, batch)
    assert len(table) == 2 * 2 * 2
    found = table.query("layer == 0 and queries == 'masked'").set_index("head")
    assert found["class"].tolist() == ["row", "col"]
    assert found.loc[0, "row"] == pytest.approx(1)
    assert found.loc[0, "entropy"] == pytest.approx(math.log(3))
    assert found.loc[1, "col"] == pytest.approx(1)
    assert found.loc[0, "omega"] == pytest.approx(found.loc[0, "obs"])


def test_losses_by_partner_against_a_loop(batch):
    partner = torch.arange(12).roll(-1)
    pattern = 0.1 / 12 + 0.9 * torch.nn.functional.one_hot(partner, 12).float()
    model = planted(encoder(), pattern.expand(2, -1, -1))
    line = by_partner(model, TASK, batch).query("layer == 0 and head == 1").iloc[0]
    errors = (model(batch.inputs).detach() - batch.targets).square()
    split: dict[bool, list[float]] = {True: [], False: []}
    size = []
    for b in range(40):
        for q in range(12):
            if batch.masked[b, q]:
                split[bool(batch.observed[b, partner[q]])].append(float(errors[b, q]))
                size.append(float(batch.targets[b, q]) ** 2)
    unit = sum(size) / len(size)
    assert line.error_observed == pytest.approx(sum(split[True]) / len(split[True]) / unit, rel=1e-4)
    assert line.error_other == pytest.approx(sum(split[False]) / len(split[False]) / unit, rel=1e-4)
    assert line.share_observed == pytest.approx(len(split[True]) / len(size))
    assert line.same_row == pytest.approx(9 / 12)  # all but the last of each row


def test_losses_by_what_is_determined(batch):
    found = by_identifiable(Copier(), TASK, batch)
    # A copier gives 0: the loss is the mean square, whatever is determined.
    assert 0.1 < found["loss_mask_identifiable"] < 0.6
    assert 0 < found["share_identifiable"] < 1
    two = MatrixCompletion(m=3, n=4, rank=2)
    assert set(by_identifiable(Copier(), two, batch).values()) == {None}


def test_permuted_positions(batch):
    model = encoder()
    before = completion_losses(batch)(model(batch.inputs))
    table = model.embed.pos_embed.W_pos.clone()
    assert permuted_positions(model, batch)["loss"] != pytest.approx(before["loss"], abs=1e-4)
    assert torch.equal(model.embed.pos_embed.W_pos, table)
    with torch.no_grad():
        model.embed.pos_embed.W_pos[:] = table[0]
    same = completion_losses(batch)(model(batch.inputs))
    assert permuted_positions(model, batch) == pytest.approx(same)


def test_least_squares_finds_a_linear_map_and_no_intercept(generator):
    weights = torch.randn(5, 3, generator=generator)
    x, x_test = torch.randn(50, 5, generator=generator), torch.randn(20, 5, generator=generator)
    fit = least_squares(x, x @ weights, x_test, x_test @ weights)
    assert fit.error < 1e-10
    assert fit.cosine == pytest.approx(1.0)
    assert fit.baseline == pytest.approx(float((x_test @ weights).square().mean()), rel=1e-5)
    # A constant cannot be read off centered features without an intercept.
    ones = torch.ones(50, 1)
    fit = least_squares(torch.cat([x, -x]), torch.cat([ones, ones]), x_test, ones[:20])
    assert fit.error == pytest.approx(1.0)
    assert fit.cosine is None
    with pytest.raises(UserError, match="finite"):
        least_squares(x * math.nan, ones, x_test, ones[:20])


def test_probes_read_what_is_there():
    table = probe_cells(encoder(), TASK, n_train=200, n_test=50)
    assert set(table["target"]) == {"element", "row", "svd", "svd_outer"}
    line = table.set_index(["layer", "target", "cells"])
    # Observed cells' values can be read at once, masked ones cannot be known by a random model.
    assert (
        line.loc[(0, "element", "observed"), "error"] < 0.7 * line.loc[(0, "element", "observed"), "baseline"]
    )
    assert line.loc[(0, "element", "masked"), "error"] > 0.9 * line.loc[(0, "element", "masked"), "baseline"]
    assert line.loc[(1, "svd_outer", "all"), "baseline"] == pytest.approx(1 / 9, rel=1e-3)
    assert line["cosine"].isna().tolist() == [target == "element" for target in table["target"]]


def test_a_probe_of_masked_cells_without_one_is_undefined():
    table = probe_cells(encoder(), TASK.with_(p_mask=1e-9), n_train=4, n_test=2)
    undefined = table["error"].isna()
    assert set(table["cells"][undefined]) == {"masked"}
    assert undefined.sum() == 2  # one a layer


def test_embeddings_of_numbers(generator):
    values = torch.tensor([0.5, -0.5, 0.25, -0.25, 1.0, -1.0])
    axes = torch.linalg.qr(torch.randn(8, 8, generator=generator)).Q
    rows = 3 * values.abs()[:, None] * axes[0] + values.sign()[:, None] * axes[1] + 5 * axes[2]
    found = number_embeddings(rows, values)
    assert found.values == (-1.0, -0.5, -0.25, 0.25, 0.5, 1.0)
    assert found.symmetry == pytest.approx(1.0)
    assert found.size_correlation > 0.95  # v and -v tie but for rounding
    assert found.sign_auc == 1.0
    assert found.norms[0] == pytest.approx((9 + 1 + 25) ** 0.5)
    assert found.project(rows).shape == (6, 2)
    skewed = number_embeddings(rows * torch.where(values > 0, 2.0, 1.0)[:, None], values)
    assert skewed.symmetry == pytest.approx(1 - 2 / 3, abs=1e-5)
    with pytest.raises(UserError, match="at least 3 different numbers"):
        number_embeddings(rows[:2], values[:2])


def test_positions_by_row_and_column():
    column = torch.nn.functional.one_hot(torch.arange(4).repeat(3), 4).float()
    found = position_cosines(column, same_row(3, 4), same_column(3, 4))
    assert found["col"] == pytest.approx(1.0)
    assert found["row"] == pytest.approx(-1 / 3)
    assert found["other"] == pytest.approx(-1 / 3)
