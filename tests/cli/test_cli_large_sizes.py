"""A size that is made for a GPU says so, with what a step costs and how fast it is, and is resumable."""

from __future__ import annotations

from mechplateau.cli import studies
from mechplateau.training import arithmetic

SMALL = [
    "--set=task={name: matrix_completion, m: 3, n: 3, rank: 1, value_max: 1, decimals: 0}",
    "--set=model={kind: encoder, n_layers: 1, n_heads: 1, d_model: 8}",
    "--set=training.steps=4",
    "--set=training.batch_size=4",
    "--set=evaluation.samples=4",
]


def test_train_says_what_a_step_costs(run_cli, monkeypatch):
    monkeypatch.setattr(arithmetic, "LARGE", 1e-9)
    code, _, err = run_cli("train", "matrix_completion", *SMALL)
    assert code == 0
    assert "TFLOP a step: made for a GPU (--device cuda). Ctrl-C saves, and the same command resumes." in err
    assert "s each here" in err
    # The loss whose plateau it is, and nothing that this task does not have.
    assert "step 4/4  loss " in err
    assert "  loss_mask " in err
    assert "accuracy" not in err
    _, _, err = run_cli("train", "matrix_completion", *SMALL)  # it is finished
    assert "TFLOP" not in err


def test_a_figure_at_the_papers_size_says_so(run_cli, monkeypatch):
    monkeypatch.setattr(studies, "_made", lambda *given: [])
    said = "matrix at the scale paper: 2.15 TFLOP a step, which is made for a GPU (--device cuda). It can be stopped,"
    assert said in run_cli("figure", "matrix/1", "--scale", "paper")[2]
    assert "TFLOP" not in run_cli("figure", "matrix/1", "--scale", "tiny")[2]
    assert "TFLOP" not in run_cli("figure", "2", "--scale", "paper")[2]
