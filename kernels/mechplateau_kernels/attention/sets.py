"""Sets of attention entries, said by their structure instead of by a mask of T x T entries.

A set says for each query which keys belong to it:

    Offsets(low, high)                keys low to high positions before the query: Offsets(1, 1) is the previous token
    First(n)                          the first n keys
    Codes(query_codes, key_codes)     keys whose code equals the query's: the same token, the same row of a matrix
    Listed(indices)                   the keys that are listed for each query
    Entries(mask)                     any set, as a bool mask; memory grows with T²

and `a & b` is their intersection. All of them are one description, `PositionSet`: bounds on the offset and on the key,
and where needed codes, lists or a mask. A set is built and checked once. An operation then reads it block by block, and
builds nothing of size T x T.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

__all__ = ["Codes", "Entries", "First", "Listed", "Offsets", "PositionSet", "as_set"]

NO_LIMIT = 2**31 - 1
LISTED_UP_TO = 32
"""Sets of at most so many keys a query are gathered key by key; beyond, a block's mask costs less."""
DRAWN_UP_TO = 64


@dataclass(frozen=True, eq=False, repr=False)
class PositionSet:
    """Which keys belong to each query. Make one with `Offsets`, `First`, `Codes`, `Listed`, `Entries` or `&`.

    Attributes:
        low, high: bounds on query minus key position, both included.
        first: keys from this position on do not belong.
        query_codes, key_codes: int64 `[1 or batch, pos]`: keys belong where the codes are equal. Where there is none:
            -1 for a query, -2 for a key.
        indices: int64 `[1 or batch, pos, K]`: the keys that belong, -1 where a query has fewer than K.
        entries: bool `[1 or batch, pos, pos]` (query, key).
        name: how the set was made.
    """

    low: int = -NO_LIMIT
    high: int = NO_LIMIT
    first: int = NO_LIMIT
    query_codes: Tensor | None = None
    key_codes: Tensor | None = None
    indices: Tensor | None = None
    entries: Tensor | None = None
    name: str = "PositionSet"

    def __repr__(self) -> str:
        return self.name

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors it holds, in the order of its attributes."""
        held = (self.query_codes, self.key_codes, self.indices, self.entries)
        return [x for x in held if x is not None]

    @property
    def _unbounded(self) -> bool:
        return self.low == -NO_LIMIT and self.high == self.first == NO_LIMIT

    @property
    def length(self) -> int | None:
        """The number of positions it was made for; None: any."""
        held = self.tensors
        return held[0].shape[1] if held else None

    @property
    def batch(self) -> int:
        """1 where all samples share it, otherwise the number of samples it was made for."""
        return max((x.shape[0] for x in self.tensors), default=1)

    def to(self, device: torch.device | str) -> PositionSet:
        """The same set on another device."""
        changes = {name: x.to(device) for name in _TENSORS if (x := getattr(self, name)) is not None}
        return replace(self, **changes)

    def of_samples(self, samples: slice) -> PositionSet:
        """The same set for some of the samples."""
        own = {name: x for name in _TENSORS if (x := getattr(self, name)) is not None and x.shape[0] > 1}
        return replace(self, **{name: x[samples] for name, x in own.items()})

    def __and__(self, other: PositionSet) -> PositionSet:
        """The entries that are in both."""
        if not isinstance(other, PositionSet):
            return NotImplemented
        _check_together(self, other)
        both = PositionSet(
            low=max(self.low, other.low),
            high=min(self.high, other.high),
            first=min(self.first, other.first),
            name=f"{self.name} & {other.name}",
        )
        a, b = self, other
        if a.entries is not None or b.entries is not None:
            pos = a.length or b.length
            assert pos is not None
            return replace(both, entries=a.dense(pos) & b.dense(pos))
        if a.indices is not None or b.indices is not None:
            listed, rest = (a, b) if a.indices is not None else (b, a)
            assert listed.indices is not None
            return replace(both, indices=rest._keep(listed.indices))
        if a.query_codes is not None and b.query_codes is not None:
            assert a.key_codes is not None
            assert b.key_codes is not None
            query, key = _paired(a.query_codes, a.key_codes, b.query_codes, b.key_codes)
            return _with_lists(replace(both, query_codes=query, key_codes=key))
        coded = a if a.query_codes is not None else b
        return _with_lists(replace(both, query_codes=coded.query_codes, key_codes=coded.key_codes))

    def span(self, first_query: int, end_query: int, pos: int) -> tuple[int, int]:
        """Keys `[start, end)` outside of which none of these queries has any; from the bounds alone."""
        start = max(0, first_query - self.high)
        end = min(pos, self.first, end_query - self.low)
        return min(start, pos), max(end, min(start, pos))

    def lists(self, first_query: int, end_query: int, device: torch.device) -> Tensor | None:
        """The keys of these queries, int64 `[1 or batch, query, K]` with -1 for none; None where a mask costs less.

        Keys beyond the last position may be among them.
        """
        if self.entries is not None or (self.indices is None and self.query_codes is not None):
            return None
        if self.indices is not None and self._unbounded:
            return self.indices[:, first_query:end_query]
        queries = torch.arange(first_query, end_query, device=device)[None, :, None]
        if self.indices is not None:
            found = self.indices[:, first_query:end_query]
            inside = (found >= 0) & self._bounds(queries, found)
        elif 0 <= self.high - self.low < LISTED_UP_TO:
            found = queries - torch.arange(self.low, self.high + 1, device=device)
            inside = found >= 0
            if self.first < NO_LIMIT:
                inside &= found < self.first
        else:
            return None
        return torch.where(inside, found, -1)

    def mask(
        self, first_query: int, end_query: int, first_key: int, end_key: int, device: torch.device
    ) -> Tensor | None:
        """Bool `[1 or batch, query, key]` of a block; None where every entry of it belongs."""
        mask: Tensor | None = None
        if self.entries is not None:
            mask = self.entries[:, first_query:end_query, first_key:end_key]
        if self.query_codes is not None and self.key_codes is not None:
            queries = self.query_codes[:, first_query:end_query, None]
            mask = _both(mask, queries == self.key_codes[:, None, first_key:end_key])
        elif self.indices is not None:
            listed = self.indices[:, first_query:end_query]
            local = torch.where(
                (listed >= first_key) & (listed < end_key), listed - first_key, end_key - first_key
            )
            block = torch.zeros(
                *listed.shape[:2], end_key - first_key + 1, dtype=torch.bool, device=listed.device
            )
            mask = _both(mask, block.scatter_(2, local, True)[:, :, :-1])
        nearest, farthest = first_query - (end_key - 1), end_query - 1 - first_key
        if nearest < self.low or farthest > self.high or end_key > self.first:
            queries = torch.arange(first_query, end_query, device=device)[:, None]
            keys = torch.arange(first_key, end_key, device=device)
            mask = _both(mask, self._bounds(queries, keys)[None])
        return mask

    def _bounds(self, queries: Tensor, keys: Tensor) -> Tensor:
        offsets = queries - keys
        inside = offsets >= self.low
        if self.high < NO_LIMIT:
            inside &= offsets <= self.high
        if self.first < NO_LIMIT:
            inside = inside & (keys < self.first)
        return inside

    def _keep(self, indices: Tensor) -> Tensor:
        """The listed keys that are in this set, -1 in place of the others. Not for a set with a mask."""
        queries = torch.arange(indices.shape[1], device=indices.device)[None, :, None]
        kept = (indices >= 0) & self._bounds(queries, indices)
        if self.query_codes is not None and self.key_codes is not None:
            batch = max(indices.shape[0], self.key_codes.shape[0])
            keys = self.key_codes[:, None, :].expand(batch, indices.shape[1], -1)
            codes = keys.gather(2, indices.clamp(min=0).expand(batch, -1, -1))
            kept = kept & (codes == self.query_codes[:, :, None])
        elif self.indices is not None:
            kept = kept & (indices[..., :, None] == self.indices[..., None, :]).any(-1)
        return torch.where(kept, indices, -1)

    def dense(self, pos: int) -> Tensor:
        """The whole set as bool `[1 or batch, pos, pos]` (query, key), entries after the query included."""
        # The commonest set of short attention, at every step of training: no question more than needed.
        entries = self.entries
        if entries is not None and entries.shape[1] == pos and self._unbounded:
            return entries
        _check_length(self, pos)
        device = self.tensors[0].device if self.tensors else torch.device("cpu")
        mask = self.mask(0, pos, 0, pos, device)
        return torch.ones(1, pos, pos, dtype=torch.bool, device=device) if mask is None else mask

    def count(self, pos: int, *, causal: bool = True) -> Tensor:
        """How many keys each query has, int64 `[1 or batch, pos]`; causal: not after the query."""
        _check_length(self, pos)
        device = self.tensors[0].device if self.tensors else torch.device("cpu")
        counts = []
        for start in range(0, pos, 128):
            end = min(start + 128, pos)
            listed = self.lists(start, end, device)
            if listed is not None:
                last = torch.arange(start, end, device=device)[None, :, None] if causal else pos - 1
                counts.append(((listed >= 0) & (listed <= last)).sum(-1))
                continue
            keys = end if causal else pos
            mask = self.mask(start, end, 0, keys, device)
            if mask is None:
                mask = torch.ones(1, end - start, keys, dtype=torch.bool, device=device)
            counts.append((mask.tril(start) if causal else mask).sum(-1))
        return torch.cat(counts, dim=1)

    def explain(self, pos: int | None = None, *, sample: int = 0, causal: bool = True) -> str:
        """A drawing for a short sequence: a row a query, a column a key, `#` in the set, `.` outside.

        Args:
            pos: number of positions, up to 64; None: what the set was made for, or 8.
            sample: which sample of a set that differs between them.
            causal: leave out keys after the query.

        Raises:
            ValueError: more than 64 positions, or not the number the set was made for; no such sample.
        """
        pos = pos or self.length or 8
        if pos > DRAWN_UP_TO:
            raise ValueError(f"{self.name}: explain draws up to {DRAWN_UP_TO} positions; got {pos}")
        if not 0 <= sample < self.batch:
            raise ValueError(f"{self.name}: expected a sample below {self.batch}; got {sample}")
        mask = self.dense(pos).expand(self.batch, pos, pos)[sample].tolist()
        lines = [f"{self.name}: queries down, keys across"]
        for query, row in enumerate(mask):
            keys = row[: query + 1] if causal else row
            lines.append(f"{query:>3} " + "".join("#" if inside else "." for inside in keys))
        return "\n".join(lines)


_TENSORS = ("query_codes", "key_codes", "indices", "entries")


def _both(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a & b


def Offsets(low: int, high: int | None) -> PositionSet:
    """Keys `low` to `high` positions before the query, both included; None: all before. Offset 0 is the query itself,
    below 0 lie the keys after it."""
    _require_int("Offsets: low", low)
    if high is not None:
        _require_int("Offsets: high", high)
        if high < low:
            raise ValueError(f"Offsets: expected low <= high; got {low} and {high}")
    return PositionSet(low=low, high=NO_LIMIT if high is None else high, name=f"Offsets({low}, {high})")


def First(n: int) -> PositionSet:
    """The first `n` keys: where attention that has nowhere to go often sinks to."""
    _require_int("First: n", n)
    if n < 0:
        raise ValueError(f"First: expected n >= 0; got {n}")
    return PositionSet(first=n, name=f"First({n})")


def Codes(query_codes: Tensor, key_codes: Tensor) -> PositionSet:
    """Keys whose code equals the query's.

    Args:
        query_codes, key_codes: integers, each `[pos]` or `[batch, pos]`. A code below 0 equals none.

    Raises:
        TypeError, ValueError: they are no integer tensors of one length on one device.
    """
    for name, codes in (("query_codes", query_codes), ("key_codes", key_codes)):
        _require_integers(f"Codes: {name}", codes, (1, 2), "[pos] or [batch, pos]")
    query, key = (x.long() if x.dim() == 2 else x.long()[None] for x in (query_codes, key_codes))
    samples = {query.shape[0], key.shape[0]} - {1}
    if query.shape[1] != key.shape[1] or len(samples) > 1 or query.device != key.device:
        raise ValueError(
            "Codes: expected query_codes and key_codes of the same positions on one device; got "
            f"{list(query_codes.shape)} on {query.device} and {list(key_codes.shape)} on {key.device}"
        )
    return _with_lists(
        PositionSet(
            query_codes=torch.where(query < 0, -1, query),
            key_codes=torch.where(key < 0, -2, key),
            name="Codes",
        )
    )


def Listed(indices: Tensor) -> PositionSet:
    """The keys that are listed for each query.

    Args:
        indices: integers `[pos, K]` or `[batch, pos, K]`; -1 for none.

    Raises:
        TypeError, ValueError: no such tensor, an index outside -1 to pos - 1, or one twice in a list.
    """
    _require_integers("Listed: indices", indices, (2, 3), "[pos, K] or [batch, pos, K]")
    listed = indices.long() if indices.dim() == 3 else indices.long()[None]
    pos = listed.shape[1]
    if listed.numel() and (int(listed.min()) < -1 or int(listed.max()) >= pos):
        raise ValueError(
            f"Listed: expected positions from 0 to {pos - 1}, or -1 for none; "
            f"got {int(listed.min())} to {int(listed.max())}"
        )
    in_order = listed.sort(dim=2).values
    if bool(((in_order[..., 1:] == in_order[..., :-1]) & (in_order[..., 1:] >= 0)).any()):
        raise ValueError("Listed: expected each key once in a query's list; one is there twice")
    return PositionSet(indices=listed, name="Listed")


def Entries(mask: Tensor) -> PositionSet:
    """Any set as a mask: bool `[pos, pos]` or `[batch, pos, pos]` (query, key). Its memory grows with pos²."""
    if not isinstance(mask, Tensor):
        raise TypeError(f"expected a bool tensor or a set; got {type(mask).__name__}")
    square = mask.dim() in (2, 3) and mask.shape[-1] == mask.shape[-2]
    if mask.dtype != torch.bool or not square:
        raise ValueError(
            f"expected bool [pos, pos] or [batch, pos, pos] (query, key); got {mask.dtype} {list(mask.shape)}"
        )
    return PositionSet(entries=mask if mask.dim() == 3 else mask[None], name="Entries")


def as_set(chosen: PositionSet | Tensor) -> PositionSet:
    """A set as it is, a bool mask as `Entries`."""
    return chosen if isinstance(chosen, PositionSet) else Entries(chosen)


def _with_lists(coded: PositionSet) -> PositionSet:
    """With the keys listed as well, where no query has many: they are then gathered instead of looked for."""
    query, key = coded.query_codes, coded.key_codes
    if query is None or key is None or query.device.type == "meta" or 0 in (*query.shape, *key.shape):
        return coded
    batch = max(query.shape[0], key.shape[0])
    in_order, position = key.expand(batch, -1).sort(dim=1, stable=True)
    wanted = query.expand(batch, -1).contiguous()
    start = torch.searchsorted(in_order, wanted, right=False)
    counts = torch.searchsorted(in_order, wanted, right=True) - start
    most = int(counts.max())
    if most > LISTED_UP_TO:
        return coded
    steps = torch.arange(max(most, 1), device=query.device)
    places = (start[..., None] + steps).clamp(max=query.shape[1] - 1)
    found = position.gather(1, places.flatten(1)).view(places.shape)
    return replace(coded, indices=torch.where(steps < counts[..., None], found, -1))


def _paired(query_a: Tensor, key_a: Tensor, query_b: Tensor, key_b: Tensor) -> tuple[Tensor, Tensor]:
    """One code for each pair of codes: equal where both are."""
    batch = max(x.shape[0] for x in (query_a, key_a, query_b, key_b))

    def small(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, int]:
        both = torch.stack([query.expand(batch, -1), key.expand(batch, -1)])
        values, places = both.unique(return_inverse=True)
        places = torch.where(both < 0, -1, places)
        return places[0], places[1], len(values)

    query_a, key_a, _ = small(query_a, key_a)
    query_b, key_b, many = small(query_b, key_b)

    def pair(a: Tensor, b: Tensor, none: int) -> Tensor:
        return torch.where((a < 0) | (b < 0), none, a * many + b)

    return pair(query_a, query_b, -1), pair(key_a, key_b, -2)


def _check_together(a: PositionSet, b: PositionSet) -> None:
    devices = {x.device for x in (*a.tensors, *b.tensors)}
    if a.length and b.length and a.length != b.length:
        raise ValueError(
            f"{a.name} & {b.name}: expected sets of one length; got {a.length} and {b.length} positions"
        )
    if 1 not in (a.batch, b.batch) and a.batch != b.batch:
        raise ValueError(f"{a.name} & {b.name}: expected one number of samples; got {a.batch} and {b.batch}")
    if len(devices) > 1:
        raise ValueError(f"{a.name} & {b.name}: expected sets on one device; got {sorted(map(str, devices))}")


def _check_length(chosen: PositionSet, pos: int) -> None:
    # torch.compile with dynamic shapes cannot look a length up in a tuple.
    if chosen.length is not None and chosen.length != pos:
        raise ValueError(f"{chosen.name}: it was made for {chosen.length} positions, and there are {pos}")


def _require_int(what: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what}: expected an int; got {value!r}")


def _require_integers(what: str, x: Tensor, dims: tuple[int, ...], shape: str) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{what}: expected an integer tensor {shape}; got {type(x).__name__}")
    if x.dtype.is_floating_point or x.dtype.is_complex or x.dtype == torch.bool or x.dim() not in dims:
        raise ValueError(f"{what}: expected integers {shape}; got {x.dtype} {list(x.shape)}")
