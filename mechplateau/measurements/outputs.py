"""How wrong the outputs are: the objective's loss, and on tasks of tokens what the model generates.

r counts outputs from 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from mechplateau import metrics
from mechplateau.measurements.base import Measurement, Seen, Setting, Value, register_measurement
from mechplateau.measurements.columns import Column
from mechplateau.models.config import ModelConfigBase
from mechplateau.objectives import Batch, tokens_of
from mechplateau.tasks import SequenceTask, TaskBase

_BROKEN = "an output is undefined: logits are not finite"
_BROKEN_OR_ONE = f"{_BROKEN}; or there is only one output"


@register_measurement
class Loss(Measurement):
    """The objective on the batch."""

    name: ClassVar[str] = "loss"

    def columns(self) -> tuple[Column, ...]:
        objective = self.setting.task.objective
        return (Column("loss", objective.unit, objective.meaning, "it is not finite, or no entry counts"),)

    def measure(self, seen: Seen, batch: Batch) -> Mapping[str, Value]:
        return {"loss": self.setting.task.objective.loss(seen.outputs, batch)}


class OfOutputs(Measurement):
    """Base of what is measured on a sequence task's outputs."""

    @classmethod
    def misfit(cls, task: TaskBase, model: ModelConfigBase) -> str | None:
        if not isinstance(task, SequenceTask):
            return f"it needs a task of tokens with a prompt and outputs, and {task.name} is none"
        return super().misfit(task, model)

    @property
    def task(self) -> SequenceTask:
        """The task, which is one of tokens."""
        return self.setting.sequences

    def true(self, batch: Batch) -> Int[Tensor, "batch n_outputs"]:
        """The right outputs."""
        return tokens_of(batch)[:, self.task.prompt_length :]


class OfGenerated(OfOutputs):
    """Base of what is measured on generated outputs: null where the model's logits are not finite."""

    needs: ClassVar = frozenset({"generation"})

    def unless_broken(self, seen: Seen, value: Value) -> Value:
        """NaN, so null in the table, where the model's logits are not finite: no 0 or 1 is made up."""
        if value is None:
            return None
        broken = seen.once("broken", lambda: (seen.generated < 0).any())
        return torch.where(broken, torch.nan, value.double())

    def whole(self, seen: Seen) -> Int[Tensor, "batch n_outputs"]:
        """What was generated, with a token of the vocabulary in place of an undefined one."""
        return seen.once("whole", lambda: seen.generated.clamp(min=0))


@register_measurement
class Accuracy(OfGenerated):
    """Share of right tokens."""

    name: ClassVar[str] = "accuracy"
    fresh: ClassVar[bool] = True

    def columns(self) -> tuple[Column, ...]:
        return (Column("accuracy", "share", "right tokens among all outputs, generated", _BROKEN),)

    def measure(self, seen: Seen, batch: Batch) -> Mapping[str, Value]:
        return {"accuracy": self.unless_broken(seen, metrics.accuracy(self.whole(seen), self.true(batch)))}


@register_measurement
class AccuracyPerOutput(OfGenerated):
    """Share of right tokens at each output."""

    name: ClassVar[str] = "accuracy_per_output"

    def columns(self) -> tuple[Column, ...]:
        return tuple(
            Column(f"accuracy_out_{r}", "share", f"right tokens at output {r}, generated", _BROKEN)
            for r in range(self.task.n_outputs)
        )

    def measure(self, seen: Seen, batch: Batch) -> Mapping[str, Value]:
        right = metrics.accuracy_per_output(seen.generated, self.true(batch))
        return {f"accuracy_out_{r}": self.unless_broken(seen, right[r]) for r in range(self.task.n_outputs)}


@register_measurement
class LossPerOutput(OfOutputs):
    """The objective at each output."""

    name: ClassVar[str] = "loss_per_output"

    def __init__(self, setting: Setting):
        super().__init__(setting)
        self._rows = torch.tensor(self.task.output_rows, device=setting.device)

    def columns(self) -> tuple[Column, ...]:
        return tuple(
            Column(
                f"loss_out_{r}",
                self.task.objective.unit,
                f"loss of output {r}, teacher-forced",
                "it is not finite",
            )
            for r in range(self.task.n_outputs)
        )

    def measure(self, seen: Seen, batch: Batch) -> Mapping[str, Value]:
        losses = self.task.objective.losses(seen.outputs, batch)[:, self._rows].mean(dim=0)
        return {f"loss_out_{r}": losses[r] for r in range(self.task.n_outputs)}


@register_measurement
class Repetition(OfGenerated):
    """Repetition frequency and entropy of the outputs, generated and true."""

    name: ClassVar[str] = "repetition"
    fresh: ClassVar[bool] = True

    def columns(self) -> tuple[Column, ...]:
        return (
            Column("repetition", "share", "outputs equal to the one before (ρ), generated", _BROKEN_OR_ONE),
            Column(
                "repetition_data",
                "share",
                "outputs equal to the one before (ρ), true",
                "there is only one output",
            ),
            Column("entropy", "nats", "entropy of a sequence's outputs, generated", _BROKEN),
            Column("entropy_data", "nats", "entropy of a sequence's outputs, true"),
        )

    def measure(self, seen: Seen, batch: Batch) -> Mapping[str, Value]:
        generated, true, vocab = self.whole(seen), self.true(batch), self.task.vocab_size
        return {
            "repetition": self.unless_broken(seen, metrics.repetition_frequency(generated)),
            "repetition_data": metrics.repetition_frequency(true),
            "entropy": self.unless_broken(seen, metrics.sequence_entropy(generated, vocab)),
            "entropy_data": metrics.sequence_entropy(true, vocab),
        }


@register_measurement
class FirstOutput(OfGenerated):
    """α₁: outputs equal to the first, over all and within the task's parts."""

    name: ClassVar[str] = "alpha_1"

    def columns(self) -> tuple[Column, ...]:
        return (
            Column("alpha_1", "share", "outputs equal to the first (α₁), generated", _BROKEN_OR_ONE),
            *(
                Column(
                    f"alpha_1_{name}_{i}", "share", f"likewise within {name} {i}, generated", _BROKEN_OR_ONE
                )
                for name, parts in self.task.output_parts.items()
                for i in range(parts)
            ),
        )

    def measure(self, seen: Seen, batch: Batch) -> Mapping[str, Value]:
        values = {"alpha_1": self.unless_broken(seen, metrics.match_to_first(seen.generated))}
        for name, parts in self.task.output_parts.items():
            shares = metrics.match_to_first_by_part(seen.generated, parts)
            if shares is not None:
                values |= {f"alpha_1_{name}_{i}": self.unless_broken(seen, shares[i]) for i in range(parts)}
        return values


@register_measurement
class CountCheck(OfGenerated):
    """Whether each value occurs as often as it should, at any position."""

    name: ClassVar[str] = "count_check"

    def columns(self) -> tuple[Column, ...]:
        own = Column("count_check", "share", "true values that occur as often as they should", _BROKEN)
        if not self.task.counted_values:
            return (own,)
        said = "all values that occur as often as they should, absent ones included"
        return (own, Column("count_check_all", "share", said, _BROKEN))

    def measure(self, seen: Seen, batch: Batch) -> Mapping[str, Value]:
        generated, true = self.whole(seen), self.true(batch)
        share = metrics.count_check(generated, true, self.task.vocab_size)
        values = {"count_check": self.unless_broken(seen, share)}
        if self.task.counted_values:
            every = metrics.count_check_all(generated, true, self.task.counted_values)
            values["count_check_all"] = self.unless_broken(seen, every)
        return values


__all__ = [
    "Accuracy",
    "AccuracyPerOutput",
    "CountCheck",
    "FirstOutput",
    "Loss",
    "LossPerOutput",
    "OfGenerated",
    "OfOutputs",
    "Repetition",
]
