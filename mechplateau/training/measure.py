"""One row of the metrics table: all measurements of a run, from one forward and at most one generation.

What they are and what their columns mean: `mechplateau.measurements`. `evaluation.samples` fresh examples serve for
everything; with `paper`, what depends on the forward is of the training batch, and accuracy, repetition and entropy of
64 fresh sequences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechplateau.errors import UserError
from mechplateau.measurements import Measurement, Seen, Setting, chosen_measurements, joined_columns
from mechplateau.measurements.base import Value
from mechplateau.objectives import Batch

PAPER_FRESH = 64


class Measurer:
    """Measures a model on a task; prepared once, then called at every evaluation step.

    Args:
        setting: the task, the model's configuration, where hidden states are looked at, and the device.
        asked: names of the measurements to make; None: the task's own.

    Raises:
        ConfigError: a measurement is not known or does not fit, or two have a column of one name.
        UserError: from `row` and `numbers`, where a measurement returns anything but numbers of its own columns.
    """

    def __init__(self, setting: Setting, asked: Sequence[str] | None = None):
        self.setting = setting
        chosen = chosen_measurements(setting.task, setting.model, asked)
        self.measurements: tuple[Measurement, ...] = tuple(cls(setting) for cls in chosen)
        self._columns = joined_columns(self.measurements)
        self._names_of = {one.name: {column.name for column in one.columns()} for one in self.measurements}
        self._integers = frozenset(column.name for column in self._columns if column.dtype == "int64")
        self._names: tuple[str, ...] = ()

    def columns(self) -> tuple[str, ...]:
        """Names of the table's columns, in order."""
        return tuple(column.name for column in self._columns)

    @torch.no_grad()
    def row(
        self, model: Any, step: int, batch: Batch, fresh: Batch | None = None
    ) -> dict[str, float | int | None]:
        """One row of the table, in a single copy to the host.

        Args:
            model: in eval mode.
            step: updates done.
            batch: the examples measured.
            fresh: other examples, for what the authors measure on fresh ones; None: `batch`.
        """
        given = (batch,) if fresh is None else (batch, fresh)
        return self.row_of(self.numbers(model, *given), step)

    @property
    def fixed_shapes(self) -> bool:
        """Whether a CUDA graph can hold `numbers`."""
        return all(measurement.fixed_shapes for measurement in self.measurements)

    @torch.no_grad()
    def numbers(self, model: Any, batch: Batch, fresh: Batch | None = None) -> Float[Tensor, " numbers"]:
        """All numbers of a row, still on the device, without waiting for it; arguments as for `row`."""
        if fresh is None:
            values = self._measured(model, batch, self.measurements)
        else:
            of_fresh = [one for one in self.measurements if one.fresh]
            values = self._measured(model, batch, [one for one in self.measurements if not one.fresh])
            values |= self._measured(model, fresh, of_fresh)
        defined = {name: value for name, value in values.items() if value is not None}
        self._names = tuple(defined)
        return torch.stack([value.double() for value in defined.values()])

    def row_of(self, numbers: Float[Tensor, " numbers"], step: int) -> dict[str, float | int | None]:
        """The row made of what `numbers` last returned."""
        # A number that is not finite (a diverged loss, say) is undefined: null, as in every other place.
        row: dict[str, float | int | None] = {
            name: int(number) if name in self._integers else number
            for name, number in zip(self._names, numbers.tolist(), strict=True)
            if math.isfinite(number)
        }
        row["step"] = step
        return {column.name: row.get(column.name) for column in self._columns}

    def _measured(self, model: Any, batch: Batch, measurements: Sequence[Measurement]) -> dict[str, Value]:
        if not measurements:
            return {}
        needs = frozenset().union(*(one.needs for one in measurements))
        seen = Seen(model, batch, self.setting, needs)
        values: dict[str, Value] = {}
        for one in measurements:
            values |= self._checked(one, one.measure(seen, batch))
        return values

    def _checked(self, one: Measurement, values: Any) -> Mapping[str, Value]:
        """What a measurement returned, after a check that it is numbers, or None, of its own columns."""
        own = self._names_of[one.name]
        if not isinstance(values, Mapping) or not values.keys() <= own:
            got = ", ".join(map(str, values)) if isinstance(values, Mapping) else type(values).__name__
            raise UserError(
                f"{type(one).__name__}.measure: expected a mapping of its columns ({', '.join(sorted(own))}) to "
                f"numbers, got {got}"
            )
        for name, value in values.items():
            if value is not None and (not isinstance(value, torch.Tensor) or value.dim() > 0):
                got = f"shape {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
                raise UserError(
                    f"{type(one).__name__}.measure: {name}: expected a tensor of one number (shape []) or None, "
                    f"got {got}"
                )
        return values
