"""Tasks that are not a prompt and outputs train, stop, resume, sweep, report and are patched like any other."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mechplateau import RunConfig, cli, load_run, save_report, train
from mechplateau.circuits import over_run, patch_parameters, patch_sweep, probe
from mechplateau.circuits.parameter_patching import components
from mechplateau.circuits.patching import activations, run_patched
from mechplateau.errors import ConfigError, UserError
from mechplateau.runs import list_runs

from .toys import KILLED_AT, STEPS, TOYS, config_of, encoder_config

COLUMNS = {"toy_fill_in": ["step", "loss", "shown_loss"], "toy_windows": ["step", "loss"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What a notebook made: runs that were killed, and the same ones swept, in processes of their own."""
    folder = tmp_path_factory.mktemp("notebook")
    script = Path(__file__).with_name("toys.py")
    done = subprocess.run([sys.executable, script, folder], capture_output=True, text=True)
    assert sorted(done.stdout.split("\n")) == ["", *(f"{name} finished " for name in TOYS)], done.stderr[
        -2000:
    ]
    return folder


@pytest.fixture(params=TOYS)
def run(request, folder):
    return load_run(folder / "swept" / config_of(request.param).run_name)


def test_it_trains_and_keeps_what_any_run_keeps(run):
    assert run.status == "finished"
    assert list(run.metrics.columns) == COLUMNS[run.task.name]
    assert run.metrics["step"].tolist() == list(range(STEPS + 1))
    assert run.metrics["loss"].iloc[-1] < run.metrics["loss"].iloc[0]
    assert run.steps == (0, 3, 6, 9, 12)
    assert (run.missing, run.missing_maps) == ((), ())
    assert RunConfig.parse(run.config.data()) == run.config


def test_no_code_is_written_into_a_run_folder(folder):
    kinds = {path.suffix for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
    assert kinds - {".jsonl"} == {".yaml", ".json", ".parquet", ".safetensors"}


def resumes_to_the_bit(killed, whole):
    assert killed.status == "running"
    assert killed.reached == KILLED_AT
    resumed = train(killed.config, runs_dir=killed.path.parent, threads=1)
    assert resumed.name == whole.name
    assert resumed.metrics.equals(whole.metrics)
    for step in whole.steps:
        for name, tensor in whole.weights(step).items():
            assert torch.equal(tensor, resumed.weights(step)[name]), (step, name)


def test_a_killed_run_resumes_to_the_bit(run, folder):
    resumes_to_the_bit(load_run(folder / "killed" / run.name), run)


def test_a_killed_encoder_resumes_to_the_bit(folder):
    config = encoder_config()
    whole = train(config, runs_dir=folder / "whole", threads=1)
    assert whole.metrics["loss_mask"].notna().all()
    assert len(whole.steps) == 5
    resumes_to_the_bit(load_run(folder / "killed" / config.run_name), whole)


def test_a_measured_loss_is_that_of_the_checkpoints_model(run):
    model, batch = run.model(6), run.task.batch(400, seed=0)
    with torch.no_grad():
        loss = run.task.objective.loss(model(batch.inputs), batch).item()
    assert loss == pytest.approx(run.metrics["loss"][6], rel=0.5)
    assert run.model("after").training is False


def test_commands_and_report(run, folder, capfd, monkeypatch, tmp_path):
    def called(*arguments):
        monkeypatch.setattr(sys, "argv", ["mechplateau", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        return capfd.readouterr().out

    # The command quiets it for its whole process, which here goes on with other tests.
    monkeypatch.setattr(logging.getLogger("mechplateau_kernels"), "setLevel", lambda level: None)
    monkeypatch.setenv("COLUMNS", "200")
    swept = str(folder / "swept")
    assert run.name in called("list", "--runs-dir", swept)
    assert run.name in called("show", run.name, "--runs-dir", swept)
    assert "kind: toy" in called("config", run.task.name)
    loss = run.task.objective
    assert f"| loss | {loss.unit} | {loss.meaning} |" in called("columns", run.task.name)
    page = save_report(run, tmp_path / "report.html").read_text(encoding="utf-8")
    assert run.name in page
    assert "shown_loss" in page or run.task.name == "toy_windows"
    assert len(list_runs(folder / "swept")) == len(TOYS)


def test_activations_are_patched_one_by_one_and_in_sweeps(run):
    recipient, donor = run.model(0), run.model("after")
    batch, objective = run.task.batch(16, seed=3), run.task.objective
    result = patch_sweep(recipient, donor, batch, objective=objective, progress=None)
    with torch.no_grad():
        before, after = (objective.loss(model(batch.inputs), batch).item() for model in (recipient, donor))
    assert result.recipient["loss"] == pytest.approx(before, rel=1e-5)
    assert result.donor["loss"] == pytest.approx(after, rel=1e-5)
    hooks = ("hook_embed", "attn.hook_pattern", "hook_resid_post")
    assert set(result.table["hook"]) == set(hooks)
    line = result.table.query("hook == 'hook_resid_post' and position == 2").iloc[0]
    given = activations(donor, batch.inputs, ["hook_resid_post"])["hook_resid_post"]
    with torch.no_grad():
        hidden = activations(recipient, batch.inputs, ["hook_resid_post"])["hook_resid_post"].clone()
        hidden[:, 2] = given[:, 2]
        outputs = hidden @ recipient.W_U
        outputs = outputs[..., 0] if outputs.shape[-1] == 1 else outputs
        assert line["loss"] == pytest.approx(objective.loss(outputs, batch).item(), rel=1e-5)
    rows = patch_sweep(
        recipient,
        donor,
        batch,
        objective=objective,
        rows=[1],
        hooks=hooks[:1],
        positions="all",
        progress=None,
    )
    assert len(rows.table) == 1
    assert np.isnan(rows.table["accuracy"]).all() == (run.task.name == "toy_fill_in")
    assert run_patched(recipient, batch.inputs, []).equal(run_patched(recipient, batch.inputs, []))


def test_small_patches_are_estimated_from_one_gradient(run):
    """Compared with whole forwards; a position of the attention's input reaches the others."""
    recipient, donor = run.model("after"), run.model("after")
    with torch.no_grad():
        for parameter in donor.parameters():
            parameter += 1e-3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    batch, objective = run.task.batch(16, seed=3), run.task.objective
    result = patch_sweep(recipient, donor, batch, objective=objective, method="both", progress=None)
    exact, estimate = (result.table[name] - result.recipient["loss"] for name in ("loss", "loss_gradient"))
    assert exact.abs().max() > 1e-5
    assert (exact - estimate).abs().max() < 0.02 * exact.abs().max()
    assert result.rank_correlation["loss"] > 0.95
    assert result.table["logit_difference_gradient"].isna().all() == (run.task.name == "toy_fill_in")
    only = patch_sweep(recipient, donor, batch, objective=objective, method="gradient", progress=None).table
    assert np.allclose(only["loss"], result.table["loss_gradient"], rtol=0, atol=0)


def test_probes_take_a_batch_of_any_task(run):
    model, batch = run.model("after"), run.task.batch(96, seed=5)
    if run.task.name == "toy_windows":
        found = probe(model, batch, "output", hook="hook_resid_post", draws=1)
    else:
        with pytest.raises(
            UserError, match=r"label: expected position, output .* got 'output' for a Entries"
        ):
            probe(model, batch, "output", hook="hook_resid_post")

        def level(entries):
            return (entries.targets > 0).long()

        # The level is there for all but the hidden ones, whose inputs are zeros.
        found = probe(model, batch, level, hook="hook_embed", draws=1)
        hidden = probe(
            model, batch, lambda b: b.hidden[:, [1, 3]].long(), hook="hook_embed", rows=[1, 3], draws=1
        )
        assert hidden["test_accuracy"].item() == 1.0
        assert found["label"].item() == "level"
        assert found["control_accuracy"].isna().all()
    assert 0.3 < found["test_accuracy"].item() < 1.0


def test_parameters_are_patched_by_the_kinds_parts(run):
    recipient, donor = run.model(0), run.model("after")
    batch, objective = run.task.batch(16, seed=3), run.task.objective
    table = patch_parameters(recipient, donor, batch, objective=objective)
    names = {
        "toy_fill_in": {"attention", "embeddings", "read-out"},
        "toy_windows": {"W_E", "W_pos", "W_U", "attn"},
    }
    assert set(components(recipient)) == names[run.task.name]
    moved = table.query("component == 'attn' or component == 'attention'")
    with torch.no_grad():
        for name, parameter in recipient.named_parameters():
            if name.startswith("attn."):
                parameter.copy_(dict(donor.named_parameters())[name])
        loss = objective.loss(recipient(batch.inputs), batch).item()
    assert moved.query("mode == 'moved'")["loss"].item() == pytest.approx(loss, rel=1e-5)


def test_a_function_of_the_model_goes_over_its_checkpoints(run):
    norms = over_run(run, lambda model: model.W_U.norm(), progress=None)
    assert norms["step"].tolist() == [0, 3, 6, 9, 12]
    assert norms["value"].nunique() == 5


def test_parts_are_frozen_and_taken_over(tmp_path, folder):
    source = load_run(folder / "swept" / config_of("toy_fill_in").run_name)
    start = {"kind": "optimal_init", "source": str(source.checkpoint_path("after")), "parts": "attention"}
    run = train(config_of("toy_fill_in", seed=4, interventions=[start]), runs_dir=tmp_path, threads=1)
    for name, tensor in run.weights().items():
        assert torch.equal(tensor, source.weights()[name]) == name.startswith("attn."), name


def test_muon_is_refused_where_it_would_train_nothing(run, tmp_path):
    config = config_of(run.task.name, training={"steps": 2, "optimizer": "muon"})
    with pytest.raises(
        UserError, match=rf"training\.optimizer: muon trains .* of kind {config.model.kind} has no"
    ):
        train(config, runs_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_fit_is_one_line(run):
    for interventions, message in (
        (
            [{"kind": "attention_scale", "c": 2.0}],
            r"interventions\.0\.kind: attention_scale acts on a model's att",
        ),
        (
            [{"kind": "freeze", "parts": "KQ"}],
            r"interventions\.0\.parts: 'KQ' matches no tensor; expected one of",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            config_of(run.task.name, interventions=interventions)
    with pytest.raises(ConfigError, match="accuracy cannot be measured here: it needs a task of tokens"):
        config_of(run.task.name, evaluation={"measurements": ["accuracy"]})
    with pytest.raises(ConfigError, match=rf"model\.kind: {run.task.name} is learned by models of kind toy_"):
        config_of(run.task.name, model={"kind": "gpt"})
    if run.task.name == "toy_fill_in":
        batch = run.task.batch(4, seed=0)
        with pytest.raises(UserError, match=r"objective: expected the task's .* for a Entries, got none"):
            patch_sweep(run.model(0), run.model("after"), batch, progress=None)
