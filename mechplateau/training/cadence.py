"""Which steps are measured, and which are kept."""

from __future__ import annotations

import math

from mechplateau.config import CheckpointConfig


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
