"""Copies that lack files, or whose files are swapped or another run's."""

from __future__ import annotations

import shutil

import pytest

from mechplateau.errors import CheckpointError, RunError
from mechplateau.runs import load_run
from mechplateau.training import train

from .tiny import CONFIG


def test_a_renamed_folder_is_still_the_run(finished):
    run = load_run(finished.rename(finished.parent / "mine"))
    assert run.model("after") is not None
    assert run.weights(2)
    assert run.maps(2)


@pytest.mark.parametrize("kind", ["checkpoints", "maps"])
def test_swapped_files_are_refused(finished, kind):
    one, other = (finished / kind / f"step_00000{step}.safetensors" for step in (2, 4))
    one.rename(finished / "x")
    other.rename(one)
    (finished / "x").rename(other)
    run = load_run(finished)
    reads = [run.maps] if kind == "maps" else [run.model, run.weights]
    for read in reads:
        with pytest.raises(
            CheckpointError, match=r"step_000002\.safetensors: holds step 4, not the one of its name"
        ):
            read(2)


def test_files_of_another_run_are_refused(finished, finished_of_another):
    for kind in ("checkpoints", "maps"):
        name = f"{kind}/step_000002.safetensors"
        shutil.copy(finished_of_another / name, finished / name)
    run = load_run(finished)
    for read in (run.model, run.weights, run.maps):
        with pytest.raises(CheckpointError, match=r"belongs to another run than the config\.yaml beside it"):
            read(2)


def test_a_partial_copy_says_what_is_missing(finished, caplog):
    for step in (2, 6):
        (finished / f"checkpoints/step_00000{step}.safetensors").unlink()
    (finished / "maps/step_000004.safetensors").unlink()
    run = load_run(finished)
    assert "checkpoints are missing, of steps 2, 6" in caplog.text
    assert (run.steps, run.missing, run.missing_maps) == ((0, 4), (2, 6), (4,))
    assert repr(run).endswith("finished, 2 checkpoints, 2 missing)")
    with pytest.raises(
        CheckpointError, match=r"'after', of step 6, is missing; put a copy back; there are: 0, 4"
    ):
        run.model("after")
    with pytest.raises(CheckpointError, match=r"step_000002\.safetensors: missing; put a copy back"):
        run.model(2)
    with pytest.raises(RunError, match="no checkpoint at step 3; kept: 0, 4"):
        run.model(3)
    assert run.model("before") is not None
    (finished / "checkpoints/step_000000.safetensors").unlink()
    with pytest.raises(CheckpointError, match="'before', of step 0, is missing"):
        load_run(finished).model("before")


def test_a_copy_without_checkpoints_is_not_told_to_go_on(finished):
    shutil.rmtree(finished / "checkpoints")
    run = load_run(finished)
    assert run.missing == (0, 2, 4, 6)
    for ask in (lambda: run.phases, lambda: run.model("after")):
        with pytest.raises(CheckpointError, match=r"every checkpoint is missing; put copies back$"):
            ask()


def test_a_whole_run_misses_nothing(finished_once, stopped_once, caplog):
    for path in (finished_once, stopped_once):
        run = load_run(path)
        assert (run.missing, run.missing_maps) == ((), ())
    assert caplog.text == ""
    assert load_run(stopped_once).phases.after == 4


def test_a_run_that_was_opened_on_its_way_misses_nothing_later(tmp_path):
    opened = []

    class Open:
        def on_step(self, step, row):
            if step == 3:
                opened.append(load_run(tmp_path / CONFIG.run_name))
                assert opened[0].reached == 3

    train(CONFIG, runs_dir=tmp_path, listeners=[Open()])
    assert opened[0].status == "finished"
    assert (opened[0].missing, opened[0].phases.after) == ((), 6)
