"""Matrix completion: losses over observed and masked cells, similarity of their hidden states, where heads look.

All from one forward that shows the attention maps; a GPT's cells from what it generates. l counts layers and h heads
from 0; definitions in `mechplateau.metrics.completion` and `mechplateau.metrics.cells`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from jaxtyping import Bool, Float
from torch import Tensor

from mechplateau.measurements.base import Measurement, Need, Seen, Setting, Value, register_measurement
from mechplateau.measurements.columns import Column
from mechplateau.measurements.outputs import OfGenerated
from mechplateau.metrics.cells import MASSES, attention_masses, fixedness, mean_pattern
from mechplateau.metrics.completion import (
    cosine_among,
    cosine_of_equals,
    masked_value,
    mean_where,
    spread,
    squared_errors,
)
from mechplateau.models.config import ModelConfigBase
from mechplateau.objectives import Batch, tokens_of
from mechplateau.tasks import MatrixCompletion, MatrixCompletionGPT, TaskBase
from mechplateau.tasks.matrices import MASK, same_column, same_row
from mechplateau.tasks.matrix_completion import Matrices

_NO_MASKED, _NO_OBSERVED = "no cell of the batch is masked", "no cell of the batch is observed"
_QUERIES = {"mask": ("masked", _NO_MASKED), "obs": ("observed", _NO_OBSERVED)}
_COLUMNS_OF = {"omega": "apm"}
"""Masses whose column is named otherwise: attention on Ω is attention progress in every table."""
_WORDS = {
    "omega": "attention on Ω: observed cells of the query's row and column",
    "row": "attention on the other cells of the query's row",
    "col": "attention on the other cells of the query's column",
    "self": "attention on the query's own cell",
    "obs": "attention on observed cells",
    "entropy": "entropy of attention",
    "fixed": "how alike the mean patterns of different queries are, 1: the same",
}


class OfCells(Measurement):
    """Base of what is measured on matrices that an encoder fills in."""

    needs: ClassVar[frozenset[Need]] = frozenset({"outputs", "hidden"})

    @classmethod
    def misfit(cls, task: TaskBase, model: ModelConfigBase) -> str | None:
        if not isinstance(task, MatrixCompletion):
            return f"it needs a task of matrices with masked cells, and {task.name} is none"
        return super().misfit(task, model)

    @property
    def fixed_shapes(self) -> bool:
        """A mixture has matrices of several sizes."""
        task = self.setting.task
        return not (isinstance(task, MatrixCompletion) and task.mixture)

    @property
    def layers(self) -> range:
        return range(self.setting.model.n_layers)

    def cells(self, batch: Batch) -> Matrices:
        """The batch, which is one of matrices."""
        assert isinstance(batch, Matrices)
        return batch


@register_measurement
class CellLosses(OfCells):
    """Squared error over observed and masked cells, and what is predicted for masked ones."""

    name: ClassVar[str] = "cell_losses"
    needs: ClassVar[frozenset[Need]] = frozenset({"outputs"})

    def columns(self) -> tuple[Column, ...]:
        return (
            Column("loss_obs", "targets²", "squared error over observed cells", _NO_OBSERVED),
            Column("loss_mask", "targets²", "squared error over masked cells", _NO_MASKED),
            Column("mask_value", "targets", "mean |prediction| of masked cells", _NO_MASKED),
            Column(
                "spread",
                "1",
                "E ŷ² / E x² over masked cells: 0 copying, 1 completing",
                "all masked cells are 0",
            ),
        )

    def measure(self, seen: Seen, batch: Batch) -> Mapping[str, Value]:
        given, cells = seen.outputs, self.cells(batch)
        _, observed, masked = squared_errors(given, cells.targets, cells.observed)
        return {
            "loss_obs": observed,
            "loss_mask": masked,
            "mask_value": masked_value(given, cells.observed),
            "spread": spread(given, cells.targets, cells.observed),
        }


@register_measurement
class CellSimilarity(OfCells):
    """COS at every layer's output: of masked cells, of observed ones, and of observed ones with one token."""

    name: ClassVar[str] = "cell_similarity"

    def columns(self) -> tuple[Column, ...]:
        kinds = {
            "mask": ("masked cells of a matrix", "no matrix has two masked cells"),
            "obs": ("observed cells of a matrix", "no matrix has two observed cells"),
            "same": ("observed cells of a matrix that hold the same token", "no matrix has two such cells"),
        }
        return tuple(
            Column(f"cos_{kind}_L{layer}", "cosine", f"mean cosine of {what} after layer {layer}", undefined)
            for kind, (what, undefined) in kinds.items()
            for layer in self.layers
        )

    def measure(self, seen: Seen, batch: Batch) -> Mapping[str, Value]:
        cells = self.cells(batch)
        values: dict[str, Value] = {}
        for layer in self.layers:
            hidden = seen.hidden[f"L{layer}_out"]
            values[f"cos_mask_L{layer}"] = cosine_among(hidden, cells.masked)
            values[f"cos_obs_L{layer}"] = cosine_among(hidden, cells.observed)
            values[f"cos_same_L{layer}"] = cosine_of_equals(hidden, cells.inputs, cells.observed)
        return values


class OfPatterns(OfCells):
    """Base of what is measured on attention maps, shared by the two below."""

    def __init__(self, setting: Setting):
        super().__init__(setting)
        self._pairs: dict[int, tuple[Tensor, Tensor]] = {}

    def masses(self, seen: Seen, batch: Batch) -> dict[tuple[str, str, int], Float[Tensor, " head"]]:
        """(mass, kind of query, layer) → a number a head."""
        return seen.once("cell masses", lambda: self._masses(seen, self.cells(batch)))

    def _masses(self, seen: Seen, cells: Matrices) -> dict[tuple[str, str, int], Tensor]:
        rows, columns = self._grid(cells)
        found: dict[tuple[str, str, int], Tensor] = {}
        for layer, record in enumerate(seen.observation.records):
            pattern = record.map()
            for kind, queries in (("mask", cells.masked), ("obs", cells.observed)):
                masses = attention_masses(pattern, queries, cells.observed, rows, columns)
                masses["fixed"] = fixedness(mean_pattern(pattern, queries))
                found |= {(name, kind, layer): values for name, values in masses.items()}
        return found

    def _grid(self, cells: Matrices) -> tuple[Bool[Tensor, "cell cell"], Bool[Tensor, "cell cell"]]:
        n_cells = cells.inputs.shape[1]
        if n_cells not in self._pairs:
            task = self.setting.task
            assert isinstance(task, MatrixCompletion)
            m, n = task.size_of(n_cells)
            device = cells.inputs.device
            self._pairs[n_cells] = (same_row(m, n, device), same_column(m, n, device))
        return self._pairs[n_cells]


@register_measurement
class CellAttention(OfPatterns):
    """Attention on Ω and its entropy, mean over the heads of a layer."""

    name: ClassVar[str] = "cell_attention"

    def columns(self) -> tuple[Column, ...]:
        return tuple(
            Column(
                f"{_COLUMNS_OF.get(mass, mass)}_{kind}_L{layer}",
                "nats" if mass == "entropy" else "share",
                f"{_WORDS[mass]}, from {what} queries, layer {layer}, mean over heads",
                undefined,
            )
            for mass in ("omega", "entropy")
            for kind, (what, undefined) in _QUERIES.items()
            for layer in self.layers
        )

    def measure(self, seen: Seen, batch: Batch) -> Mapping[str, Value]:
        masses = self.masses(seen, batch)
        return {
            f"{_COLUMNS_OF.get(mass, mass)}_{kind}_L{layer}": masses[mass, kind, layer].mean()
            for mass in ("omega", "entropy")
            for kind in _QUERIES
            for layer in self.layers
        }


@register_measurement
class CellHeads(OfPatterns):
    """Where each head looks."""

    name: ClassVar[str] = "cell_heads"

    def columns(self) -> tuple[Column, ...]:
        return tuple(
            Column(
                name,
                "nats" if mass == "entropy" else "share",
                f"{_WORDS[mass]}, from {_QUERIES[kind][0]} queries, layer {layer}, head {head}",
                _QUERIES[kind][1],
            )
            for name, mass, kind, layer, head in self._each()
        )

    def measure(self, seen: Seen, batch: Batch) -> Mapping[str, Value]:
        masses = self.masses(seen, batch)
        return {name: masses[mass, kind, layer][head] for name, mass, kind, layer, head in self._each()}

    def _each(self) -> Iterable[tuple[str, str, str, int, int]]:
        n_heads = getattr(self.setting.model, "n_heads", 1)
        every: Sequence[str] = (*MASSES, "fixed")
        for mass in every:
            for kind in _QUERIES:
                for layer in self.layers:
                    for head in range(n_heads):
                        column = f"{_COLUMNS_OF.get(mass, mass)}_{kind}_L{layer}H{head}"
                        yield column, mass, kind, layer, head


@register_measurement
class CompletedCells(OfGenerated):
    """How often a GPT writes the right cell: those that were given are copied, the masked ones are completed."""

    name: ClassVar[str] = "completed_cells"

    @classmethod
    def misfit(cls, task: TaskBase, model: ModelConfigBase) -> str | None:
        if not isinstance(task, MatrixCompletionGPT):
            return f"it needs matrices that are written as tokens, and {task.name} has none"
        return super().misfit(task, model)

    def columns(self) -> tuple[Column, ...]:
        return (
            Column("accuracy_obs", "share", "right tokens among observed cells, generated", _NO_OBSERVED),
            Column("accuracy_mask", "share", "right tokens among masked cells, generated", _NO_MASKED),
        )

    def measure(self, seen: Seen, batch: Batch) -> Mapping[str, Value]:
        right = (seen.generated == self.true(batch)).float()
        observed = tokens_of(batch)[:, : self.task.n_outputs] != MASK
        return {
            "accuracy_obs": self.unless_broken(seen, mean_where(right, observed)),
            "accuracy_mask": self.unless_broken(seen, mean_where(right, ~observed)),
        }


__all__ = [
    "CellAttention",
    "CellHeads",
    "CellLosses",
    "CellSimilarity",
    "CompletedCells",
    "OfCells",
    "OfPatterns",
]
