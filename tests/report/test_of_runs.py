"""From run folders to the report: runs that are whole, cut short, intervened on, or missing something."""

from __future__ import annotations

import re
import shutil
from html import unescape
from typing import Literal

import pytest
import torch

from mechplateau.circuits import transferred
from mechplateau.config import RunConfig
from mechplateau.errors import UserError
from mechplateau.models import generate
from mechplateau.report import run_view, save_report
from mechplateau.runs import Run, load_run
from mechplateau.tasks import MovingWindowSum, register_task
from mechplateau.training import train

from .conftest import metrics_of


def tiny(**sections):
    return RunConfig.for_task(
        sections.pop("name", "mws"),
        **{
            "task": {"n": 4, "p": 11, "max_num": 10},
            "model": {"d_model": 16},
            "training": {"steps": 12, "batch_size": 16},
            "evaluation": {"samples": 8},
            "checkpoints": {"every": 6},
            **sections,
        },
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tiny(), runs_dir=tmp_path_factory.mktemp("runs"), threads=1)


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run.path, tmp_path / run.name)


def test_claims_are_filled(run):
    claims = run_view(run).claims
    assert [claim.name for claim in claims] == [
        "A partial solution is known first",
        "Outputs repeat, or vary too little",
        "Hidden states collapse",
        "Attention is ahead of the loss",
    ]
    assert {claim.passed for claim in claims} == {None}  # twelve steps make no plateau
    assert "undefined: no plateau" in save_report(run, run.path / "r.html").read_text(encoding="utf-8")


def test_one_end_and_one_peak_in_every_place_of_a_report(copy, curves, monkeypatch):
    """On the paper's own curves: prose, cards, shading, claims, in whatever words."""
    metrics = metrics_of(curves)
    monkeypatch.setattr(Run, "metrics", metrics)
    html = unescape(save_report(copy).read_text(encoding="utf-8"))
    text = re.sub(r"<script.*?</script>|<[^>]+>", " ", html, flags=re.DOTALL)
    peaks = re.findall(r"ρ\s+([\d.]+)\s+at step (\d+)", text)
    assert len(peaks) >= 2
    assert len(set(peaks)) == 1
    ends = re.findall(r"from step (\d+) to (?:its drop at step )?(\d+)", text)
    # The claim on attention is read off where the loss is about to leave its level.
    (leaving,) = re.findall(r"leaves that level after step (\d+)", text)
    assert re.findall(r"at step (\d+): APM", text) == [leaving]
    first, last = metrics["step"].iloc[[0, -1]]
    for left, width in re.findall(r'class="band" x="([\d.]+)" y="0" width="([\d.]+)"', html):
        edges = [first + (last - first) * share / 100 for share in (float(left), float(left) + float(width))]
        assert edges == pytest.approx([float(step) for step in ends[0]], abs=1)
    assert len(ends) >= 2
    assert len(set(ends)) == 1


def test_no_run_is_one_line():
    with pytest.raises(UserError, match="save_report: expected at least one run"):
        save_report([])


def test_samples_are_generated_with_what_was_in_effect(tmp_path):
    """An imposed pattern is not in the weights: without it the model says something else."""
    source = train(tiny(seed=1), runs_dir=tmp_path, threads=1)
    run = train(
        transferred(tiny(training={"steps": 40, "batch_size": 16, "lr": 1e-2}), source, "pattern"),
        runs_dir=tmp_path,
        threads=1,
    )
    tokens = run.task.sample(6, seed=0)
    prompt = tokens[:, : run.task.prompt_length]
    model = run.model("after")
    bare = generate(model, prompt, 4)
    for intervention in run.config.interventions:
        intervention.attach(model, run.task)
    expected = generate(model, prompt, 4)
    assert not torch.equal(bare, expected)
    labels = run.task.token_labels
    shown = [sample.predicted for sample in run_view(run).checkpoints[-1].samples]
    assert shown == [tuple(labels[token] for token in row) for row in expected.tolist()]
    shutil.rmtree(source.path)
    # Its file is gone: the report stands without predictions, rather than with wrong ones.
    assert run_view(run).checkpoints[-1].samples == ()


def test_a_diverged_model_says_nothing(tmp_path):
    """Its tokens are undefined, not the last label of the vocabulary."""
    diverging = {"steps": 12, "batch_size": 16, "lr": 1e30, "optimizer": "sgd"}
    run = train(tiny(training=diverging), runs_dir=tmp_path, threads=1)
    first, last = (view.samples[0] for view in (run_view(run).checkpoints[0], run_view(run).checkpoints[-1]))
    assert None not in first.predicted
    assert last.predicted == (None,) * 4
    assert "SEP" in last.prompt
    assert None not in last.target


def test_runs_that_lack_something_still_have_a_report_that_says_so(copy):
    maps = sorted((copy / "maps").iterdir())
    maps[1].unlink()
    view = run_view(load_run(copy))
    assert [checkpoint.step for checkpoint in view.checkpoints] == [0, 6, 12]
    assert [bool(checkpoint.pattern) for checkpoint in view.checkpoints] == [True, False, True]
    assert view.checkpoints[1].samples
    assert view.notices == ("Maps are missing, of step 6: put a copy back.",)
    assert view.notices[0] in save_report(copy).read_text(encoding="utf-8")
    whole = maps[2].read_bytes()
    maps[2].write_bytes(whole[:100])
    damaged = run_view(load_run(copy))
    assert damaged.notices[1].startswith("Maps of step 12 are not shown: ")
    assert "damaged" in damaged.notices[1]
    maps[2].write_bytes(whole)
    sorted((copy / "checkpoints").iterdir())[-1].unlink()
    partial = run_view(load_run(copy))
    assert "Checkpoints are missing, of step 12: put a copy back." in partial.notices
    # What is left is not shown under the name of what is not there.
    assert partial.phase_steps() == {"before": 0}
    shutil.rmtree(copy / "maps")
    assert [checkpoint.pattern for checkpoint in run_view(load_run(copy)).checkpoints] == [(), ()]
    shutil.rmtree(copy / "checkpoints")
    view = run_view(load_run(copy))
    assert view.checkpoints == ()
    assert view.plateau is not None
    assert view.plateau.after is None
    assert save_report(copy).is_file()


def test_labels_must_be_one_a_token(tmp_path):
    @register_task
    class Mislabeled(MovingWindowSum):
        name: Literal["mislabeled-for-tests"] = "mislabeled-for-tests"  # type: ignore[assignment]

        @property
        def token_labels(self):
            return ("a", "b")

    with pytest.raises(UserError, match="token_labels: expected 12, one a token, got 2"):
        train(tiny(name="mislabeled-for-tests"), runs_dir=tmp_path, threads=1)
    assert list(tmp_path.iterdir()) == []
