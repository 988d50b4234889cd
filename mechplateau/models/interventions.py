"""Interventions: value objects that change how a model computes over a range of steps.

The training loop attaches each one while its range lasts, in training, evaluation and generation alike, and
detaches it afterwards. Defining one touches this package only; it registers itself by its kind.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self, TypeGuard, TypeVar, runtime_checkable

import torch
from pydantic import Field, model_validator

from mechplateau.errors import ConfigError
from mechplateau.models.config import ModelConfigBase
from mechplateau.schema import Config
from mechplateau.tasks import TaskBase, sequence_task, targets_of


@dataclass(frozen=True)
class Handle:
    """Undoes what `attach` did."""

    undo: Callable[[], None]

    def remove(self) -> None:
        """Take the intervention off again."""
        self.undo()


class Intervention(Config):
    """Base of all interventions, in effect at steps `start ≤ step < stop`.

    At step s it shapes what is measured after s updates and the update from s to s + 1.
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
        """Why it cannot be in effect together with another one ("… as"), or None."""
        if self == other:
            return "is the same as"
        return None

    def overlaps(self, other: Intervention) -> bool:
        """Whether both are in effect at some step."""
        return (self.stop is None or other.start < self.stop) and (
            other.stop is None or self.start < other.stop
        )

    def begin(self, model: Any, task: TaskBase) -> None:
        """Change weights, once, at step `start`, before `attach`; a run that is gone on with has had it."""

    def held(self, task: TaskBase, model: ModelConfigBase) -> frozenset[str]:
        """Names of the parameters that are not trained while it is in effect."""
        return frozenset()

    def initialized(self, task: TaskBase, model: ModelConfigBase) -> frozenset[str]:
        """Names of the parameters that it sets as a whole when it begins."""
        return frozenset()

    def progress_weight(self, step: int) -> float:
        """What the update from `step` on takes off its loss for each unit of attention progress."""
        return 0.0

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


@register_intervention
class AttentionScale(Intervention):
    """Multiply the attention pattern by c on Ω, leaving the rows of the partial solution alone.

    In linear attention the scaled entries grow or shrink with c; in softmax attention the rows then no longer
    sum to 1. c = 1 is bitwise the same as no intervention. In an encoder, Ω depends on which cells are masked: the rows
    of masked queries are scaled (`task.attention_entries`).

    Source: arXiv 2506.13688, section 4 (figures 3, 4 and 43).
    """

    needs_attention: ClassVar[bool] = True

    kind: Literal["attention_scale"] = "attention_scale"
    c: float
    """The factor."""
    layers: tuple[int, ...] | None = None
    """0-based layers; null: every layer that has an Ω."""

    def check(self, task: TaskBase, model: ModelConfigBase) -> None:
        if self.layers == ():
            raise ConfigError("layers: expected at least one layer, or null for every layer that has an Ω")
        for layer in self.layers or ():
            if not 0 <= layer < model.n_layers:
                raise ConfigError(f"layers: expected layers from 0 to {model.n_layers - 1}, got {layer}")
        if _depends_on_data(task):
            return
        targets = targets_of(task)
        if any(target.mask.shape[0] != 1 for target in targets):
            raise ConfigError(
                f"kind: attention_scale needs one Ω for all sequences; that of {task.name} varies"
            )
        scaled = {layer for layer, mask in scaled_entries(task, model.n_layers, None).items() if mask.any()}
        if not scaled:
            raise ConfigError(
                f"kind: attention_scale needs an Ω beside the partial solution's; this {task.name} has none"
            )
        for layer in self.layers or ():
            if layer not in scaled:
                known = ", ".join(str(other) for other in sorted(scaled))
                raise ConfigError(f"layers: {task.name} has no Ω at layer {layer}; expected among {known}")

    def conflict(self, other: Intervention) -> str | None:
        if isinstance(other, AttentionScale) and self.overlaps(other):
            ours, theirs = self.layers, other.layers
            if ours is None or theirs is None or set(ours) & set(theirs):
                return "scales the same attention at the same steps as"
        return super().conflict(other)

    def attach(self, model: Any, task: TaskBase) -> Handle:
        if _depends_on_data(task):
            return Handle(model.scale_on(task.attention_entries, self.c, self.layers))
        masks = scaled_entries(task, model.cfg.n_layers, self.layers)
        attached = [model.blocks[layer].attn for layer in masks]
        for attention, mask in zip(attached, masks.values(), strict=True):
            attention.scale_on(mask.to(model.cfg.device), self.c)

        def undo() -> None:
            for attention in attached:
                attention.scale_on(None)

        return Handle(undo)


def _depends_on_data(task: TaskBase) -> TypeGuard[_WithEntries]:
    """Whether the task says for each input by itself where attention belongs."""
    return isinstance(task, _WithEntries)


@runtime_checkable
class _WithEntries(Protocol):
    def attention_entries(self, inputs: torch.Tensor) -> torch.Tensor:
        """Ω of the rows that are scaled, bool `[batch, query, key]`."""


def scaled_entries(task: TaskBase, n_layers: int, layers: tuple[int, ...] | None) -> dict[int, torch.Tensor]:
    """Ω of the rows outside the partial solution: layer → bool `[n_ctx, n_ctx]` (query, key)."""
    task = sequence_task(task, "kind: attention_scale")
    left_alone = {task.output_rows[r] for r in task.partial_outputs or ()}
    masks: dict[int, torch.Tensor] = {}
    for target in targets_of(task):
        for layer in range(n_layers) if target.layer is None else [target.layer]:
            if layers is not None and layer not in layers:
                continue
            mask = masks.setdefault(layer, torch.zeros(task.n_ctx, task.n_ctx, dtype=torch.bool))
            for row, sources in zip(target.rows, target.mask[0], strict=True):
                if row not in left_alone:
                    mask[row, : task.n_input] |= sources
    return masks
