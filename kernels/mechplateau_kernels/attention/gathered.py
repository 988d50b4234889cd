"""Sums over sets of few keys a query, with the keys gathered one by one: time and memory of T · K · d, and no map.

For the listed keys j of query i alone, s_ij = q_i·k_j. What a score weighs is the caller's: |s| in linear attention,
exp(s - LSE_i) in softmax. Rows are those of all samples, one after the other: row b · T + i is query i of sample b.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .sets import LISTED_UP_TO, PositionSet

__all__ = ["Weigh", "few_keys", "flat", "masses", "pull_back"]

PART = 1 << 18
"""Entries of queries, and of keys, that are gathered at a time, about: 1 MB in float32, in a processor's cache."""
LISTS = 1 << 17
"""Places of lists that are looked at at a time, about: 1 MB."""

Weigh = Callable[[Tensor, Tensor], Tensor]
"""From scores `[entry, head]` and the row of each entry to a tensor of the scores' shape."""


def few_keys(chosen: PositionSet) -> int | None:
    """The most keys a query has in the set, where its structure says that they are few; otherwise None."""
    if chosen.first <= LISTED_UP_TO:
        return chosen.first
    if chosen.entries is not None:
        return None
    if chosen.indices is not None:
        listed = chosen.indices.shape[2]
    elif chosen.query_codes is None:
        listed = chosen.high - chosen.low + 1
    else:
        return None
    return max(listed, 0) if listed <= LISTED_UP_TO else None


def flat(x: Tensor) -> Tensor:
    """`[batch, pos, head, d]` -> `[row, head · d]`, contiguous."""
    return x.reshape(x.shape[0] * x.shape[1], x.shape[2] * x.shape[3]).contiguous()


class _Part(NamedTuple):
    """The sets' entries of some queries, of all sets together: a few large operations instead of many small ones. On
    the CPU those that there are; elsewhere, where counting them would wait for the device, every place of the lists has
    one."""

    rows: Tensor
    """Of each entry: its row."""
    keys: Tensor
    """The row of its key."""
    places: Tensor
    """Of each entry: set · all rows + row."""
    inside: Tensor | None
    """Whether it is in its set; None: all are."""
    first: int
    """The first of its rows, which follow one another: of one sample some, or of several samples all."""
    widths: list[int]
    """Places of a row in the lists of each set."""


def _lists(chosen: PositionSet, start: int, end: int, pos: int, device: torch.device) -> Tensor:
    """int64 `[1 or batch, query, K]`, -1 for none."""
    if chosen.first > LISTED_UP_TO:
        listed = chosen.lists(start, end, device)
        assert listed is not None
        return listed
    n = min(chosen.first, pos)
    keys = torch.arange(n, device=device).expand(1, end - start, n)
    mask = chosen.mask(start, end, 0, n, device) if n else None
    return keys if mask is None else torch.where(mask, keys, -1)


def _parts(sets: Sequence[PositionSet], like: Tensor, causal: bool) -> Iterator[_Part]:
    """Of all samples and queries; `like` is `[batch, pos, head, d]`."""
    batch, pos, heads, width = like.shape
    places = max(1, sum(few_keys(one) or 0 for one in sets))
    together = max(1, LISTS // places if like.device.type == "cpu" else PART // (places * heads * width))
    step, several = min(together, pos), max(1, together // pos)
    for b in range(0, batch, several):
        samples = slice(b, min(b + several, batch))
        own = [one.of_samples(samples) for one in sets]
        for start in range(0, pos, step):
            part = _part(own, samples, slice(start, min(start + step, pos)), like, causal)
            if part.inside is not None:
                yield part
                continue
            cuts = [x.split(max(1, PART // (heads * width))) for x in part[:3]]
            for rows, keys, places_of in zip(*cuts, strict=True):
                yield part._replace(rows=rows, keys=keys, places=places_of)


def _part(sets: Sequence[PositionSet], samples: slice, queries: slice, like: Tensor, causal: bool) -> _Part:
    batch, pos = like.shape[:2]
    device = like.device
    listed = [_lists(one, queries.start, queries.stop, pos, device) for one in sets]
    found = torch.cat([x.expand(samples.stop - samples.start, -1, -1) for x in listed], dim=2)
    last = torch.arange(queries.start, queries.stop, device=device)[:, None] if causal else pos - 1
    inside = (found >= 0) & (found <= last)
    widths = [x.shape[2] for x in listed]
    of_columns = [s * batch * pos for s, places in enumerate(widths) for _ in range(places)]
    place = torch.tensor(of_columns, dtype=torch.int64, device=device)
    first = samples.start * pos + queries.start
    if device.type == "cpu":
        sample, query, column = inside.nonzero(as_tuple=True)
        before = (sample + samples.start).mul_(pos)
        rows = (before + query).add_(queries.start)
        keys = found[sample, query, column].add_(before)
        return _Part(rows, keys, place[column].add_(rows), None, first, widths)
    rows = torch.arange(first, first + found.shape[0] * found.shape[1], device=device)[:, None]
    inside, found = inside.flatten(0, 1), found.flatten(0, 1)
    keys = torch.where(inside, found + (rows - rows % pos), 0).flatten()
    all_places = (rows + place).flatten()
    return _Part(rows.expand_as(found).flatten(), keys, all_places, inside.flatten(), first, widths)


def _by_head(x: Tensor, heads: int) -> Tensor:
    """`[entry, head · d]` -> `[entry, head, d]`."""
    return x.view(len(x), heads, x.shape[1] // heads)


def masses(
    q: Tensor, k: Tensor, weigh: Weigh, sets: Sequence[PositionSet], like: Tensor, causal: bool
) -> Tensor:
    """Σ_j of the weights on each set, `[batch, head, set, pos]`.

    Args:
        q, k: as `flat` gives them.
        weigh: weights of scores q·k.
        sets: of few keys each.
        like: `[batch, pos, head, d]`, for its shape.
        causal: only keys that are not after the query.
    """
    batch, pos, heads, _ = like.shape
    total = q.new_zeros(len(sets) * batch * pos, heads)
    for part in _parts(sets, like, causal):
        scores = _by_head(_rows(q, part.rows).mul_(_rows(k, part.keys)), heads).sum(-1)
        weights = weigh(scores, part.rows)
        if part.inside is None:
            total.index_add_(0, part.places, weights)
        elif sum(part.widths):
            weights = torch.where(part.inside[:, None], weights, 0.0).view(-1, sum(part.widths), heads)
            of_rows = slice(part.first, part.first + len(weights))
            for s, of_set in enumerate(weights.split(part.widths, dim=1)):
                total.view(len(sets), -1, heads)[s, of_rows] = of_set.sum(1)
    return total.view(len(sets), batch, pos, heads).permute(1, 3, 0, 2).contiguous()


def _rows(x: Tensor, rows: Tensor) -> Tensor:
    return x.index_select(0, rows)


def pull_back(
    q: Tensor, k: Tensor, slope: Weigh, grad: Tensor, sets: Sequence[PositionSet], like: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """What gradients of the masses, `[batch, head, set, pos]`, come to: of q and k (flat as they are), and Σ_j of
    what reaches the scores of each row, `[row, head]`.

    `slope` gives from scores how fast their weights change. Sums go entry by entry in their order, on the CPU: a GPU
    would add them in any.
    """
    heads = like.shape[2]
    g_q, g_k, g_rows = torch.zeros_like(q), torch.zeros_like(k), q.new_zeros(len(q), heads)
    of_places = grad.permute(2, 0, 3, 1).reshape(-1, heads)
    for part in _parts(sets, like, causal):
        of_q, of_k = _rows(q, part.rows), _rows(k, part.keys)
        scores = _by_head(of_q * of_k, heads).sum(-1)
        g = slope(scores, part.rows).mul_(of_places[part.places])
        if part.inside is not None:
            g = torch.where(part.inside[:, None], g, 0.0)
        g_rows.index_add_(0, part.rows, g)
        g_q.index_add_(0, part.rows, _by_head(of_k, heads).mul_(g[..., None]).flatten(1))
        g_k.index_add_(0, part.keys, _by_head(of_q, heads).mul_(g[..., None]).flatten(1))
    return g_q, g_k, g_rows
