"""Attention of any length in plain torch, one block of rows at a time: no map of T x T entries.

For each block of queries, against the keys that causality and the allowed set leave it:

    S = scale · Q Kᵀ,  S ← cap · tanh(S / cap),  S ← S + bias on the intervened entries
    P = S (linear) or softmax(S);  entries that are not allowed are 0 in P
    A = P, · c on the intervened entries;  O = A V
    row_mass = Σ_j |A_ij|,  set_mass = Σ_{j in set} |A_ij|
    largest = max_j |A_ij|,  entropy = -Σ_j p_ij log p_ij with p_ij = |A_ij| / row_mass_i

The backward pass makes each block again from q, k and v. With G = gradient of a mass or the entropy:

    dA = dO Vᵀ + sign(A) G,  dP = dA (· c),  dS = P (dP - Σ_j P dP) for softmax, dP for linear
    dQ += dS K,  dK += dSᵀ Q,  dV += Aᵀ dO

Memory: a few tiles of about a million entries besides the inputs and outputs. Half precision is computed in float32.
A row without any key is 0, its largest weight 0 at position -1, its entropy NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .kind import Kind, Sets
from .sets import PositionSet

__all__ = ["backward", "forward"]

ROWS = 128
"""Queries a block; half as many once a tile of them is full."""
TILE = 1 << 19
"""Entries a tile, about: 2 MB in float32, which stays in a processor's cache."""


@dataclass(frozen=True)
class _Block:
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


def _blocks(batch: int, heads: int, pos: int, kind: Kind, allowed: PositionSet | None) -> Iterator[_Block]:
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
                yield _Block(
                    slice(b, min(b + some_samples, batch)), slice(h, min(h + some_heads, heads)),
                    start, end, left, right,
                )  # fmt: skip


def _by_head(x: Tensor) -> Tensor:
    """`[batch, pos, head, d]` -> contiguous `[batch, head, pos, d]`, at least float32."""
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return wide.transpose(1, 2).contiguous()


def _rows(x: Tensor, block: _Block, start: int, end: int) -> Tensor:
    """`[batch, head, pos, ...]` -> `[sample·head, rows, ...]` of the block, a view."""
    return x[block.samples, block.heads, start:end].flatten(0, 1)


class _SetsOfBlock:
    """Where the sets lie in a block of queries; the same for all of its heads."""

    def __init__(self, pos: int, device: torch.device) -> None:
        self.pos, self.device = pos, device
        self.place: tuple[int, int, int] | None = None
        self.parts: dict[int, tuple[slice, Tensor | None]] = {}
        self.listed: dict[int, tuple[Tensor, Tensor] | None] = {}

    def move_to(self, block: _Block) -> None:
        place = (block.start, block.samples.start, block.samples.stop)
        if place != self.place:
            self.place = place
            self.parts, self.listed = {}, {}

    def part(self, chosen: PositionSet, block: _Block) -> tuple[slice, Tensor | None]:
        """The columns that may be in the set, and which of their entries are, bool `[1 or sample, 1, query, key]`
        (None: all)."""
        if id(chosen) not in self.parts:
            start, end = chosen.span(block.start, block.end, self.pos)
            start, end = max(start, block.left), min(end, block.right)
            columns, mask = slice(0, 0), None
            if start < end:
                columns = slice(start - block.left, end - block.left)
                mask = chosen.mask(block.start, block.end, start, end, self.device)
                mask = None if mask is None else _of_samples(mask, block)
            self.parts[id(chosen)] = columns, mask
        return self.parts[id(chosen)]

    def lists(self, chosen: PositionSet, block: _Block) -> tuple[Tensor, Tensor] | None:
        """The columns of each query's keys and whether there is one, `[1 or sample, 1, query, K]`; None where the set
        is better looked up in a mask."""
        if id(chosen) not in self.listed:
            found = chosen.lists(block.start, block.end, self.device)
            columns = None
            if found is not None:
                inside = (found >= block.left) & (found < block.right)
                places = torch.where(inside, found - block.left, 0)
                columns = _of_samples(places, block), _of_samples(inside, block)
            self.listed[id(chosen)] = columns
        return self.listed[id(chosen)]


def _of_samples(x: Tensor, block: _Block) -> Tensor:
    """A set's `[1 or batch, query, ...]` for the samples of the block, with a dimension for the heads."""
    return (x if x.shape[0] == 1 else x[block.samples])[:, None]


class _Map:
    """The attention map, a block at a time, always as `[sample, head, query, key]`."""

    def __init__(self, q: Tensor, k: Tensor, c: Tensor | None, sets: Sets, kind: Kind) -> None:
        self.q, self.k = _by_head(q).mul(kind.scale), _by_head(k)
        self.kind, self.sets = kind, sets
        self.c: float | Tensor = kind.c if c is None else c.to(self.q.dtype)
        self.where = _SetsOfBlock(q.shape[1], q.device)
        self.future = torch.ones(ROWS, ROWS, dtype=torch.bool, device=q.device).triu_(1)
        self.outside = -math.inf if kind.softmax else 0.0
        self.has_factor = sets.intervene is not None and (c is not None or kind.c != 1.0)
        self.has_bias = sets.intervene is not None and kind.softmax and kind.bias != 0.0
        # Only then can a row be left without any key.
        self.may_be_empty = sets.allowed is not None or (self.has_bias and kind.bias == -math.inf)

    def blocks(self) -> Iterator[_Block]:
        batch, heads, pos, _ = self.q.shape
        return _blocks(batch, heads, pos, self.kind, self.sets.allowed)

    def scores(self, block: _Block, *, with_slope: bool = False) -> tuple[Tensor, Tensor | None]:
        """S, with what is not allowed at -inf (softmax) or 0 (linear), and where wanted the slope of the soft cap."""
        self.where.move_to(block)
        q = _rows(self.q, block, block.start, block.end)
        k = _rows(self.k, block, block.left, block.right)
        scores = torch.bmm(q, k.transpose(1, 2)).view(block.shape)
        slope = None
        if self.kind.soft_cap:
            scores.div_(self.kind.soft_cap).tanh_()
            slope = 1 - scores.square() if with_slope else None
            scores.mul_(self.kind.soft_cap)
        if self.has_bias:
            assert self.sets.intervene is not None
            columns, mask = self.where.part(self.sets.intervene, block)
            part = scores[..., columns]
            part.add_(self.kind.bias if mask is None else torch.where(mask, self.kind.bias, 0.0))
        if self.kind.causal:
            self.hide_the_future(scores, block)
        if self.sets.allowed is not None:
            columns, mask = self.where.part(self.sets.allowed, block)
            scores[..., : columns.start] = self.outside
            scores[..., columns.stop :] = self.outside
            if mask is not None:
                scores[..., columns].masked_fill_(~mask, self.outside)
        return scores, slope

    def hide_the_future(self, scores: Tensor, block: _Block) -> None:
        rows = block.end - block.start
        scores[..., block.start - block.left :].masked_fill_(self.future[:rows, :rows], self.outside)

    def pattern(self, scores: Tensor) -> Tensor:
        """P; the scores may be overwritten."""
        if not self.kind.softmax:
            return scores
        if not self.may_be_empty:
            return torch.softmax(scores, -1)
        empty = (scores == -math.inf).all(-1, keepdim=True)
        return torch.softmax(scores.masked_fill_(empty, 0.0), -1).masked_fill_(empty, 0.0)

    def factor(self, pattern: Tensor, block: _Block, *, inplace: bool = False) -> Tensor:
        """`pattern`, or a gradient of A, times c on the intervened entries."""
        if not self.has_factor:
            return pattern
        assert self.sets.intervene is not None
        columns, mask = self.where.part(self.sets.intervene, block)
        result = pattern if inplace else pattern.clone()
        part = result[..., columns]
        part.copy_(part * self.c if mask is None else torch.where(mask, part * self.c, part))
        return result


def _mass(size: Tensor, chosen: PositionSet, where: _SetsOfBlock, block: _Block) -> Tensor:
    """Σ_{j in set} of the sizes `[sample, head, query, key]`: `[sample, head, query]`."""
    listed = where.lists(chosen, block)
    if listed is not None:
        columns, inside = listed
        of_keys = size.gather(3, columns.expand(*size.shape[:3], -1))
        return torch.where(inside, of_keys, 0.0).sum(-1)
    columns_of_part, mask = where.part(chosen, block)
    part = size[..., columns_of_part]
    return (part if mask is None else torch.where(mask, part, 0.0)).sum(-1)


def _add_on_set(total: Tensor, grad: Tensor, chosen: PositionSet, where: _SetsOfBlock, block: _Block) -> None:
    """Add `grad` `[sample, head, query]` to `total` `[sample, head, query, key]` on the set."""
    listed = where.lists(chosen, block)
    if listed is not None:
        columns, inside = listed
        total.scatter_add_(3, columns.expand(*total.shape[:3], -1), torch.where(inside, grad[..., None], 0.0))
        return
    columns_of_part, mask = where.part(chosen, block)
    total[..., columns_of_part] += (
        grad[..., None] if mask is None else torch.where(mask, grad[..., None], 0.0)
    )


def forward(
    q: Tensor, k: Tensor, v: Tensor, c: Tensor | None, sets: Sets, kind: Kind
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Output `[batch, pos, head, d_v]`, row mass `[batch, head, pos]`, set mass `[batch, head, set, pos]`, largest
    weight, its position (int64) and entropy, each `[batch, head, pos]` (empty in the last dimension unless wanted)."""
    batch, pos, heads, _ = q.shape
    attention, values = _Map(q, k, c, sets, kind), _by_head(v)
    output = values.new_empty(batch, heads, pos, v.shape[3])
    row_mass = values.new_empty(batch, heads, pos)
    set_mass = values.new_empty(batch, heads, kind.n_sets, pos)
    wanted = pos if kind.statistics == "all" else 0
    largest = values.new_empty(batch, heads, wanted)
    place = torch.empty(batch, heads, wanted, dtype=torch.int64, device=q.device)
    entropy = values.new_empty(batch, heads, pos if kind.statistics else 0)
    for block in attention.blocks():
        here = (block.samples, block.heads, slice(block.start, block.end))
        weights = attention.factor(attention.pattern(attention.scores(block)[0]), block, inplace=True)
        part = torch.bmm(weights.flatten(0, 1), _rows(values, block, block.left, block.right))
        output[here] = part.view(*block.shape[:3], -1)
        # Softmax weights have no sign; a factor may give them one.
        size = weights if kind.softmax and not attention.has_factor else weights.abs_()
        if kind.row_mass or kind.statistics:
            row_mass[here] = size.sum(-1)
        for s, chosen in enumerate(sets.metric):
            set_mass[block.samples, block.heads, s, here[2]] = _mass(size, chosen, attention.where, block)
        if kind.statistics == "all":
            most, at = size.max(-1)
            largest[here] = most
            place[here] = torch.where(most == 0, -1, at + block.left)
        if kind.statistics:
            entropy[here] = _entropy(size, row_mass[here])
    return output.transpose(1, 2).to(v.dtype), row_mass, set_mass, largest, place, entropy


def _entropy(size: Tensor, mass: Tensor) -> Tensor:
    """-Σ p log p of p = size / mass, NaN where the mass is 0; size `[..., key]`."""
    # Not xlogy, which takes four times as long. What is below the smallest number adds nothing either way.
    weighted = size.clamp_min(torch.finfo(size.dtype).tiny).log_().mul_(size)
    return mass.log() - weighted.sum(-1) / mass


def backward(
    grad_output: Tensor,
    grad_row: Tensor | None,
    grad_set: Tensor | None,
    grad_entropy: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    c: Tensor | None,
    sets: Sets,
    kind: Kind,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, each `[batch, pos, head, d]`."""
    attention, values = _Map(q, k, c, sets, kind), _by_head(v)
    g_output = _by_head(grad_output)
    g_q, g_k, g_v = (torch.zeros_like(x) for x in (attention.q, attention.k, values))
    masses = (grad_row, grad_set, grad_entropy)
    for block in attention.blocks():
        scores, slope = attention.scores(block, with_slope=True)
        pattern = attention.pattern(scores)
        weights = attention.factor(pattern, block)
        g_rows = _rows(g_output, block, block.start, block.end)
        v_rows = _rows(values, block, block.left, block.right)
        g = torch.bmm(g_rows, v_rows.transpose(1, 2)).view(block.shape)
        if any(x is not None for x in masses):
            _add_masses(g, weights, masses, attention, block)
        _add_rows(g_v, block, torch.bmm(weights.flatten(0, 1).transpose(1, 2), g_rows))
        attention.factor(g, block, inplace=True)
        if kind.softmax:
            g.sub_((g * pattern).sum(-1, keepdim=True)).mul_(pattern)
        else:
            if kind.causal:
                attention.hide_the_future(g, block)
            _hide_forbidden(g, attention, block)
        if slope is not None:
            g.mul_(slope)
        flat = g.flatten(0, 1)
        q_rows = _rows(attention.q, block, block.start, block.end)
        k_rows = _rows(attention.k, block, block.left, block.right)
        here = (block.samples, block.heads, slice(block.start, block.end))
        g_q[here] = torch.bmm(flat, k_rows).mul_(kind.scale).view(*block.shape[:3], -1)
        _add_rows(g_k, block, torch.bmm(flat.transpose(1, 2), q_rows))
    return tuple(g.transpose(1, 2).to(x.dtype) for g, x in zip((g_q, g_k, g_v), (q, k, v), strict=True))  # type: ignore[return-value]


def _add_rows(total: Tensor, block: _Block, part: Tensor) -> None:
    samples, heads, _, keys = block.shape
    total[block.samples, block.heads, block.left : block.right] += part.view(samples, heads, keys, -1)


def _hide_forbidden(g: Tensor, attention: _Map, block: _Block) -> None:
    """0 where the allowed set is not."""
    if attention.sets.allowed is None:
        return
    columns, mask = attention.where.part(attention.sets.allowed, block)
    g[..., : columns.start] = 0.0
    g[..., columns.stop :] = 0.0
    if mask is not None:
        g[..., columns].masked_fill_(~mask, 0.0)


def _add_masses(
    g: Tensor,
    weights: Tensor,
    masses: tuple[Tensor | None, Tensor | None, Tensor | None],
    attention: _Map,
    block: _Block,
) -> None:
    """Add to dA what comes through the masses and the entropy."""
    grad_row, grad_set, grad_entropy = masses
    here = (block.samples, block.heads, slice(block.start, block.end))
    total = torch.zeros_like(weights)
    if grad_row is not None:
        total += grad_row[here][..., None]
    if grad_set is not None:
        for s, chosen in enumerate(attention.sets.metric):
            _add_on_set(
                total, grad_set[block.samples, block.heads, s, here[2]], chosen, attention.where, block
            )
    if grad_entropy is not None:
        size = weights.abs()
        mass = size.sum(-1)
        log_size = torch.where(size > 0, size.log(), 0.0)
        mean_log = (size * log_size).sum(-1) / mass
        slope = torch.where(size > 0, (mean_log[..., None] - log_size) / mass[..., None], 0.0)
        total += slope * torch.where(mass > 0, grad_entropy[here], 0.0)[..., None]
    g.addcmul_(total, weights.sign())
