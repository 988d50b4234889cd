"""Regression in context and text train like any other task, to the bit after an interruption too."""

from __future__ import annotations

import pytest
import torch

from mechplateau import RunConfig, load_run, train
from mechplateau.circuits import composition_scores, over_run, patch_sweep
from mechplateau.errors import ConfigError
from mechplateau.tasks.text import _loaded
from mechplateau.training.interrupt import RunInterrupted

TEXT = " ".join(f"the cat{i % 7} sat on mat{i * i % 11}, and {i * 37 % 101} others did." for i in range(400))
SMALL = {"model": {"d_model": 8, "n_heads": 2}, "checkpoints": {"every": 3}, "seed": 3}


def regression(**training) -> RunConfig:
    settings = {"steps": 6, "batch_size": 8, "schedule": "one_cycle", **training}
    return RunConfig.for_task(
        "in_context_regression", task={"d": 2, "n_pairs": 3}, training=settings, **SMALL
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("text")
    (path / "a.txt").write_text(TEXT, encoding="utf-8")
    return path


def text(folder, **training) -> RunConfig:
    task = {"folder": str(folder), "vocab_size": 262, "wide_vocab_size": 275, "n_ctx": 12, "repeated": 0.5}
    task["segment"] = [2, 5]
    return RunConfig.for_task(
        "text",
        task=task,
        training={"steps": 6, "batch_size": 8, **training},
        evaluation={"every": 3},
        **SMALL,
    )


class StopAt:
    def __init__(self, step: int):
        self.step = step

    def on_step(self, step, row):
        if step == self.step:
            raise RunInterrupted("here", step)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, folder):
    where = tmp_path_factory.mktemp("runs")
    return {config.task.name: train(config, runs_dir=where) for config in (regression(), text(folder))}


@pytest.mark.parametrize("name", ["in_context_regression", "text"])
def test_an_interrupted_run_goes_on_to_the_bit(name, runs, tmp_path):
    whole = runs[name]
    with pytest.raises(RunInterrupted):
        train(whole.config, runs_dir=tmp_path, listeners=[StopAt(4)])
    resumed = train(whole.config, runs_dir=tmp_path)
    assert resumed.metrics.equals(whole.metrics)
    for step in (0, 3, 6):
        before, after = whole.weights(step), resumed.weights(step)
        assert before.keys() == after.keys()
        assert all(torch.equal(before[part], after[part]) for part in before)


@pytest.mark.parametrize("name", ["in_context_regression", "text"])
def test_the_table_has_its_columns_and_the_loss_falls(name, runs):
    run = runs[name]
    documented = [column.name for column in run.columns]
    assert documented == list(run.metrics.columns)
    assert run.metrics["loss"].is_monotonic_decreasing
    never = {column for column in documented if run.metrics[column].isna().all()}
    # Three pairs have no fourth, and six tokens are no half of eight to begin with.
    short = {"icl_1_4", "icl_4_8", "icl_1_4_quiet", "icl_4_8_quiet", "repeat_gain"}
    assert never <= short | {"gram_loss_4", "gram_score_4", "gram_score_overall_4"}


def test_the_run_of_a_seed_starts_from_the_released_weights_of_that_seed(runs):
    from mechplateau.models.regressor import build_regressor

    run = runs["in_context_regression"]
    fresh = build_regressor(
        run.config.model, d_token=3, n_pairs=3, generator=torch.Generator().manual_seed(run.config.seed)
    )
    assert torch.equal(run.weights(0)["embed.W_E"], fresh.embed.W_E)


def test_frozen_biases_stay_zero(runs):
    weights = runs["in_context_regression"].weights(6)
    assert not any(weights[f"blocks.{layer}.attn.b_{kind}"].any() for layer in (0, 1) for kind in "QKVO")


def test_composition_over_the_checkpoints_of_both(runs):
    for run in runs.values():
        table = over_run(run, composition_scores, progress=None)
        assert set(table["step"]) == {0, 3, 6}
        assert table["score"].between(0, 1).all()


@pytest.mark.parametrize("name", ["in_context_regression", "text"])
def test_patching_moves_what_a_hook_by_hand_moves(name, runs):
    run = runs[name]
    recipient, donor = run.model(0), run.model(6)
    batch = run.task.batch(4, seed=0)
    hook = "blocks.0.hook_attn_out"
    result = patch_sweep(recipient, donor, batch, objective=run.task.objective, hooks=[hook], progress=None)
    _, cache = donor.run_with_cache(batch.inputs, names_filter=hook)
    for position in (0, 3):

        def moved(activation, hook, position=position):
            activation = activation.clone()
            activation[:, position] = cache[hook.name][:, position]
            return activation

        with torch.no_grad():
            outputs = recipient.run_with_hooks(batch.inputs, fwd_hooks=[(hook, moved)])
        expected = float(run.task.objective.loss(outputs, batch))
        line = result.table[result.table["position"] == position]
        assert line["loss"].item() == pytest.approx(expected, abs=1e-5)


def test_the_report_tells_the_story_of_stages(runs, tmp_path):
    from mechplateau.report import save_report
    from mechplateau.studies.stages.story import stage_sections

    titles = {name: [section.title for section in stage_sections(run)] for name, run in runs.items()}
    assert titles == {
        "in_context_regression": ["Stages"],
        "text": ["Stages", "Heads", "The heads that matter"],
    }
    heads = stage_sections(runs["text"])[1]
    assert [row[0] for row in heads.rows] == ["L0H0", "L0H1", "L1H0", "L1H1"]
    last = f"{runs['text'].metrics['prefix_B_L1H1'].iloc[-1]:.3f}"
    assert heads.rows[3][heads.columns.index("prefix B, step 6")] == last
    page = save_report(runs["text"], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "The heads that matter" in page


@pytest.mark.parametrize(
    ("name", "measured", "titles"),
    [
        ("in_context_regression", ["loss"], ["Stages"]),
        ("text", ["loss"], ["Stages"]),
        ("text", ["loss", "language_heads"], ["Stages", "Heads", "The heads that matter"]),
    ],
)
def test_a_report_of_a_run_without_the_scores_of_stages_says_so(name, measured, titles, folder, tmp_path):
    from mechplateau.report import save_report
    from mechplateau.studies.stages.story import stage_sections

    config = regression() if name == "in_context_regression" else text(folder)
    run = train(config.with_(evaluation={"measurements": measured}), runs_dir=tmp_path)
    sections = stage_sections(run)
    assert [section.title for section in sections] == titles
    none = sections[0].text[-1] == "None of the scores that define stages was measured."
    assert none == (sections[0].picture is None) == (measured == ["loss"])
    save_report(run, tmp_path / "page.html")


@pytest.mark.parametrize("name", ["in_context_regression", "text"])
@pytest.mark.parametrize("part", ["QK_only", "OV_only"])
def test_a_half_of_attention_can_be_frozen(name, part, folder, tmp_path):
    config = regression() if name == "in_context_regression" else text(folder)
    frozen = config.with_(interventions=[{"kind": "freeze", "parts": [part]}])
    run = train(frozen, runs_dir=tmp_path)
    first, last = (dict(run.model(step).named_parameters()) for step in (0, 6))
    kept = {"QK_only": ("W_Q", "W_K"), "OV_only": ("W_V", "W_O")}[part]
    for weight in ("W_Q", "W_K", "W_V", "W_O"):
        name = f"blocks.0.attn.{weight}"
        assert torch.equal(first[name], last[name]) == (weight in kept)


def test_the_shortest_rows_of_text_can_be_measured(folder, tmp_path):
    config = text(folder).with_(task={"n_ctx": 6, "segment": [2, 3]})
    assert train(config, runs_dir=tmp_path).metrics["loss"].notna().all()


def test_a_text_that_changed_stops_a_run_before_anything_is_written(tmp_path, folder):
    copy = tmp_path / "text"
    copy.mkdir()
    (copy / "a.txt").write_text(TEXT, encoding="utf-8")
    config = text(copy)
    with pytest.raises(RunInterrupted):
        train(config, runs_dir=tmp_path / "runs", listeners=[StopAt(2)])
    (copy / "a.txt").write_text("something else " * 300, encoding="utf-8")
    _loaded.cache_clear()  # as in another process
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")}
    with pytest.raises(ConfigError, match="no longer the one this run was configured with"):
        train(config, runs_dir=tmp_path / "runs")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")} == before
    other = text(copy, steps=7)
    (copy / "a.txt").write_text(TEXT, encoding="utf-8")
    _loaded.cache_clear()
    with pytest.raises(ConfigError, match="no longer"):
        train(other, runs_dir=tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


def test_a_finished_run_opens_without_its_text(runs, folder, tmp_path):
    hidden = folder.with_name("gone")
    folder.rename(hidden)
    try:
        run = load_run(runs["text"].path)
        assert run.model(6)(torch.zeros(1, 4, dtype=torch.int64)).shape == (1, 4, 262)
    finally:
        hidden.rename(folder)
