"""Tools over all checkpoints of a run, and the questions the toolkit is for, on a small trained one."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from mechplateau.circuits.ablation import ablate_attention, target_entries
from mechplateau.circuits.composition import composition_scores
from mechplateau.circuits.over_training import over_run
from mechplateau.circuits.parameter_patching import patch_parameters
from mechplateau.circuits.positions import ablate_positions
from mechplateau.circuits.sweep import patch_sweep
from mechplateau.errors import RunError, UserError
from mechplateau.training import train

from .trained import toy


def test_a_tool_is_applied_to_each_checkpoint(toy_run, heard):
    tokens, rows = toy_run.task.sample(16, seed=0), toy_run.task.output_rows
    table = over_run(toy_run, ablate_positions, tokens, rows=rows, methods=["zero"], progress=heard)
    assert table.columns[0] == "step"
    assert list(dict.fromkeys(table["step"])) == list(toy_run.steps)
    for step in (0, toy_run.steps[-1]):
        alone = ablate_positions(toy_run.model(step), tokens, rows=rows, methods=["zero"])
        same = table[table["step"] == step].drop(columns="step").reset_index(drop=True)
        assert same.equals(alone)
    number = len(toy_run.steps)
    assert heard.counts[-1] == ("ablate_positions", number, number)


@pytest.mark.parametrize(
    "number",
    [lambda norm: norm, lambda norm: norm.item(), lambda norm: norm.numpy(), lambda norm: norm[None]],
)
def test_a_number_of_each_checkpoint_is_a_column_of_values(toy_run, number):
    steps = toy_run.steps[-2:]
    table = over_run(toy_run, lambda model: number(model.W_Q.detach().norm()), steps=steps)
    assert list(table.columns) == ["step", "value"]
    assert list(table["step"]) == list(steps)
    for step, value in zip(steps, table["value"], strict=True):
        assert value == toy_run.weights(step)["blocks.0.attn.W_Q"].norm().item()


def test_an_undefined_number_is_nan(toy_run):
    table = over_run(toy_run, lambda model: float("nan"), steps=[0])
    assert table["value"].isna().all()


def test_composition_over_training_begins_at_chance(tmp_path):
    run = train(toy(model={"n_layers": 2}, training={"steps": 2}), runs_dir=tmp_path, threads=1)
    table = over_run(run, composition_scores)
    assert list(table["step"].unique()) == [0, 2]
    assert set(table["kind"]) == {"Q", "K", "V"}
    assert (table.loc[table["step"] == 0, "z"].abs() < 4).all()


def test_steps_and_tools_that_do_not_fit_are_errors(toy_run):
    with pytest.raises(RunError, match="no checkpoint at step 7"):
        over_run(toy_run, ablate_positions, steps=[7])
    for run, tool, steps, message in (
        (toy_run.path, ablate_positions, None, "run: expected a run .* got PosixPath"),
        (toy_run, None, None, "tool: expected a function of a model, got NoneType"),
        (toy_run, ablate_positions, "after", "steps: expected a list of steps or phases, got 'after'"),
    ):
        with pytest.raises(UserError, match=message):
            over_run(run, tool, steps=steps)
    for result in (None, "3", [1.0], torch.zeros(2)):
        with pytest.raises(UserError, match=r"<lambda> returned .*; expected a table, .* or one number"):
            over_run(toy_run, lambda model, result=result: result, steps=[0])
    with pytest.raises(UserError, match="a table with a column step, which"):
        over_run(toy_run, lambda model: pd.DataFrame({"step": [1]}), steps=[0])
    with pytest.raises(UserError, match="and this model has one"):
        over_run(toy_run, composition_scores)


def test_only_the_entries_on_omega_are_needed_after_the_plateau(toy_run):
    task = toy_run.task
    tokens, model = task.sample(64, seed=0), toy_run.model("after")
    lost = {
        which: ablate_attention(model, tokens, target_entries(task, tokens, 1, which), rows=task.output_rows)
        for which in ("on", "off")
    }
    assert lost["on"]["accuracy"].mean() > 0.95
    assert lost["on"]["accuracy_ablated"].mean() < 0.3
    assert lost["off"]["accuracy_ablated"].mean() > lost["on"]["accuracy_ablated"].mean() + 0.3


def test_moving_the_solution_into_the_plateau(toy_run):
    """Of the whole donor nothing is missing; of its attention alone the loss is not yet recovered."""
    task = toy_run.task
    tokens, rows = task.sample(32, seed=0), task.output_rows
    during, after = toy_run.model("during"), toy_run.model("after")
    result = patch_sweep(during, after, tokens, rows=rows, positions="all")
    recovered = result.table.set_index("hook")["recovered_loss"].astype(float)
    assert result.recipient["loss"] > 1.5
    assert result.donor["loss"] < 0.3
    assert recovered["unembed.hook_out"] == pytest.approx(1.0)
    assert recovered["blocks.0.hook_resid_post"] > recovered["blocks.0.attn.hook_pattern"]
    table = patch_parameters(during, after, tokens, rows=rows).set_index(["component", "mode"])
    assert (
        table.loc[("L0 attention", "kept"), "recovered_loss"] < 0.5
    )  # without the learned attention, no solution
