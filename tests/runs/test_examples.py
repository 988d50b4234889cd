"""The run that comes with the package."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

import mechplateau
from mechplateau.config import RunConfig
from mechplateau.errors import UserError
from mechplateau.runs import examples as module


def shipped(name):
    return module.SHIPPED / name


def test_it_is_the_small_run_finished_and_solved_with_a_plateau(tmp_path):
    run = mechplateau.example("mws", runs_dir=tmp_path / "runs")
    assert run.config == RunConfig.for_task("mws", preset="small")
    assert run.name == run.config.run_name
    assert run.status == "finished"
    assert len(run.steps) >= 12
    assert not run.missing
    assert run.phases.plateau.found
    assert run.phases.solved
    tokens = run.task.sample(64, seed=0)
    right = (
        run.model("after")(tokens[:, :-1])[:, run.task.output_rows].argmax(-1)
        == tokens[:, -run.task.n_outputs :]
    )
    assert right.float().mean() > 0.99


def test_it_is_copied_once_and_a_run_that_is_there_is_opened_as_it_is(tmp_path):
    first = mechplateau.example(runs_dir=tmp_path)
    (first.path / "mine.txt").write_text("kept")
    again = mechplateau.example(runs_dir=tmp_path)
    assert (again.path / "mine.txt").read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir()] == [first.name]
    assert (
        mechplateau.train(first.config, runs_dir=tmp_path).steps == first.steps
    )  # finished: nothing is trained


def test_an_unknown_one_is_one_line(tmp_path):
    with pytest.raises(UserError, match="example: expected one of mws, got 'chess'"):
        mechplateau.example("chess", runs_dir=tmp_path)
    with pytest.raises(UserError, match=r"expected one of mws, got '\.\./mws'"):
        mechplateau.example("../mws", runs_dir=tmp_path)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(UserError, match="runs"):
        mechplateau.example(runs_dir=tmp_path / "runs")


def test_it_takes_at_most_three_megabytes_of_a_wheel(tmp_path):
    packed = tmp_path / "packed.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path in sorted(Path(module.SHIPPED).rglob("*")):
            if path.is_file():
                wheel.write(path)
    assert packed.stat().st_size <= 3_000_000


def test_nothing_of_the_machine_it_was_trained_on_is_in_it():
    for path in shipped("mws").rglob("*"):
        if path.suffix in (".json", ".yaml"):
            text = path.read_text()
            assert "/home" not in text
            assert "/tmp" not in text
            assert "/root" not in text
