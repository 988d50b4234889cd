"""Which ends of a job are final, and which jobs are begun again."""

from __future__ import annotations

import pytest

from mechplateau.training.cluster.node import MISFIT
from mechplateau.training.cluster.tries import Lost, Tries
from mechplateau.training.executor import Job


@pytest.fixture
def job(tmp_path):
    return Job("train", {}, tmp_path / "run")


def begun(job, retries, times):
    tries = Tries([job], retries)
    for _ in range(times):
        tries.begin(0)
    return tries


@pytest.mark.parametrize(
    ("end", "outcome", "message"),
    [
        ((0, "a warning"), "finished", ""),
        ((2, "mechplateau: no"), "failed", "mechplateau: no"),
        ((1, ""), "failed", "exit code 1"),
        ((MISFIT, "node a: torch 1 there and 2 here"), "failed", "node a: torch 1 there and 2 here"),
    ],
)
def test_a_job_that_ended_by_itself_is_not_begun_again(job, end, outcome, message):
    result = begun(job, 3, 1).ended(0, end, stopping=False)
    assert (result.outcome, result.message, result.tries) == (outcome, message, 1)


@pytest.mark.parametrize(
    ("code", "why"),
    [(-9, "its process was killed by signal 9"), (130, "its process was stopped")],
)
def test_a_job_that_was_killed_is_begun_again_as_often_as_allowed(job, code, why):
    assert begun(job, 2, 2).ended(0, (code, "step 7"), stopping=False) == Lost(why)
    result = begun(job, 2, 3).ended(0, (code, "step 7"), stopping=False)
    assert (result.outcome, result.tries) == ("failed", 3)
    assert result.message == f"lost 3 times, the last time since {why}; its last line: step 7"
    assert begun(job, 0, 1).lost(0, "its node died", "", stopping=False).message == (
        "lost 1 time, the last time since its node died"
    )


def test_nothing_is_begun_again_while_all_are_stopped(job):
    assert begun(job, 3, 1).ended(0, (130, "stopped at step 5"), stopping=True).message == "stopped at step 5"
    assert begun(job, 3, 1).lost(0, "its node died", "", stopping=True).message == "interrupted"
    assert begun(job, 3, 1).ended(0, (0, ""), stopping=True).outcome == "finished"
