"""The batches a chain sees: the same ones, in the same order, for every chain and at every checkpoint.

Batch s depends on the seed and on s alone, so that a chain can be stopped and resumed at any step. What is not made
here is taken as it is: a list of batches is used in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from mechplateau.errors import UserError

BATCHES, BASELINE = 1, 2
"""Streams of random numbers that must not be the same; `sgld` and `curvature` have their own."""


class Batches(Protocol):
    """The data of a chain: an interface."""

    @property
    def n(self) -> int | None:
        """Rows of the data set, the n in n·beta; None where there is no such number."""

    def batch(self, step: int) -> Any:
        """The batch of step `step`, counted from 0."""

    def baseline(self) -> Iterator[tuple[float, Any]]:
        """Batches over which L(w*) is the mean, each with its weight (rows)."""


def seed_of(*keys: int) -> int:
    """One seed from several numbers; other numbers give another seed.

    Raises:
        UserError: a negative one.
    """
    if min(keys) < 0:
        raise UserError(f"seed: expected a whole number of at least 0, got {min(keys)}")
    return int(np.random.SeedSequence(keys).generate_state(1, np.uint64)[0] >> np.uint64(1))


@dataclass(frozen=True, eq=False)
class Rows:
    """A data set in memory, in batches without repetition; a new order each time it has been gone through.

    The rows that are left over at the end of an order are not used in it. L(w*) is the mean over all rows.

    Attributes:
        rows: a tensor `[row, …]`, or a sequence of such tensors that belong together (the batch is then a tuple).
        batch_size: rows a batch.
        seed: of the orders.

    Raises:
        UserError: fewer rows than a batch, or tensors of different lengths.
    """

    rows: Tensor | Sequence[Tensor]
    batch_size: int
    seed: int = 0

    def __post_init__(self) -> None:
        lengths = {len(tensor) for tensor in self._tensors}
        if len(lengths) != 1:
            raise UserError(f"rows: expected tensors of one length, got lengths {sorted(lengths)}")
        if not 1 <= self.batch_size <= self.n:
            raise UserError(
                f"batch_size: expected 1 to {self.n}, the rows of this data set, got {self.batch_size}; "
                "take a smaller batch or more rows"
            )

    @property
    def _tensors(self) -> tuple[Tensor, ...]:
        return (self.rows,) if isinstance(self.rows, Tensor) else tuple(self.rows)

    @property
    def n(self) -> int:
        """Rows of the data set."""
        return len(self._tensors[0])

    def batch(self, step: int) -> Any:
        """The batch of this step."""
        epoch, place = divmod(step, self.n // self.batch_size)
        order = _order(self.n, self.seed, epoch)
        return self._take(order[place * self.batch_size : (place + 1) * self.batch_size])

    def baseline(self) -> Iterator[tuple[float, Any]]:
        """All rows once."""
        for chosen in torch.arange(self.n).split(self.batch_size):
            yield float(len(chosen)), self._take(chosen)

    def _take(self, chosen: Tensor) -> Any:
        taken = tuple(tensor[chosen.to(tensor.device)] for tensor in self._tensors)
        return taken[0] if isinstance(self.rows, Tensor) else taken


@lru_cache(maxsize=2)
def _order(n: int, seed: int, epoch: int) -> Tensor:
    """One pass through the rows; kept, since every step of the pass needs it."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed_of(seed, BATCHES, epoch)))


@dataclass(frozen=True, eq=False)
class Fresh:
    """New data at every step, made by a function.

    There is no data set, hence no n: with `n_beta` given, nothing else is needed. To define n in n·beta, give
    the number of samples that you mean, such as those seen in training so far.

    Attributes:
        make: `make(batch_size, generator)` → a batch; the generator is torch's, on the CPU, seeded for each step.
        batch_size: samples a batch.
        n: the number of samples that n·beta is about; None: not said.
        seed: of the data.
        baseline_batches: L(w*) is the mean over this many batches, which no chain sees.
    """

    make: Callable[[int, torch.Generator], Any]
    batch_size: int
    n: int | None = None
    seed: int = 0
    baseline_batches: int = 32

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.baseline_batches < 1:
            raise UserError(
                "batch_size and baseline_batches: expected at least 1, got "
                f"{self.batch_size} and {self.baseline_batches}"
            )

    def batch(self, step: int) -> Any:
        """The batch of this step."""
        return self._made(BATCHES, step)

    def baseline(self) -> Iterator[tuple[float, Any]]:
        """Batches of their own."""
        for index in range(self.baseline_batches):
            yield float(self.batch_size), self._made(BASELINE, index)

    def _made(self, stream: int, index: int) -> Any:
        generator = torch.Generator().manual_seed(seed_of(self.seed, stream, index))
        return self.make(self.batch_size, generator)


@dataclass(frozen=True, eq=False)
class _Listed:
    """Given batches, used in turn; L(w*) is the mean over all of them, each with the same weight."""

    batches: Sequence[Any]

    @property
    def n(self) -> int | None:
        sizes = [_rows(batch) for batch in self.batches]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def batch(self, step: int) -> Any:
        return self.batches[step % len(self.batches)]

    def baseline(self) -> Iterator[tuple[float, Any]]:
        for batch in self.batches:
            yield 1.0, batch


class _Nothing:
    """For a loss that is a function of the parameters alone."""

    n = None

    def batch(self, step: int) -> None:
        return None

    def baseline(self) -> Iterator[tuple[float, Any]]:
        yield 1.0, None


def as_batches(data: Batches | Sequence[Any] | None) -> Batches:
    """The data in the form that a chain needs.

    Raises:
        UserError: an empty list, or a tensor (which could be one batch or a data set).
    """
    if data is None:
        return _Nothing()
    if isinstance(data, Tensor):
        raise UserError(
            "data: expected Rows(tensor, batch_size=…) or a list of batches, got a tensor of shape "
            f"{list(data.shape)}, which could be either"
        )
    if hasattr(data, "batch") and hasattr(data, "baseline"):
        return cast(Batches, data)
    if isinstance(data, str | Mapping) or not isinstance(data, Sequence) or not len(data):
        raise UserError(
            f"data: expected Rows, Fresh, a list of at least one batch, or None, got {type(data).__name__}"
            f"{' of length 0' if isinstance(data, Sequence) and not len(data) else ''}"
        )
    return _Listed(data)


def moved(batch: Any, device: torch.device) -> Any:
    """The batch on this device: a tensor, a tuple, list or mapping of them, or an object with `.to`."""
    if isinstance(batch, Mapping):
        return {key: moved(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(value, device) for value in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(moved(value, device) for value in batch)
    return batch.to(device) if hasattr(batch, "to") else batch


def _rows(batch: Any) -> int | None:
    if isinstance(batch, Mapping):
        batch = tuple(batch.values())
    if isinstance(batch, tuple | list):
        batch = batch[0] if batch else None
    return len(batch) if hasattr(batch, "__len__") and not isinstance(batch, str) else None
