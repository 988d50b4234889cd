"""Signals: what saves a run, what stays ignored, and what a loop of runs may not swallow."""

from __future__ import annotations

import signal
from contextlib import suppress

import pytest

from mechplateau.runs import load_run
from mechplateau.training import RunInterrupted, train
from mechplateau.training.interrupt import terminable

from .conftest import tiny


class Send:
    def __init__(self, *numbers):
        self.numbers = numbers

    def on_step(self, reached, row):
        if reached == 5:
            for number in self.numbers:
                signal.raise_signal(number)


@pytest.mark.parametrize("numbers", [(signal.SIGHUP,), (signal.SIGHUP, signal.SIGTERM, signal.SIGHUP)])
def test_a_closed_terminal_saves(tmp_path, config, numbers):
    before = signal.getsignal(signal.SIGHUP)
    with pytest.raises(RunInterrupted, match="stopped at step 5"):
        train(config, runs_dir=tmp_path, listeners=[Send(*numbers)])
    assert load_run(tmp_path / config.run_name).status == "interrupted"
    assert signal.getsignal(signal.SIGHUP) is before


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_what_is_ignored_stays_so(tmp_path, config, number):
    """nohup ignores SIGHUP, and a shell's background job SIGINT."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        assert train(config, runs_dir=tmp_path, listeners=[Send(number)]).reached == 12
        with terminable():
            signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_a_loop_over_runs_ends_with_the_run_that_was_stopped(tmp_path):
    tried = []

    def all_seeds():
        for seed in range(3):
            tried.append(seed)
            with suppress(Exception):
                train(tiny(seed=seed), runs_dir=tmp_path, listeners=[Send(signal.SIGTERM)])

    with pytest.raises(KeyboardInterrupt):
        all_seeds()
    assert tried == [0]


def test_the_end_of_a_terminal_ends_what_waits_for_runs():
    with pytest.raises(KeyboardInterrupt), terminable():
        signal.raise_signal(signal.SIGHUP)
