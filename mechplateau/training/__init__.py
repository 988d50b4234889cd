"""Training: one loop, its optimizers and schedules, what it measures, trackers and sweeps."""

from mechplateau.training.interrupt import RunInterrupted
from mechplateau.training.loop import Listener, train

__all__ = ["Listener", "RunInterrupted", "train"]
