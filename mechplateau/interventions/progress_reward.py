"""Attention progress as a training signal: does rewarding attention to Ω remove the plateau?"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from mechplateau.errors import ConfigError
from mechplateau.interventions.base import Handle, Intervention, register_intervention
from mechplateau.interventions.imposed_pattern import ImposedPattern
from mechplateau.models.config import ModelConfigBase
from mechplateau.tasks import TaskBase, targets_of


@register_intervention
class ProgressReward(Intervention):
    """Subtract weight · APM from the training loss: its gradient pulls attention towards Ω.

    APM is that of the training batch, averaged over the task's targets and the layers they are measured at. Only the
    updates see it: the loss in the table, the measurements and generation are those of the model as it is.

    Source: ours; the paper (arXiv 2506.13688) only multiplies the pattern on Ω.
    """

    needs_attention: ClassVar[bool] = True

    kind: Literal["progress_reward"] = "progress_reward"
    weight: float
    """Nats a unit of APM; below 0, attention to Ω is punished."""
    ramp: int = Field(0, ge=0)
    """Steps over which the weight rises linearly from 0 at `start`; 0: all of it at once."""

    def check(self, task: TaskBase, model: ModelConfigBase) -> None:
        if not targets_of(task):
            raise ConfigError(f"kind: progress_reward needs an Ω; {task.name} states none")

    def conflict(self, other: Intervention) -> str | None:
        if isinstance(other, ImposedPattern) and self.overlaps(other):
            return "a reward cannot move the pattern that is imposed beside it: see"
        return super().conflict(other)

    def weight_at(self, step: int) -> float:
        """The weight: what the update at `step` subtracts from its loss per unit of attention progress."""
        if step - self.start >= self.ramp:
            return self.weight
        return self.weight * (step - self.start) / self.ramp

    def attach(self, model: Any, task: TaskBase) -> Handle:
        # The model is left as it is: the training loop reads the weight at every update.
        return Handle(lambda: None)
