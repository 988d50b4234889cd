"""A request for attention of any length, in the form that a torch operation takes: numbers, flags and tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from .sets import PositionSet

__all__ = ["PER_SET", "Kind", "Sets", "decode", "encode"]


class Kind(NamedTuple):
    """The arguments of the operation that are not tensors."""

    softmax: bool
    scale: float
    soft_cap: float
    """Scores become cap · tanh(score / cap); 0: they stay."""
    causal: bool
    c: float
    """Factor on the intervened weights, where no tensor holds it."""
    bias: float
    """Added to the intervened scores before the softmax; -inf takes them out."""
    n_sets: int
    allowed: bool
    intervene: bool
    statistics: str
    """What is wanted of rows: "" for nothing, "entropy", or "all": the largest weight, its place and the entropy."""
    row_mass: bool
    """Whether the rows' masses are wanted."""
    algorithm: str
    precision: str


class Sets(NamedTuple):
    """The sets of a call."""

    metric: list[PositionSet]
    allowed: PositionSet | None
    intervene: PositionSet | None


PER_SET = 7


def encode(sets: Sets) -> tuple[list[Tensor], tuple[int, ...]]:
    """The tensors that the sets hold, each once, and `PER_SET` numbers a set: its bounds, and which tensors are its
    own (-1 for none)."""
    tensors: list[Tensor] = []

    def place(x: Tensor | None) -> int:
        if x is None:
            return -1
        for i, known in enumerate(tensors):
            if known is x:
                return i
        tensors.append(x)
        return len(tensors) - 1

    numbers: list[int] = []
    for chosen in (*sets.metric, *(x for x in (sets.allowed, sets.intervene) if x is not None)):
        held = (chosen.query_codes, chosen.key_codes, chosen.indices, chosen.entries)
        numbers += [chosen.low, chosen.high, chosen.first, *(place(x) for x in held)]
    return tensors, tuple(numbers)


def decode(tensors: Sequence[Tensor], numbers: Sequence[int], kind: Kind) -> Sets:
    """What `encode` was given."""
    sets = []
    for start in range(0, len(numbers), PER_SET):
        low, high, first, *places = numbers[start : start + PER_SET]
        query, key, indices, entries = (None if i < 0 else tensors[i] for i in places)
        sets.append(PositionSet(low, high, first, query, key, indices, entries))
    rest = sets[kind.n_sets :]
    return Sets(
        sets[: kind.n_sets],
        rest[0] if kind.allowed else None,
        rest[-1] if kind.intervene else None,
    )
