"""Measurements of matrix completion: columns, one forward, what they equal, and that measuring changes nothing."""

from __future__ import annotations

import pytest
import torch

from mechplateau import RunConfig, train
from mechplateau.circuits.completion import completion_losses, heads
from mechplateau.errors import ConfigError
from mechplateau.measurements import Setting, columns_of
from mechplateau.metrics.completion import cosine_among
from mechplateau.models.encoder import layer_output
from mechplateau.models.kinds import build
from mechplateau.training.measure import Measurer

SMALL = {"model": {"n_layers": 2, "n_heads": 2, "d_model": 16}}
CONFIG = RunConfig.for_task("matrix_completion", preset="tiny", **SMALL)


@pytest.fixture
def model():
    return build(CONFIG.model, CONFIG.task, generator=torch.Generator().manual_seed(1))


def test_one_row_is_what_the_parts_say(model):
    batch = CONFIG.task.batch(30, seed=3)
    row = Measurer(Setting(CONFIG.task, CONFIG.model)).row(model, 7, batch)
    assert row["step"] == 7
    assert tuple(row) == tuple(column.name for column in columns_of(Setting(CONFIG.task, CONFIG.model)))
    assert all(value is not None for value in row.values())
    losses = completion_losses(batch)(model(batch.inputs))
    for name, value in losses.items():
        assert row[name] == pytest.approx(value, rel=1e-5)
    _, cache = model.run_with_cache(batch.inputs)
    for layer in (0, 1):
        hidden = cache[layer_output(CONFIG.model, layer)]
        assert row[f"cos_mask_L{layer}"] == pytest.approx(float(cosine_among(hidden, batch.masked)), abs=1e-5)
    table = heads(model, CONFIG.task, batch)
    for line in table.to_dict("records"):
        at = f"{'mask' if line['queries'] == 'masked' else 'obs'}_L{line['layer']}H{line['head']}"
        assert row[f"apm_{at}"] == pytest.approx(line["omega"], abs=1e-6)
        assert row[f"fixed_{at}"] == pytest.approx(line["fixed"], abs=1e-6)
        assert row[f"entropy_{at}"] == pytest.approx(line["entropy"], abs=1e-5)
    first = table.query("layer == 0 and queries == 'masked'")
    assert row["apm_mask_L0"] == pytest.approx(first["omega"].mean(), abs=1e-6)


def test_one_forward_serves_them_all(model):
    calls = []
    model.add_hook("hook_full_embed", lambda x, hook: calls.append(len(x)))
    Measurer(Setting(CONFIG.task, CONFIG.model)).row(model, 0, CONFIG.task.batch(8, seed=0))
    assert calls == [8]


def test_without_a_masked_cell_it_is_null(model):
    batch = CONFIG.task.batch(4, seed=0)
    everything = type(batch)(batch.inputs.clamp(min=1), batch.targets, torch.ones_like(batch.observed))
    row = Measurer(Setting(CONFIG.task, CONFIG.model)).row(model, 0, everything)
    for name in ("loss_mask", "mask_value", "spread", "cos_mask_L0", "apm_mask_L1", "fixed_mask_L0H0"):
        assert row[name] is None
    assert row["loss_obs"] == pytest.approx(row["loss"])


def test_every_size_of_a_mixture_is_measured():
    config = RunConfig.for_task(
        "matrix_completion",
        task={"m": 3, "n": 3, "rank": 1, "mixture": [2, 3]},
        model=SMALL["model"],
    )
    model, measurer = build(config.model, config.task), Measurer(Setting(config.task, config.model))
    rows = {}
    for seed in range(8):
        batch = config.task.batch(20, seed=seed)
        rows[batch.inputs.shape[1]] = measurer.row(model, seed, batch)
    assert set(rows) == {4, 9}
    assert all(row["apm_mask_L0"] is not None for row in rows.values())
    assert not measurer.fixed_shapes


def test_measuring_changes_nothing(tmp_path):
    runs = [
        train(
            CONFIG.with_(training={"steps": 6, "batch_size": 8}, evaluation={"every": every, "samples": 8}),
            runs_dir=tmp_path,
        )
        for every in (1, 6)
    ]
    one, other = (dict(run.model(6).named_parameters()) for run in runs)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert (one["embed.embed.W_E"][0] == 0).all()


def test_what_a_gpt_writes_against_a_loop():
    config = RunConfig.for_task(
        "matrix_completion_gpt", preset="tiny", task={"m": 2, "n": 2}, model={"d_model": 16}
    )
    task = config.task
    model = build(config.model, task, generator=torch.Generator().manual_seed(0))
    batch = task.batch(40, seed=0)
    row = Measurer(Setting(task, config.model)).row(model, 0, batch)
    right: dict[bool, list[bool]] = {True: [], False: []}
    for sequence in batch.tokens:
        seen = sequence[None, :5]
        for cell in range(4):
            seen = torch.cat([seen, model(seen)[:, -1].argmax(-1)[None]], dim=1)
            right[bool(sequence[cell] != 0)].append(bool(seen[0, -1] == sequence[5 + cell]))
    assert row["accuracy_obs"] == pytest.approx(sum(right[True]) / len(right[True]))
    assert row["accuracy_mask"] == pytest.approx(sum(right[False]) / len(right[False]))
    every = sum(right[True]) + sum(right[False])
    assert row["accuracy"] == pytest.approx(every / 160)


def test_other_tasks_and_models_are_refused():
    with pytest.raises(ConfigError, match="cell_losses cannot be measured here: it needs a task of matrices"):
        RunConfig.for_task("mws", evaluation={"measurements": ["cell_losses"]})
    with pytest.raises(ConfigError, match="completed_cells cannot be measured here: it needs matrices"):
        RunConfig.for_task("matrix_completion", evaluation={"measurements": ["completed_cells"]})
