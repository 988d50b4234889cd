"""Trackers: mirrors that can neither block a run nor lose what they were told."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from mechplateau.config import RunConfig
from mechplateau.errors import UserError
from mechplateau.training import trackers


def told(folder: Path, losses: list[float]) -> trackers.Tracker:
    """A tracker that was told of so many rows, and has ended."""
    with trackers.Tracker("tensorboard", RunConfig.for_task("mws"), folder) as tracker:
        for step, loss in enumerate(losses):
            tracker.on_step(step, {"step": step, "loss": loss, "cos_final": None if step else 0.5})
    return tracker


def script(folder: Path, source: str) -> str:
    """A stand-in for Python that runs this instead."""
    path = folder / "tracker.sh"
    path.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{source}'\n")
    path.chmod(0o755)
    return str(path)


def test_a_tracker_that_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "PATIENCE", 0.3)
    monkeypatch.setattr(sys, "executable", script(tmp_path, "import time; time.sleep(60)"))
    tracker = told(tmp_path, [1.0] * 5)
    assert tracker.notice is not None
    assert "did not finish within" in tracker.notice


def test_a_tracker_that_dies_does_not_disturb(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", script(tmp_path, "raise SystemExit(3)"))
    tracker = told(tmp_path, [1.0] * 2000)
    assert tracker.notice is not None
    assert "ended with an error" in tracker.notice


def test_tensorboard_gets_every_row(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setattr(trackers, "PATIENCE", 120.0)
    tracker = told(tmp_path, [1.0 / (step + 1) for step in range(4)])
    assert tracker.notice is None
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [round(event.value, 4) for event in events.Scalars("loss")] == [1.0, 0.5, 0.3333, 0.25]
    assert [event.step for event in events.Scalars("cos_final")] == [0]


@pytest.mark.parametrize("name", trackers.TRACKERS)
def test_a_tracker_that_is_not_installed_is_said_before_training(tmp_path, monkeypatch, name):
    """Nor is a mere folder of its name, as trackers leave behind where they ran."""
    find = importlib.util.find_spec
    for found in (None, ModuleSpec(name, None, is_package=True)):
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda asked, found=found: found if asked == name else find(asked)
        )
        with pytest.raises(UserError, match=rf"{name} is not installed; pip install 'mechplateau\[{name}\]'"):
            trackers.Tracker(name, RunConfig.for_task("mws"), tmp_path)
    assert list(tmp_path.iterdir()) == []
