"""A factor on attention to Ω: does attending there shorten the plateau, and attending less lengthen it?"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Protocol, TypeGuard, runtime_checkable

import torch

from mechplateau.errors import ConfigError
from mechplateau.interventions.base import Handle, Intervention, register_intervention
from mechplateau.models.config import ModelConfigBase
from mechplateau.tasks import TaskBase, sequence_task, targets_of


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
    """Whether Ω depends on the input."""
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
