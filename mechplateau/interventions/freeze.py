"""Freezing parts of a model: at their random weights, or after another intervention set them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from torch import nn

from mechplateau.interventions.base import Handle, Intervention, register_intervention
from mechplateau.interventions.parts import Parts, chosen, chosen_in
from mechplateau.models.config import ModelConfigBase
from mechplateau.tasks import TaskBase


class Freezing(Intervention):
    """Freezes parameters: no gradient, and so no update, weight decay or optimizer state."""

    def hold(self, model: nn.Module, names: Iterable[str]) -> Handle:
        """Stop training the named parameters until the handle is removed."""
        parameters = dict(model.named_parameters())
        held = [parameters[name] for name in names]
        for parameter in held:
            # Counted, because two interventions may hold one tensor and end at different steps.
            parameter.holders = getattr(parameter, "holders", 0) + 1  # type: ignore[attr-defined]
            parameter.requires_grad_(False)
            parameter.grad = None

        def undo() -> None:
            while held:
                parameter = held.pop()
                parameter.holders -= 1  # type: ignore[attr-defined]
                if parameter.holders == 0:  # type: ignore[attr-defined]
                    parameter.requires_grad_(True)

        return Handle(undo)


@register_intervention
class Freeze(Freezing):
    """Keep named tensors bitwise as they are at its first step: from step 0, frozen at random."""

    kind: Literal["freeze"] = "freeze"
    parts: Parts
    """Names of parts (KQ, attention, ln1, …), of tensors, or patterns with *."""

    def check(self, task: TaskBase, model: ModelConfigBase) -> None:
        chosen(self.parts, task, model)

    def held(self, task: TaskBase, model: ModelConfigBase) -> frozenset[str]:
        return frozenset(chosen(self.parts, task, model))

    def attach(self, model: Any, task: TaskBase) -> Handle:
        return self.hold(model, chosen_in(self.parts, model))
