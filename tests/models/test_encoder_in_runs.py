"""The encoder kind in runs: parts, shapes, attention scaled on Ω, frozen parts, bad requests."""

from __future__ import annotations

import pytest
import torch

from mechplateau import RunConfig, train
from mechplateau.errors import ConfigError
from mechplateau.interventions import AttentionScale
from mechplateau.models.kinds import build, kind_of
from mechplateau.tasks.matrices import same_column, same_row

SETTINGS = {"model": {"n_layers": 2, "n_heads": 2, "d_model": 16}}


def config(**sections) -> RunConfig:
    return RunConfig.for_task("matrix_completion", preset="tiny", **{**SETTINGS, **sections})


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("inputs", ["tokens", "continuous"])
def test_shapes_are_those_of_the_model_and_each_parameter_has_a_part(norm, inputs):
    own = config(model={**SETTINGS["model"], "norm": norm, "inputs": inputs})
    model = build(own.model, own.task)
    shapes = kind_of(own.model).shapes(own.model, own.task)
    assert shapes == {name: tuple(p.shape) for name, p in model.named_parameters()}
    parts = kind_of(own.model).parts(own.model, own.task)
    members = [name for names in parts.values() for name in names]
    assert sorted(members) == sorted(shapes)
    assert {"tokens", "positions", "attention", "mlp", "readout"} <= set(parts)
    assert ("embedding_ln" in parts) == (norm == "post")


def test_attention_is_scaled_on_omega_of_masked_queries():
    own = config()
    task, model = own.task, build(own.model, own.task)
    batch = task.batch(6, seed=0)
    plain, before = (model.run_with_cache(batch.inputs)[1] for _ in range(2))
    handle = AttentionScale(c=3.0, layers=(1,)).attach(model, task)
    out, scaled = model.run_with_cache(batch.inputs)
    torch.testing.assert_close(model(batch.inputs), out)
    handle.remove()
    cross = same_row(4, 4) | same_column(4, 4)
    name = "blocks.1.attn.hook_pattern"
    for b in range(6):
        for q in range(16):
            for k in range(16):
                on = not batch.observed[b, q] and batch.observed[b, k] and cross[q, k]
                # The layer before is left alone, so this one's softmax is what it was.
                expected = plain[name][b, :, q, k] * (3.0 if on else 1.0)
                torch.testing.assert_close(scaled[name][b, :, q, k], expected, atol=1e-6, rtol=1e-5)
    assert torch.equal(plain["blocks.0.attn.hook_pattern"], scaled["blocks.0.attn.hook_pattern"])
    assert torch.equal(model(batch.inputs), model(batch.inputs))
    torch.testing.assert_close(model.run_with_cache(batch.inputs)[1][name], before[name])


def test_a_factor_of_one_changes_no_bit(tmp_path):
    training = {"steps": 3, "batch_size": 4}
    runs = [
        train(
            config(training=training, evaluation={"samples": 4}, interventions=interventions),
            runs_dir=tmp_path,
        )
        for interventions in (
            [],
            [{"kind": "attention_scale", "c": 1.0}],
            [{"kind": "attention_scale", "c": 2.0}],
        )
    ]
    weights = [run.model(3).readout.w for run in runs]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_run_that_was_stopped_goes_on_to_the_bit(tmp_path):
    def settings(**stop) -> RunConfig:
        return config(
            training={"steps": 8, "batch_size": 4, **stop},
            evaluation={"every": 2, "samples": 4},
            checkpoints={"every": 3},
        )

    whole = train(settings(), runs_dir=tmp_path / "whole")
    stopped = train(settings(stop_at=5), runs_dir=tmp_path / "stopped")
    assert stopped.metrics["step"].iloc[-1] < 8
    run = train(settings(), runs_dir=tmp_path / "stopped")
    assert run.path.name == whole.path.name
    assert run.metrics.equals(whole.metrics)
    ours, theirs = (dict(one.model(8).named_parameters()) for one in (run, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_parts_can_be_frozen(tmp_path):
    frozen = [{"kind": "freeze", "parts": ["attention", "positions"]}]
    run = train(
        config(training={"steps": 2, "batch_size": 4}, evaluation={"samples": 4}, interventions=frozen),
        runs_dir=tmp_path,
    )
    first, last = (dict(run.model(step).named_parameters()) for step in (0, 2))
    held = {name for name in first if torch.equal(first[name], last[name])}
    assert held == {
        name for name in first if ".attn." in name or ".ln1." in name or name == "embed.pos_embed.W_pos"
    }


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"n_heads": 3}}, r"model\.n_heads: expected a divisor of d_model"),
        ({"task": {"rank": 5}}, r"task\.rank: expected at most min\(m, n\) = 4, got 5"),
        ({"task": {"p_mask": 1.0}}, r"task\.p_mask: input should be less than 1"),
        (
            {"interventions": [{"kind": "attention_scale", "c": 2.0, "layers": [2]}]},
            r"layers: expected layers from 0 to 1, got 2",
        ),
        (
            {"interventions": [{"kind": "progress_reward", "weight": 1.0}]},
            "progress_reward acts on a model's attention, which a model of kind encoder does not let it",
        ),
    ],
)
def test_wrong_settings_in_one_line(sections, message):
    with pytest.raises(ConfigError, match=message) as caught:
        config(**{**sections, "model": {**SETTINGS["model"], **sections.get("model", {})}})
    assert "\n" not in str(caught.value)


def test_no_omega_no_scale():
    with pytest.raises(ConfigError, match="attention_scale needs an Ω"):
        RunConfig.for_task("matrix_completion_gpt", interventions=[{"kind": "attention_scale", "c": 2.0}])
