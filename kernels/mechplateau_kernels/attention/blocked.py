"""Attention of any length in plain torch, one block of rows at a time: no map of T x T entries.

For each block of queries, against the keys that causality and the allowed set leave it:

    S = scale · Q Kᵀ,  S ← cap · tanh(S / cap),  S ← S + bias on the intervened entries
    P = S (linear) or softmax(S);  entries that are not allowed are 0 in P
    A = P, · c on the intervened entries;  O = A V
    row_mass = Σ_j |A_ij|,  set_mass = Σ_{j in set} |A_ij|
    largest = max_j |A_ij|,  entropy = -Σ_j p_ij log p_ij with p_ij = |A_ij| / row_mass_i

Linear attention over many keys makes A V of the block's own keys alone, and keeps a running sum of kᵀv of those before,
where such products stay within the range of their numbers.
The backward pass makes each block again from q, k and v. With G = gradient of a mass or the entropy:

    dA = dO Vᵀ + sign(A) G,  dP = dA (· c),  dS = P (dP - Σ_j P dP) for softmax, dP for linear
    dQ += dS K,  dK += dSᵀ Q,  dV += Aᵀ dO

Memory: a few tiles of about a million entries besides the inputs and outputs. Half precision is computed in float32.
A row without any key is 0, its largest weight 0 at position -1, its entropy NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from .blocks import ROWS, Block, SetsOfBlock, blocks, of_samples, rows_of
from .kind import Kind, Sets
from .sets import PositionSet

__all__ = ["backward", "forward"]

WHOLE = 1 << 19
"""Weights on listed keys that are kept until the last block, at most: 2 MB in float32."""
SUMS_FROM = 12
"""Positions, for each column of the heads, from which linear attention keeps running sums of kᵀv."""


def _by_head(x: Tensor, scale: float | None = None) -> Tensor:
    """`[batch, pos, head, d]` -> contiguous `[batch, head, pos, d]`, at least float32, times the scale."""
    wide = (x.float() if x.dtype in (torch.float16, torch.bfloat16) else x).transpose(1, 2)
    if scale is None:
        return wide.contiguous()
    return torch.mul(wide, scale, out=wide.new_empty(wide.shape))


class _Map:
    """The attention map, a block at a time, always as `[sample, head, query, key]`."""

    def __init__(self, q: Tensor, k: Tensor, c: Tensor | None, sets: Sets, kind: Kind) -> None:
        self.q, self.k = _by_head(q, kind.scale), _by_head(k)
        self.kind, self.sets = kind, sets
        self.c: float | Tensor = kind.c if c is None else c.to(self.q.dtype)
        self.where = SetsOfBlock(q.shape[1], q.device)
        bits = torch.int64 if self.q.dtype == torch.float64 else torch.int32
        self.past = torch.full((ROWS, ROWS), -1, dtype=bits, device=q.device).tril_()
        """All bits where the key is not after the query."""
        if kind.softmax:
            self.future = self.q.new_full((ROWS, ROWS), -math.inf).triu_(1).view(bits)
            """The bits of -inf where it is."""
        self.outside = -math.inf if kind.softmax else 0.0
        self.has_factor = sets.intervene is not None and (c is not None or kind.c != 1.0)
        self.has_bias = sets.intervene is not None and kind.softmax and kind.bias != 0.0
        # Only then can a row be left without any key.
        self.may_be_empty = sets.allowed is not None or (self.has_bias and kind.bias == -math.inf)

    def blocks(self) -> Iterator[Block]:
        batch, heads, pos, _ = self.q.shape
        return blocks(batch, heads, pos, self.kind, self.sets.allowed)

    def scores(self, block: Block, *, with_slope: bool = False) -> tuple[Tensor, Tensor | None]:
        """S, with what is not allowed at -inf (softmax) or 0 (linear), and where wanted the slope of the soft cap."""
        self.where.move_to(block)
        q = rows_of(self.q, block, block.start, block.end)
        k = rows_of(self.k, block, block.left, block.right)
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

    def hide_the_future(self, scores: Tensor, block: Block) -> None:
        # By bits: several times as fast as a mask, and just as right where a score is no number.
        rows = block.end - block.start
        part = scores[..., block.start - block.left :].view(self.past.dtype)
        part.bitwise_and_(self.past[:rows, :rows])
        if self.kind.softmax:
            part.bitwise_or_(self.future[:rows, :rows])

    def pattern(self, scores: Tensor) -> Tensor:
        """P; the scores may be overwritten."""
        if not self.kind.softmax:
            return scores
        if not self.may_be_empty:
            return torch.softmax(scores, -1)
        empty = (scores == -math.inf).all(-1, keepdim=True)
        return torch.softmax(scores.masked_fill_(empty, 0.0), -1).masked_fill_(empty, 0.0)

    def factor(self, pattern: Tensor, block: Block, *, inplace: bool = False) -> Tensor:
        """`pattern`, or a gradient of A, times c on the intervened entries."""
        if not self.has_factor:
            return pattern
        assert self.sets.intervene is not None
        columns, mask = self.where.part(self.sets.intervene, block)
        result = pattern if inplace else pattern.clone()
        part = result[..., columns]
        part.copy_(part * self.c if mask is None else torch.where(mask, part * self.c, part))
        return result


class _Masses:
    """Sums over the metric sets. Those that list their keys are gathered together, and where they are few over all
    blocks, summed at the end: on several threads many small operations would cost more than what they compute."""

    def __init__(self, attention: _Map, total: Tensor) -> None:
        self.where, self.sets, self.total = attention.where, attention.sets.metric, total
        self.causal = attention.kind.causal
        batch, heads, pos, _ = attention.q.shape
        self.places: dict[int, slice] = {}
        """Of each set that lists its keys: where its lists lie beside the others'."""
        end = 0
        for s, chosen in enumerate(self.sets):
            first = chosen.lists(0, 1, self.where.device) if batch else None
            if first is not None:
                self.places[s] = slice(end, end + first.shape[2])
                end += first.shape[2]
        whole = attention.sets.allowed is None and batch * heads * pos * end <= WHOLE
        self.weights = total.new_empty(batch, heads, pos, end) if whole and self.places else None
        """Of all queries on their listed keys; None: each block's own are summed at once."""
        self.held: tuple[int, slice] | None = None
        if self.weights is not None:
            self.keys, self.outside = self._lists(0, pos, slice(0, batch))

    def _lists(self, start: int, end: int, samples: slice) -> tuple[Tensor, Tensor]:
        """The listed keys of some queries, all sets side by side, `[1 or sample, query, K]`, and where there is none,
        or one that causality hides: there the key is 0."""
        found = [self.sets[s].lists(start, end, self.where.device) for s in self.places]
        own = [x if len(x) == 1 else x[samples] for x in found if x is not None]
        keys = torch.cat([x.expand(max(map(len, own)), -1, -1) for x in own], dim=2)
        pos = self.where.pos
        last = torch.arange(start, end, device=keys.device)[:, None] if self.causal else pos - 1
        outside = (keys < 0) | (keys > last)
        return keys.masked_fill_(outside, 0), outside

    def add(self, size: Tensor, block: Block) -> None:
        """Σ_{j in set} of the sizes `[sample, head, query, key]` of a block."""
        queries = slice(block.start, block.end)
        listed = self._gathered(size, block) if self.places else None
        for s, chosen in enumerate(self.sets):
            if s not in self.places:
                columns, mask = self.where.part(chosen, block)
                part = size[..., columns]
                part = part if mask is None else torch.where(mask, part, 0.0)
            elif listed is not None:
                part = listed[..., self.places[s]]
            else:
                continue
            torch.sum(part, -1, out=self.total[block.samples, block.heads, s, queries])

    def _gathered(self, size: Tensor, block: Block) -> Tensor | None:
        """Of each query its listed keys, 0 for those that are not there; None where `finish` sums them."""
        queries = slice(block.start, block.end)
        if self.weights is not None:
            # No allowed set: the block begins at key 0.
            keys = of_samples(self.keys[:, queries], block).expand(*size.shape[:3], -1)
            torch.gather(size, 3, keys, out=self.weights[block.samples, block.heads, queries])
            return None
        if self.held != (block.start, block.samples):  # the same for all heads
            self.held = block.start, block.samples
            keys, outside = self._lists(block.start, block.end, block.samples)
            self.outside = outside | (keys < block.left) | (keys >= block.right)
            self.keys = (keys - block.left).masked_fill_(self.outside, 0)
        keys = self.keys[:, None].expand(*size.shape[:3], -1)
        return size.gather(3, keys).masked_fill_(self.outside[:, None], 0.0)

    def finish(self) -> None:
        """After the last block."""
        if self.weights is not None:
            self.weights.masked_fill_(self.outside[:, None], 0.0)
            for s, places in self.places.items():
                torch.sum(self.weights[..., places], -1, out=self.total[:, :, s])


def _add_on_set(total: Tensor, grad: Tensor, chosen: PositionSet, where: SetsOfBlock, block: Block) -> None:
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


class _Before:
    """A V of a block. Of linear attention over many keys a running sum of kᵀv holds all that lie before the block."""

    def __init__(self, attention: _Map, values: Tensor) -> None:
        self.attention, self.values = attention, values
        batch, heads, pos, d_head = attention.q.shape
        kind, sets, d_v = attention.kind, attention.sets, values.shape[3]
        plain = not (kind.softmax or attention.has_factor or sets.allowed is not None)
        self.sums: Tensor | None = None
        long = plain and kind.causal and pos > SUMS_FROM * max(d_head, d_v)
        if long and _fit(attention.k, values):
            self.sums = values.new_zeros(batch, heads, d_head, d_v)

    def output(self, weights: Tensor, block: Block) -> Tensor:
        """`[sample · head, query, d_v]`; blocks of the same samples and heads in their order."""
        if self.sums is None:
            return torch.bmm(weights.flatten(0, 1), rows_of(self.values, block, block.left, block.right))
        own = weights[..., block.start - block.left :].flatten(0, 1)
        q, k, v = (
            rows_of(x, block, block.start, block.end)
            for x in (self.attention.q, self.attention.k, self.values)
        )
        # `view` and no other: what is added must reach the sums.
        sums = self.sums[block.samples, block.heads].view(-1, q.shape[2], v.shape[2])
        output = torch.bmm(own, v).baddbmm_(q, sums)
        sums.baddbmm_(k.transpose(1, 2), v)
        return output


def _fit(k: Tensor, v: Tensor) -> bool:
    """Whether sums of kᵀv stay within the range of their numbers, where q·k first might: not with an infinity or a
    NaN. On the CPU alone: elsewhere the question would wait for the device."""
    if k.device.type != "cpu" or k.numel() == 0:
        return False
    largest, limits = k.abs().max().item() * v.abs().max().item(), torch.finfo(k.dtype)
    return limits.tiny / limits.eps**2 < largest < limits.max / k.shape[2]


def forward(
    q: Tensor, k: Tensor, v: Tensor, c: Tensor | None, sets: Sets, kind: Kind
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Output `[batch, pos, head, d_v]`, row mass `[batch, head, pos]`, set mass `[batch, head, set, pos]`, largest
    weight, its position (int64) and entropy, each `[batch, head, pos]` (empty in the last dimension unless wanted)."""
    batch, pos, heads, _ = q.shape
    attention, values = _Map(q, k, c, sets, kind), _by_head(v)
    output = values.new_empty(batch, pos, heads, v.shape[3])
    row_mass = values.new_empty(batch, heads, pos)
    set_mass = values.new_empty(batch, heads, kind.n_sets, pos)
    wanted = pos if kind.statistics == "all" else 0
    largest = values.new_empty(batch, heads, wanted)
    place = torch.empty(batch, heads, wanted, dtype=torch.int64, device=q.device)
    entropy = values.new_empty(batch, heads, pos if kind.statistics else 0)
    masses, before = _Masses(attention, set_mass), _Before(attention, values)
    for block in attention.blocks():
        here = (block.samples, block.heads, slice(block.start, block.end))
        weights = attention.factor(attention.pattern(attention.scores(block)[0]), block, inplace=True)
        output.transpose(1, 2)[here] = before.output(weights, block).view(*block.shape[:3], -1)
        # Softmax weights have no sign; a factor may give them one.
        size = weights if kind.softmax and not attention.has_factor else weights.abs_()
        if kind.row_mass or kind.statistics:
            torch.sum(size, -1, out=row_mass[here])
        masses.add(size, block)
        if kind.statistics == "all":
            most, at = size.max(-1)
            largest[here] = most
            place[here] = torch.where(most == 0, -1, at + block.left)
        if kind.statistics:
            entropy[here] = _entropy(size, row_mass[here])
    masses.finish()
    return output.to(v.dtype), row_mass, set_mass, largest, place, entropy


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
        g_rows = rows_of(g_output, block, block.start, block.end)
        v_rows = rows_of(values, block, block.left, block.right)
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
        q_rows = rows_of(attention.q, block, block.start, block.end)
        k_rows = rows_of(attention.k, block, block.left, block.right)
        here = (block.samples, block.heads, slice(block.start, block.end))
        g_q[here] = torch.bmm(flat, k_rows).mul_(kind.scale).view(*block.shape[:3], -1)
        _add_rows(g_k, block, torch.bmm(flat.transpose(1, 2), q_rows))
    return tuple(g.transpose(1, 2).to(x.dtype) for g, x in zip((g_q, g_k, g_v), (q, k, v), strict=True))  # type: ignore[return-value]


def _add_rows(total: Tensor, block: Block, part: Tensor) -> None:
    samples, heads, _, keys = block.shape
    total[block.samples, block.heads, block.left : block.right] += part.view(samples, heads, keys, -1)


def _hide_forbidden(g: Tensor, attention: _Map, block: Block) -> None:
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
    block: Block,
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
