"""Interventions: value objects that change how a model computes over a range of steps.

The training loop attaches each one while its range lasts, in training, evaluation and generation alike, and
detaches it afterwards. Each has a file of its own here, and registers itself by its kind.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import Field, model_validator

from mechplateau.errors import ConfigError
from mechplateau.models.config import ModelConfigBase
from mechplateau.schema import Config
from mechplateau.tasks import TaskBase


@dataclass(frozen=True)
class Handle:
    """Undoes what `attach` did."""

    undo: Callable[[], None]

    def remove(self) -> None:
        """Take the intervention off again."""
        self.undo()


class Intervention(Config):
    """Base of all interventions, in effect at steps `start ≤ step < stop`.

    At step s it affects what is measured after s updates, and the update from s to s + 1.
    """

    needs_attention: ClassVar[bool] = False
    """Whether it acts on the model's attention, which a kind of model must allow (`ModelKind.attention`)."""

    kind: str
    start: int = Field(0, ge=0)
    """First step it is in effect."""
    stop: int | None = Field(None, ge=1)
    """First step it is no longer in effect; null: to the end."""

    @model_validator(mode="after")
    def _range(self) -> Self:
        if self.stop is not None and self.stop <= self.start:
            raise ValueError(f"stop: expected a step after start = {self.start}, got {self.stop}")
        return self

    def active(self, step: int) -> bool:
        """Whether it is in effect after `step` updates."""
        return self.start <= step and (self.stop is None or step < self.stop)

    @abstractmethod
    def check(self, task: TaskBase, model: ModelConfigBase) -> None:
        """Raise ConfigError, naming the field, where it cannot act on this task and model."""

    def conflict(self, other: Intervention) -> str | None:
        """Why it cannot be in effect together with another one (a text that ends in "as"); None: it can."""
        if self == other:
            return "is the same as"
        return None

    def overlaps(self, other: Intervention) -> bool:
        """Whether both are in effect at some step."""
        return (self.stop is None or other.start < self.stop) and (
            other.stop is None or self.start < other.stop
        )

    @property
    def reads(self) -> tuple[Path, ...]:
        """Files that a run with it reads when it starts."""
        return ()

    def begin(self, model: Any, task: TaskBase) -> None:
        """Change weights, once, at step `start`, before `attach`. A run that resumes does not do it again."""

    def held(self, task: TaskBase, model: ModelConfigBase) -> frozenset[str]:
        """Names of the parameters that are not trained while it is in effect."""
        return frozenset()

    def initialized(self, task: TaskBase, model: ModelConfigBase) -> frozenset[str]:
        """Names of the parameters that it sets as a whole when it begins."""
        return frozenset()

    @abstractmethod
    def attach(self, model: Any, task: TaskBase) -> Handle:
        """Put it into effect on `model`."""


_REGISTRY: dict[str, type[Intervention]] = {}
_Kind = TypeVar("_Kind", bound=Intervention)


def register_intervention(cls: type[_Kind]) -> type[_Kind]:
    """Class decorator: make an intervention known by the default of its `kind` field."""
    _REGISTRY[cls.model_fields["kind"].default] = cls
    return cls


def intervention_kinds() -> tuple[str, ...]:
    """The registered names, sorted."""
    return tuple(sorted(_REGISTRY))


def intervention_class(kind: object) -> type[Intervention]:
    """The class registered under `kind`; ConfigError lists the known ones otherwise."""
    if not isinstance(kind, str) or kind not in _REGISTRY:
        raise ConfigError(f"kind: unknown intervention {kind!r}; known: {', '.join(intervention_kinds())}")
    return _REGISTRY[kind]


__all__ = ["Handle", "Intervention", "intervention_class", "intervention_kinds", "register_intervention"]
