"""How often each job was tried: which ends are final, and which jobs are started again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mechplateau.errors import counted
from mechplateau.training.cluster.node import MISFIT, Ended
from mechplateau.training.executor import STOPPED, Job, JobResult, failure, killed_by


@dataclass(frozen=True)
class Lost:
    """A job is to be begun again; `why` it was lost, as part of a sentence."""

    why: str


class Tries:
    """The jobs of a call, and how often each was begun.

    Args:
        jobs: all of them.
        retries: how often a job that was lost is begun again.
    """

    def __init__(self, jobs: Sequence[Job], retries: int):
        self._jobs, self._retries = jobs, retries
        self._begun = [0] * len(jobs)

    def begin(self, index: int) -> int:
        """Count a try; which it is, from 1."""
        self._begun[index] += 1
        return self._begun[index]

    def begun(self, index: int) -> int:
        """Tries so far."""
        return self._begun[index]

    def ended(self, index: int, end: Ended, stopping: bool) -> JobResult | Lost:
        """What became of a job whose process ended.

        A process that was killed, or was stopped by someone else (a node that is shut down), is lost. One that ended by
        itself has finished or failed.
        """
        code, line = end
        if code == 0:
            return self._result(index, "")
        if stopping:
            return self._result(index, line or "interrupted")
        if code == MISFIT:
            return self._result(index, line)
        if code < 0 or code == STOPPED:
            why = killed_by(code) if code < 0 else "its process was stopped"
            return self.lost(index, why, line, stopping)
        return self._result(index, failure(line, code))

    def lost(self, index: int, why: str, line: str, stopping: bool) -> JobResult | Lost:
        """What to do with a job that was lost with its worker or node."""
        if stopping:
            return self._result(index, "interrupted")
        if self._begun[index] <= self._retries:
            return Lost(why)
        said = f"; its last line: {line}" if line else ""
        times = counted(self._begun[index], "time")
        return self._result(index, f"lost {times}, the last time since {why}{said}")

    def failed(self, index: int, message: str) -> JobResult:
        """A job that failed by its own fault."""
        return self._result(index, message)

    def _result(self, index: int, message: str) -> JobResult:
        outcome = "failed" if message else "finished"
        return JobResult(self._jobs[index], outcome, message, tries=self._begun[index])  # type: ignore[arg-type]
