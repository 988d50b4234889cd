"""A run's plateau, whether its task is solved, and the three checkpoints for before, during and after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from mechplateau.errors import CheckpointError, RunError
from mechplateau.signs import Plateau, Signs, solved

Phase = Literal["before", "during", "after"]
PHASES: tuple[Phase, ...] = ("before", "during", "after")


@dataclass(frozen=True)
class Phases:
    """Read from the measured loss, never entered by hand.

    Attributes:
        plateau: onset, drop, levels, confidence, or why there is none.
        before: step 0.
        during: of the kept steps on the plateau, from its onset to before its drop, the one nearest to the middle;
            None where none is, or no drop came yet.
        after: the last kept step.
        steps: all checkpoints there are.
        missing: checkpoints that were kept and are now missing; phases count them.
        solved_at: first measured step with an accuracy of at least `signs.SOLVED`; None where there is none.
            A run may end in the middle of its drop: then a plateau is found, and the task is not solved.
    """

    plateau: Plateau
    before: int
    during: int | None
    after: int
    steps: tuple[int, ...]
    solved_at: int | None
    missing: tuple[int, ...] = ()

    @property
    def solved(self) -> bool:
        """Whether the task was solved at some measured step."""
        return self.solved_at is not None

    def step(self, phase: Phase) -> int:
        """The checkpoint of a phase.

        Raises:
            RunError: there is no plateau to be during, or no checkpoint was kept on it; names the steps there are.
            CheckpointError: the phase's checkpoint is missing.
        """
        step = getattr(self, phase)
        known = ", ".join(str(step) for step in self.steps)
        if step in self.missing:
            raise CheckpointError(
                f"the checkpoint {phase!r}, of step {step}, is missing; put a copy back; there are: {known}"
            )
        if step is None and self.plateau.found:
            raise RunError(
                f"no checkpoint was kept on the plateau, from step {self.plateau.onset} to before its drop at "
                f"{self.plateau.drop}; "
                f"give a step, or train with a smaller checkpoints.every; steps kept: {known}"
            )
        if step is None:
            raise RunError(
                f"no plateau with a drop was found, so no step is during it; steps kept: {known}. "
                f"{self.plateau.reason}"
            )
        return step


def find_phases(signs: Signs, steps: Sequence[int], missing: Sequence[int] = ()) -> Phases:
    """The phases of a run with these signs and these checkpoints, of which some may be missing.

    Raises:
        RunError: no checkpoint was kept yet.
        CheckpointError: all that were kept are missing.
    """
    if not steps and missing:
        raise CheckpointError("every checkpoint is missing; put copies back")
    if not steps:
        raise RunError("no checkpoint was kept yet; let the run train further")
    kept = sorted({*steps, *missing})
    return Phases(
        signs.plateau,
        kept[0],
        _during(signs.plateau, kept),
        kept[-1],
        tuple(steps),
        signs.solved.step,
        tuple(missing),
    )


def _during(plateau: Plateau, kept: Sequence[int]) -> int | None:
    onset, middle, drop = plateau.onset, plateau.midpoint, plateau.drop
    if onset is None or middle is None or drop is None:
        return None
    on_it = [step for step in kept if onset <= step < drop]
    return min(on_it, key=lambda step: (abs(step - middle), step), default=None)


def solved_in(metrics: pd.DataFrame) -> int | None:
    """First measured step at which a run with this table had solved its task; None where there is none."""
    return solved(metrics).step
