"""Blocks of queries against the keys they may attend to, and where sets lie in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .kind import Kind
from .sets import PositionSet

__all__ = ["ROWS", "TILE", "Block", "SetsOfBlock", "blocks", "of_samples", "rows_of"]

ROWS = 128
"""Queries a block; half as many once a tile of them is full."""
TILE = 1 << 19
"""Entries a tile, about: 2 MB in float32, which stays in a processor's cache."""


@dataclass(frozen=True)
class Block:
    """Queries `[start, end)` against keys `[left, right)`, of some samples and heads."""

    samples: slice
    heads: slice
    start: int
    end: int
    left: int
    right: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Samples, heads, queries, keys."""
        samples, heads = (s.stop - s.start for s in (self.samples, self.heads))
        return samples, heads, self.end - self.start, self.right - self.left


def blocks(batch: int, heads: int, pos: int, kind: Kind, allowed: PositionSet | None) -> Iterator[Block]:
    end = 0
    while end < pos:
        start = end
        end = min(start + (ROWS if ROWS * (start + ROWS) <= TILE else ROWS // 2), pos)
        left, right = (0, pos) if allowed is None else allowed.span(start, end, pos)
        if kind.causal:
            left, right = min(left, start), end
        elif left >= right:
            left, right = 0, 1
        together = max(1, TILE // ((end - start) * (right - left)))
        some_samples, some_heads = max(1, together // heads), min(heads, together)
        for b in range(0, batch, some_samples):
            for h in range(0, heads, some_heads):
                yield Block(
                    slice(b, min(b + some_samples, batch)), slice(h, min(h + some_heads, heads)),
                    start, end, left, right,
                )  # fmt: skip


def rows_of(x: Tensor, block: Block, start: int, end: int) -> Tensor:
    """`[batch, head, pos, ...]` -> `[sample·head, rows, ...]` of the block, a view."""
    return x[block.samples, block.heads, start:end].flatten(0, 1)


class SetsOfBlock:
    """Where the sets lie in a block of queries; the same for all of its heads."""

    def __init__(self, pos: int, device: torch.device) -> None:
        self.pos, self.device = pos, device
        self.place: tuple[int, int, int] | None = None
        self.parts: dict[int, tuple[slice, Tensor | None]] = {}
        self.listed: dict[int, tuple[Tensor, Tensor] | None] = {}

    def move_to(self, block: Block) -> None:
        place = (block.start, block.samples.start, block.samples.stop)
        if place != self.place:
            self.place = place
            self.parts, self.listed = {}, {}

    def part(self, chosen: PositionSet, block: Block) -> tuple[slice, Tensor | None]:
        """The columns that may be in the set, and which of their entries are, bool `[1 or sample, 1, query, key]`
        (None: all)."""
        if id(chosen) not in self.parts:
            start, end = chosen.span(block.start, block.end, self.pos)
            start, end = max(start, block.left), min(end, block.right)
            columns, mask = slice(0, 0), None
            if start < end:
                columns = slice(start - block.left, end - block.left)
                mask = chosen.mask(block.start, block.end, start, end, self.device)
                mask = None if mask is None else of_samples(mask, block)
            self.parts[id(chosen)] = columns, mask
        return self.parts[id(chosen)]

    def lists(self, chosen: PositionSet, block: Block) -> tuple[Tensor, Tensor] | None:
        """The columns of each query's keys and whether there is one, `[1 or sample, 1, query, K]`; None where the set
        is better looked up in a mask."""
        if id(chosen) not in self.listed:
            found = chosen.lists(block.start, block.end, self.device)
            columns = None
            if found is not None:
                inside = (found >= block.left) & (found < block.right)
                places = torch.where(inside, found - block.left, 0)
                columns = of_samples(places, block), of_samples(inside, block)
            self.listed[id(chosen)] = columns
        return self.listed[id(chosen)]


def of_samples(x: Tensor, block: Block) -> Tensor:
    """A set's `[1 or batch, query, ...]` for the samples of the block, with a dimension for the heads."""
    return (x if x.shape[0] == 1 else x[block.samples])[:, None]
