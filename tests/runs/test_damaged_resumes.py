"""Stopped runs with something missing or damaged: they resume from what is whole, or are left as they are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mechplateau.errors import RunError, UserError
from mechplateau.runs import load_run
from mechplateau.runs.checkpoints import read_tensors, save_tensors
from mechplateau.training import train

from .tiny import CONFIG, contents, rewritten


def refused_before_training(root: Path, message: str) -> None:
    """One line, and nothing in the folder is touched."""

    class NoStep:
        def on_step(self, step, row):
            raise AssertionError("it trained")

    (root / ".tmp-1-x").touch()  # not even what a kill left is tidied
    before = contents(root)
    with pytest.raises(UserError, match=message) as caught:
        train(CONFIG, runs_dir=root.parent, listeners=[NoStep()])
    assert "\n" not in str(caught.value)
    assert contents(root) == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("checkpoints/step_000000.safetensors", "belongs to another run"),
        ("checkpoints/step_000002.safetensors", "belongs to another run"),
        ("maps/step_000002.safetensors", "belongs to another run"),
    ],
)
def test_a_run_does_not_go_on_beside_files_of_another(stopped, finished_of_another, name, message):
    shutil.copy(finished_of_another / name, stopped / name)
    refused_before_training(stopped, rf"{name}: {message} than the config\.yaml beside it; put the right")


@pytest.mark.parametrize("kind", ["checkpoints", "maps"])
def test_a_run_does_not_go_on_beside_files_of_another_step(stopped, kind):
    shutil.copy(stopped / kind / "step_000000.safetensors", stopped / kind / "step_000002.safetensors")
    refused_before_training(stopped, f"{kind}/step_000002.safetensors: holds step 0, not the one of its name")


@pytest.mark.parametrize(
    "name",
    [
        "config.yaml",
        "environment.json",
        "state.json",
        "metrics.parquet",
        "metrics.part.jsonl",
        "checkpoints/step_000002.safetensors",
        "maps/step_000002.safetensors",
        "resume/step_000004.safetensors",
    ],
)
def test_a_folder_in_the_place_of_a_file_is_refused(stopped, name):
    (stopped / name).unlink(missing_ok=True)
    (stopped / name).mkdir()
    refused_before_training(stopped, f"{name}: is a folder, expected a file; move it away")


@pytest.mark.parametrize("name", ["checkpoints", "maps", "resume"])
def test_a_file_in_the_place_of_a_folder_is_refused(stopped, name):
    shutil.rmtree(stopped / name)
    (stopped / name).touch()
    refused_before_training(stopped, f"{name}: is no folder; move it away")


def test_rows_that_cannot_be_read_are_one_line(stopped):
    (stopped / "metrics.part.jsonl").unlink()
    (stopped / "metrics.part.jsonl").mkdir()
    with pytest.raises(RunError, match=r"metrics\.part\.jsonl: cannot be read \(Is a directory\)"):
        _ = load_run(stopped).metrics
    with pytest.raises(RunError, match=r"metrics\.part\.jsonl: is a folder, expected a file; move it away"):
        train(CONFIG, runs_dir=stopped.parent)


def cut(root: Path) -> None:
    path = root / "resume" / "step_000004.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def without_a_tensor(root: Path) -> None:
    path = root / "resume" / "step_000004.safetensors"
    tensors, description = read_tensors(path)
    tensors.pop("optimizer.0.exp_avg")
    save_tensors(path, tensors, {name: value for name, value in description.items() if name != "format"})


def with_rows_of_another_run(root: Path) -> None:
    class Copy:
        def on_step(self, step, row):
            if step == 4:
                shutil.copy(next(root.parent.glob("other/*/metrics.part.jsonl")), root)

    train(CONFIG.with_(seed=1), runs_dir=root.parent / "other", listeners=[Copy()])


def with_a_changed_number(root: Path) -> None:
    path = root / "metrics.part.jsonl"
    first, _, others = path.read_text().partition("\n")
    row = json.loads(first)
    path.write_text(json.dumps({**row, "loss": row["loss"] + 1e-7}) + "\n" + others)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (cut, "damaged"),
        (without_a_tensor, "damaged (it lacks tensors)"),
        (lambda root: shutil.rmtree(root / "resume"), "its resume folder is empty"),
        (lambda root: rewritten(root / "resume/step_000004.safetensors", config_hash="0"), "another run"),
        (
            lambda root: (root / "resume/step_000004.safetensors").rename(
                root / "resume/step_000003.safetensors"
            ),
            "holds step 4, not the one of its name",
        ),
        (lambda root: (root / "metrics.part.jsonl").unlink(), "rows up to step 4 are missing"),
        (
            lambda root: (root / "metrics.part.jsonl").write_text('{"step": 0}\n'),
            "rows up to step 4 are missing",
        ),
        (with_rows_of_another_run, "rows up to step 4 are not those of this run, or were changed"),
        (with_a_changed_number, "rows up to step 4 are not those of this run, or were changed"),
    ],
)
@pytest.mark.parametrize("state", [True, False])
def test_nothing_kept_is_dropped_where_a_run_cannot_go_on(stopped, damage, why, state):
    damage(stopped)
    if not state:
        (stopped / "state.json").unlink()
    before = contents(stopped)
    with pytest.raises(RunError, match=r"trained up to step 4, but nothing is left to resume from") as caught:
        train(CONFIG, runs_dir=stopped.parent)
    assert why in str(caught.value)
    assert "put a copy back, or rename the run's folder" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert contents(stopped) == before


def test_a_damaged_newest_save_falls_back_to_the_one_before_and_keeps_checkpoints(
    stopped, finished_once, caplog
):
    """Both are there where a kill came just after the newest was written."""

    class Saved:
        def on_step(self, step, row):
            if step == 2:
                shutil.copy(next(stopped.parent.glob("other/*/resume/*")), stopped / "resume")

    train(CONFIG, runs_dir=stopped.parent / "other", listeners=[Saved()])
    cut(stopped)
    seen = []

    class Watch:
        def on_step(self, step, row):
            seen.append((step, load_run(stopped).steps))

    run = train(CONFIG, runs_dir=stopped.parent, listeners=[Watch()])
    assert seen[0] == (3, (0, 2, 4))
    assert "step_000004.safetensors: damaged" in caplog.text
    assert "resumes from step 2 instead" in caplog.text
    for name, data in contents(finished_once).items():
        if name.endswith(".safetensors"):
            assert (run.path / name).read_bytes() == data


def test_a_step_of_another_state_is_not_gone_on_from(stopped):
    (stopped / "state.json").write_text('{"status": "archived", "step": 4}')
    before = contents(stopped)
    with pytest.raises(RunError, match=r"'archived', which this version does not know; update mechplateau"):
        train(CONFIG, runs_dir=stopped.parent)
    assert contents(stopped) == before
