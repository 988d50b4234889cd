"""Runs that are trained once for all tests of this folder, and copies of them that a test may damage."""

from __future__ import annotations

import shutil
import signal

import pytest

from mechplateau.training import RunInterrupted, train

from .tiny import CONFIG


@pytest.fixture(scope="package")
def finished_once(tmp_path_factory):
    return train(CONFIG, runs_dir=tmp_path_factory.mktemp("runs")).path


@pytest.fixture(scope="package")
def stopped_once(tmp_path_factory):
    """Stopped at step 4, with checkpoints 0, 2 and 4."""

    class Stop:
        def on_step(self, reached, row):
            if reached == 4:
                signal.raise_signal(signal.SIGINT)

    runs_dir = tmp_path_factory.mktemp("runs")
    with pytest.raises(RunInterrupted):
        train(CONFIG, runs_dir=runs_dir, listeners=[Stop()])
    return runs_dir / CONFIG.run_name


@pytest.fixture(scope="package")
def finished_of_another(tmp_path_factory):
    return train(CONFIG.with_(seed=1), runs_dir=tmp_path_factory.mktemp("runs")).path


@pytest.fixture
def finished(finished_once, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(finished_once, tmp_path / finished_once.name)


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(stopped_once, tmp_path / stopped_once.name)
