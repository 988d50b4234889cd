"""A task's attention targets (Ω) laid out for a model's layers: which sets to sum over, which columns they fill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

import mechplateau_kernels as mk
from mechplateau import metrics
from mechplateau.models.records import Observation
from mechplateau.objectives import Batch, tokens_of
from mechplateau.tasks import Target, TaskBase, sequence_task, targets_of


@dataclass(frozen=True)
class TrackedTarget:
    """One attention-progress column: a target at a layer.

    Attributes:
        column: `apm_{target}`, with `_L{layer}` where one target is measured at several layers.
        target: index among the task's targets.
        layer: 0-based.
        slot: place among the layer's sets.
        rows: query positions.
    """

    column: str
    target: int
    layer: int
    slot: int
    rows: Int[Tensor, " rows"]


@dataclass(frozen=True)
class BatchTargets:
    """The targets of one batch.

    Attributes:
        tracked: one a column.
        sets: layer → its sets over all rows, bool `[query, key]`, or `[batch, query, key]` where they vary.
    """

    tracked: Sequence[TrackedTarget]
    sets: Mapping[int, Sequence[Bool[Tensor, ...]]]

    def progress(self, seen: Observation) -> dict[str, Float[Tensor, ""] | None]:
        """Attention progress of each column, not a number where attention is not finite; None without an Ω."""
        values: dict[str, Tensor | None] = {}
        for tracked in self.tracked:
            row_mass, set_mass = seen.records[tracked.layer].masses()
            progress = metrics.attention_progress(row_mass, set_mass, tracked.rows, set=tracked.slot)
            finite = row_mass[:, :, tracked.rows].isfinite().all()
            values[tracked.column] = (
                None if progress is None else torch.where(finite, progress[0].double(), torch.nan)
            )
        return values

    def mean_progress(self, seen: Observation) -> Float[Tensor, ""]:
        """Mean of attention progress over the columns, differentiable."""
        each = []
        for tracked in self.tracked:
            row_mass, set_mass = seen.records[tracked.layer].masses()
            each.append(mk.apm(row_mass, set_mass, rows=tracked.rows, set=tracked.slot))
        return torch.stack(each).mean()

    def silent(self, seen: Observation) -> Int[Tensor, ""]:
        """Number of sequences without any attention in some target's rows."""
        silent = torch.zeros(seen.outputs.shape[0], dtype=torch.bool, device=seen.outputs.device)
        for tracked in self.tracked:
            silent |= mk.zero_attention(seen.records[tracked.layer].masses()[0], rows=tracked.rows)
        return silent.sum()


class AttentionTargets:
    """A task's targets on a model of `n_layers` layers.

    Attributes:
        tracked: one a column.
        same_for_all: whether no target differs from sequence to sequence.
    """

    def __init__(self, task: TaskBase, n_layers: int, device: torch.device):
        self._task = task
        targets = targets_of(task, device)
        self.tracked: list[TrackedTarget] = []
        slots = [0] * n_layers
        for index, target in enumerate(targets):
            rows = torch.tensor(target.rows, device=device)
            for layer in range(n_layers) if target.layer is None else [target.layer]:
                suffix = f"_L{layer}" if target.layer is None and n_layers > 1 else ""
                column = f"apm_{target.name}{suffix}"
                self.tracked.append(TrackedTarget(column, index, layer, slots[layer], rows))
                slots[layer] += 1
        self.same_for_all = all(target.mask.shape[0] == 1 for target in targets)
        self._shared = BatchTargets(self.tracked, self._sets(targets)) if self.same_for_all else None

    def of(self, batch: Batch) -> BatchTargets:
        """The targets of these sequences (of a `TokenBatch`, where they differ between sequences)."""
        if self._shared is not None:
            return self._shared
        return BatchTargets(
            self.tracked, self._sets(sequence_task(self._task, "Ω").attention_targets(tokens_of(batch)))
        )

    def _sets(self, targets: Sequence[Target]) -> Mapping[int, list[Tensor]]:
        sets: dict[int, list[Tensor]] = {}
        for tracked in self.tracked:
            mask = targets[tracked.target].mask
            n_input = mask.shape[-1]
            whole = mask.new_zeros(mask.shape[0], n_input, n_input)
            whole[:, tracked.rows] = mask
            sets.setdefault(tracked.layer, []).append(whole[0] if whole.shape[0] == 1 else whole)
        return sets
