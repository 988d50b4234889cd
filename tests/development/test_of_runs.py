"""Learning coefficients of tasks and of runs: the task's own objective and data, kept beside the run, resumable."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch

from mechplateau.config import RunConfig
from mechplateau.development import Fresh, llc, llc_over_run
from mechplateau.development import over_checkpoints as module
from mechplateau.development.learning_coefficient import task_losses
from mechplateau.development.of_runs import _llc_of_run, curvature_of, kept_llcs
from mechplateau.errors import UserError
from mechplateau.objectives import Batch, SquaredError
from mechplateau.report import save_report
from mechplateau.report.development import llc_section
from mechplateau.runs import load_run
from mechplateau.tasks import MovingWindowSum
from mechplateau.training import train
from mechplateau.training.executor import JobResult
from mechplateau.training.loop import torch_threads

SETTINGS = {"step_size": 1e-5, "n_beta": 50.0, "chains": 2, "draws": 3, "batch_size": 8, "elasticity": False}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = RunConfig.for_task(
        "mws",
        task={"n": 3, "k": 2, "p": 5, "max_num": 4},
        model={"d_model": 8},
        training={"steps": 6, "batch_size": 8},
        checkpoints={"every": 3},
        evaluation={"samples": 8},
    )
    return train(config, runs_dir=tmp_path_factory.mktemp("runs"), threads=1)


def test_a_task_brings_its_objective_data_and_trivial_loss(run):
    model, task = run.model("after"), run.task
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    settings = {"step_size": 1e-5, "n_beta": 50.0, "chains": 2, "draws": 3, "step_check": False}
    found = llc(model, task, **settings, batch_size=8, seed=1)
    assert found.trivial_loss == task.trivial_loss

    def by_hand(model, tokens):
        logits = model(tokens[:, :-1])
        return torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")

    data = Fresh(lambda n, generator: task.sample(n, generator), batch_size=8, seed=1)
    expected = llc(model, by_hand, data, **settings, seed=1)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-6)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_weighted_entries_keep_the_objectives_mean():
    class Marked(Batch):
        pass

    class Task:
        objective = SquaredError("marked")

    batch = Batch(torch.randn(4, 3), torch.randn(4, 3))
    object.__setattr__(batch, "marked", torch.rand(4, 3) > 0.4)
    losses = task_losses(Task())(lambda inputs: inputs * 2, batch)
    expected = SquaredError("marked").loss(batch.inputs * 2, batch)
    assert losses.mean() == pytest.approx(float(expected), rel=1e-6)


def test_the_trivial_loss_is_the_entropy_of_each_place():
    """x₁ x₂ (x₀ is not predicted), SEP, y₀ = x₀, y₁ and y₂ sums of two of 1 … 4 modulo 5."""
    task = MovingWindowSum(n=3, k=2, p=5, max_num=4)
    sums = np.bincount([(a + b) % 5 for a in range(1, 5) for b in range(1, 5)], minlength=5) / 16
    of_sum = -(sums * np.log(sums)).sum()
    assert task.trivial_loss == pytest.approx((3 * math.log(4) + 0 + 2 * of_sum) / 6, abs=1e-3)


def test_over_a_run_each_checkpoint_is_kept_and_resumed(run, monkeypatch):
    whole = llc_over_run(run, **SETTINGS)
    assert list(whole.table["step"]) == [0, 3, 6]
    assert set(whole.table["verdict"]) <= {"undetermined", "sliding", "saturated", "step too large"}
    alone = llc(run.model(3), run.task, localization=100.0, **SETTINGS)
    line = whole.table.set_index("step").loc[3]
    assert line["llc"] == alone.llc
    assert line["reason"] == alone.reason
    np.testing.assert_array_equal(whole.traces[3]["losses"], alone.losses)
    np.testing.assert_allclose(whole.running(3), alone.running)
    assert pd.isna(line["elasticity"])

    def never(*args, **options):
        raise AssertionError("measured again")

    monkeypatch.setattr(module, "llc", never)
    again = llc_over_run(load_run(run.path), ["after", 0], **SETTINGS)
    pd.testing.assert_frame_equal(
        again.table.sort_values("step").reset_index(drop=True),
        whole.table[whole.table["step"] != 3].reset_index(drop=True),
    )
    with pytest.raises(AssertionError, match="measured again"):
        llc_over_run(run, [0], **{**SETTINGS, "seed": 1})


def test_a_note_that_is_damaged_or_anothers_is_made_again(run):
    table = llc_over_run(run, [6], **SETTINGS).table
    notes = run.notes("llc", {"other": 1})
    assert notes.read(6) is None
    (path,) = run.path.glob("notes/llc-*/step_000006.safetensors")
    kept = path.read_bytes()
    path.write_bytes(kept[:100])
    pd.testing.assert_frame_equal(llc_over_run(run, [6], **SETTINGS).table, table)
    assert path.read_bytes() == kept


def test_lost_chains_are_a_verdict_without_numbers(run):
    found = llc_over_run(run, [6], **{**SETTINGS, "step_size": 1e6, "localization": 1e6})
    line = found.table.iloc[0]
    assert line["verdict"] == "chain lost"
    assert line["lost"] == 2
    assert pd.isna(line["llc"])
    with pytest.raises(UserError, match="no chains here"):
        found.running(6)


def test_n_is_what_the_run_trains_on_and_progress_is_told(run, heard):
    found = llc_over_run(
        run,
        [0],
        **{**SETTINGS, "n_beta": None},
        progress=heard,
    )
    assert found.n_beta == pytest.approx(48 / math.log(48))
    what, done, total = heard.counts[-1]
    assert (what, done) == ("step 0: chain steps", total)
    assert found.affine.saturated is None
    with pytest.raises(UserError, match="no checkpoint at step 5"):
        llc_over_run(run, [5], **SETTINGS)
    with pytest.raises(UserError, match="parts: expected a list"):
        llc_over_run(run, [0], **SETTINGS, parts="blocks.0.*")


def test_what_was_found_is_found_again_and_shown(run, tmp_path):
    table = llc_over_run(run, **SETTINGS).table
    llc_over_run(run, [0], **{**SETTINGS, "seed": 7})
    kept = kept_llcs(run)
    sizes = [len(one.table) for one in kept]
    assert sizes == sorted(sizes, reverse=True)
    pd.testing.assert_frame_equal(next(one.table for one in kept if len(one.table) == 3), table)
    assert "Over these checkpoints λ̂ is" in kept[0].beside_the_loss
    section = llc_section(run)
    assert [row[0] for row in section.rows] == ["0", "3", "6"]
    assert {row[6] for row in section.rows} == set(table["verdict"])
    assert section.picture.save(tmp_path / "llc.png").stat().st_size > 10_000
    page = save_report(run, tmp_path / "report.html").read_text()
    assert "Learning coefficient" in page
    assert table["reason"][0].split(";")[0][:20] in page


def test_in_processes_of_their_own_they_are_the_same_to_the_bit(run):
    """Without a step size, which asks for the curvature first; a step that was found already is not made again."""
    given = {**SETTINGS, "step_size": None, "seed": 3}
    with torch_threads(1):
        whole = llc_over_run(run, [3, 6], **given)
    bits = {path: path.read_bytes() for path in run.path.glob("notes/*/*.safetensors")}
    for path in bits:
        if path.name == "step_000003.safetensors":
            path.unlink()
    again = llc_over_run(load_run(run.path), [3, 6], **given, jobs=2)
    pd.testing.assert_frame_equal(again.table, whole.table)
    alike = [path for path in bits if path.exists() and path.name == "step_000003.safetensors"]
    assert len(alike) == 2
    assert all(path.read_bytes() == bits[path] for path in alike)
    assert not [path for path in run.path.glob("notes/**/*") if path.name.startswith(".")]


class Failing:
    """An executor whose first job ends well and whose others fail."""

    def do(self, jobs, *, workers, finished, on_result):
        results = []
        for job in jobs:
            if not results:
                _llc_of_run(job.folder, 1, **job.arguments)
            outcome = ("failed", "mechplateau: no space") if results else ("finished", "")
            results.append(JobResult(job, *outcome))
            on_result(results[-1])
        return results


def test_what_fails_elsewhere_is_named_and_the_rest_is_kept(run, monkeypatch):
    given = {**SETTINGS, "draws": 4}
    for step in run.steps:
        curvature_of(run, step, 8, 0, None, "cpu")
    with pytest.raises(UserError, match=r"^step 3: no space; rerun the same command to resume$"):
        llc_over_run(run, [0, 3, 6], **given, executor=Failing())
    assert not [path for path in run.path.glob("notes/**/*") if path.name.startswith(".")]
    made = []
    original = module.llc
    monkeypatch.setattr(module, "llc", lambda *a, **k: made.append(1) or original(*a, **k))
    llc_over_run(run, [0, 3, 6], **given)
    assert len(made) == 2
