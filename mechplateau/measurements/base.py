"""What an evaluation records: objects with columns, filled from one look at the model.

All measurements of an evaluation share one teacher-forced forward and at most one generation (`Seen`). What a model or
task cannot give is reported before training begins (`misfit`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from mechplateau.errors import ConfigError
from mechplateau.measurements.columns import STEP, Column
from mechplateau.measurements.targets import AttentionTargets, BatchTargets
from mechplateau.models.config import ModelConfigBase
from mechplateau.models.kinds import kind_of
from mechplateau.models.records import Observation
from mechplateau.objectives import Batch, tokens_of
from mechplateau.tasks import SequenceTask, TaskBase, sequence_task

Value = Tensor | None
Need = Literal["outputs", "hidden", "attention", "generation"]
CPU = torch.device("cpu")
Where = Literal["final", "all"]


@dataclass(frozen=True)
class Setting:
    """What measurements are made for.

    Attributes:
        task: the task.
        model: the model's configuration.
        where: "final", or "all" to look at hidden states everywhere.
        device: where the model is.
    """

    task: TaskBase
    model: ModelConfigBase
    where: Where = "final"
    device: torch.device = CPU

    @cached_property
    def places(self) -> tuple[str, ...]:
        """Where hidden states are looked at."""
        known = kind_of(self.model).places(self.model)
        return known if self.where == "all" else tuple(place for place in known if place == "final")

    @cached_property
    def targets(self) -> AttentionTargets:
        """The task's Ω, laid out for the model's layers."""
        return AttentionTargets(self.task, self.model.n_layers, self.device)

    @property
    def sequences(self) -> SequenceTask:
        """The task, where it is one of tokens."""
        return sequence_task(self.task, "this measurement")


class Seen:
    """What a model does with one batch. Each part is computed on first use, and kept.

    Args:
        model: in eval mode.
        batch: the examples.
        setting: task and places.
        needs: everything that will be read, so that one forward is enough.

    Attributes:
        model: the model, for what runs it on data of its own.
        batch: the examples.
    """

    def __init__(self, model: Any, batch: Batch, setting: Setting, needs: frozenset[Need]):
        self.model = model
        self.batch = batch
        self._setting = setting
        self._needs = needs
        self._kept: dict[str, Any] = {}

    @cached_property
    def outputs(self) -> Tensor:
        """What the model returns for the batch's inputs (teacher-forced, where that means something)."""
        if self._needs & {"hidden", "attention", "generation"}:
            return self._observation.outputs
        return self.model(self.batch.inputs)

    @property
    def hidden(self) -> Mapping[str, Tensor]:
        """Place → hidden states `[batch, pos, d_model]`."""
        return self._observation.hidden

    @property
    def observation(self) -> Observation:
        """The whole forward: outputs, hidden states, a record of each layer's attention."""
        return self._observation

    @cached_property
    def targets(self) -> BatchTargets:
        """Ω of these sequences."""
        return self._setting.targets.of(self.batch)

    @cached_property
    def generated(self) -> Int[Tensor, "batch n_outputs"]:
        """The outputs that the model generates after each prompt, greedily; −1 from the first undefined one on."""
        task = self._setting.sequences
        if self._needs == {"generation"}:  # nothing else is needed of the sequences: the prompts are enough
            prompt = tokens_of(self.batch)[:, : task.prompt_length]
            seen = self.model.observe(prompt, at=())
        else:
            seen = self._observation
        return self.model.generate_on(seen, task.prompt_length, task.n_outputs)

    def once(self, key: str, compute: Callable[[], Any]) -> Any:
        """What `compute` returns, for measurements that share it under this key."""
        if key not in self._kept:
            self._kept[key] = compute()
        return self._kept[key]

    @cached_property
    def _observation(self) -> Observation:
        places = self._setting.places if "hidden" in self._needs else ()
        if "attention" in self._needs:
            return self.model.observe(self.batch.inputs, metric_sets=self.targets.sets, at=places)
        return self.model.observe(self.batch.inputs, at=places)


class Measurement(ABC):
    """One measurement of a model on a task; made once for a `Setting`, then used at every evaluation.

    To add one: a subclass with a `name`, what it `needs`, its columns and `measure`, and `@register_measurement`.
    A task lists it in `measurement_names`; `evaluation.measurements` adds it to one run.
    """

    name: ClassVar[str]
    """The registered name."""

    needs: ClassVar[frozenset[Need]] = frozenset({"outputs"})
    """What it reads from `Seen`."""

    fresh: ClassVar[bool] = False
    """With `evaluation.samples: paper`, whether it is measured on fresh examples, not on the training batch."""

    def __init__(self, setting: Setting):
        self.setting = setting

    @classmethod
    def misfit(cls, task: TaskBase, model: ModelConfigBase) -> str | None:
        """Why it cannot be measured on this task and model; None where it can."""
        kind = kind_of(model)
        if "generation" in cls.needs:
            if not isinstance(task, SequenceTask):
                return f"it needs a task of tokens with a prompt and outputs, and {task.name} is none"
            if not kind.generates:
                return f"a model of kind {kind.name} does not generate"
        if "attention" in cls.needs and not kind.attention:
            return f"a model of kind {kind.name} does not show its attention"
        if "hidden" in cls.needs and "final" not in kind.places(model):
            return f"a model of kind {kind.name} has no place called final"
        return None

    @property
    def fixed_shapes(self) -> bool:
        """Whether a CUDA graph can hold it: shapes and places in memory do not depend on the data."""
        return True

    @abstractmethod
    def columns(self) -> tuple[Column, ...]:
        """Its columns, in the table's order."""

    @abstractmethod
    def measure(self, seen: Seen, batch: Batch) -> Mapping[str, Value]:
        """Column → a number on the batch's device, without waiting for it; None, or not finite, where undefined."""


_REGISTRY: dict[str, type[Measurement]] = {}
_Class = TypeVar("_Class", bound=type[Measurement])


def register_measurement(cls: _Class) -> _Class:
    """Class decorator: make a measurement known by its `name`, also from a notebook.

    Registering the same name again replaces the class, so that a notebook cell can be run twice.
    """
    _REGISTRY[cls.name] = cls
    return cls


def measurement_names() -> tuple[str, ...]:
    """The registered names, sorted."""
    return tuple(sorted(_REGISTRY))


def measurement_class(name: object) -> type[Measurement]:
    """The class registered under `name`.

    Raises:
        ConfigError: there is none. Code named in a file is never imported.
    """
    if not isinstance(name, str) or name not in _REGISTRY:
        raise ConfigError(
            f"unknown measurement {name!r}; known: {', '.join(measurement_names())}; one of your own must be defined "
            "with @register_measurement before its runs are used"
        )
    return _REGISTRY[name]


def chosen_measurements(
    task: TaskBase, model: ModelConfigBase, asked: Sequence[str] | None
) -> tuple[type[Measurement], ...]:
    """The classes that a run records, the loss first.

    Args:
        task: names them where none are requested; of its own, those that do not fit the kind of model are left out.
        model: the model's configuration.
        asked: `evaluation.measurements`.

    Raises:
        ConfigError: a requested measurement is not known or does not fit.
    """
    names = task.measurement_names if asked is None else asked
    chosen = []
    for name in dict.fromkeys(["loss", *names]):
        cls = measurement_class(name)
        problem = cls.misfit(task, model)
        if problem is not None and asked is not None:
            raise ConfigError(f"{name} cannot be measured here: {problem}")
        if problem is None:
            chosen.append(cls)
    return tuple(chosen)


def joined_columns(measurements: Sequence[Measurement]) -> tuple[Column, ...]:
    """The table's columns, the step first.

    Raises:
        ConfigError: two measurements have a column of one name.
    """
    owners: dict[str, str] = {STEP.name: "every table"}
    columns = [STEP]
    for measurement in measurements:
        for column in measurement.columns():
            if column.name in owners:
                raise ConfigError(
                    f"{measurement.name}: its column {column.name} is one of {owners[column.name]} too; rename it"
                )
            owners[column.name] = measurement.name
            columns.append(column)
    return tuple(columns)


__all__ = [
    "Measurement",
    "Seen",
    "Setting",
    "Value",
    "chosen_measurements",
    "joined_columns",
    "measurement_class",
    "measurement_names",
    "register_measurement",
]
