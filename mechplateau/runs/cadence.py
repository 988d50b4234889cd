"""Which steps are measured, which are kept, and which is the last."""

from __future__ import annotations

import math

from mechplateau.config import CheckpointConfig, TrainingConfig


def checkpoint_steps(config: CheckpointConfig, steps: int) -> frozenset[int]:
    """Steps whose weights are kept: the cadence, the extra ones, and always 0 and the last.

    Linear: every `every` steps (default: a twentieth of the run, rounded up). Logarithmic: `log_spaced` steps
    from 1 to the last, evenly spaced in the logarithm and rounded; where rounding makes some coincide, there
    are fewer.
    """
    if config.log_spaced is not None:
        count = config.log_spaced
        chosen = {round(math.exp(math.log(steps) * i / (count - 1))) for i in range(count)}
    else:
        every = config.every if config.every is not None else math.ceil(steps / 20)
        chosen = set(range(0, steps + 1, every))
    return frozenset({0, steps, *chosen, *(step for step in config.at if step <= steps)})


def is_measured(step: int, every: int, steps: int) -> bool:
    """Whether metrics are taken after `step` updates."""
    return step % every == 0 or step == steps


def measured_steps(every: int, steps: int, until: int) -> list[int]:
    """The steps up to `until` after which metrics are taken, in order."""
    measured = list(range(0, until + 1, every))
    return [*measured, steps] if until == steps and steps % every else measured


def is_last(training: TrainingConfig, measured: bool, step: int, solved: int | None) -> bool:
    """Whether a run ends at `step`: its last one, or a measured one far enough past the step that solved it."""
    share = training.stop_past_solved
    enough = share is not None and solved is not None and measured and step >= (1 + share) * solved
    return enough or step >= training.steps
