"""Which pairs of positions a mean runs over, and whether it can be had in linear time.

A mean over all pairs inside disjoint groups of positions (cliques) costs one pass over the data; any
other set of pairs costs the full matrix. Positions and pairs are settled on the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from weakref import ref

import torch
from torch import Tensor

__all__ = ["PairPlan", "plan_pairs"]


@dataclass(frozen=True)
class PairPlan:
    """What the pairs come down to.

    `cliques`: disjoint position tuples that together hold exactly the pairs, or None where they do
    not fall into cliques. `pairs`: the pairs (i < j) themselves, for that case. `n_pairs`: how many.
    """

    cliques: tuple[tuple[int, ...], ...] | None
    pairs: tuple[tuple[int, int], ...]
    n_pairs: int


_plans: dict[tuple[int, int, int, tuple[int, ...]], tuple[ref[Tensor], PairPlan]] = {}


def kept_positions(pos: int, exclude: Sequence[int]) -> tuple[int, ...]:
    left_out = set()
    for position in _integers(exclude):
        if not -pos <= position < pos:
            raise ValueError(
                f"mean_pairwise_cosine: exclude: expected positions from {-pos} to {pos - 1}; got {position}; "
                f"h has {pos} positions"
            )
        left_out.add(position % pos)
    return tuple(i for i in range(pos) if i not in left_out)


def _integers(exclude: Sequence[int]) -> list[int]:
    """As Python's ints. A mask is refused: as numbers, it would leave out positions 0 and 1."""
    values = exclude.tolist() if isinstance(exclude, Tensor) else exclude
    try:
        if not any(isinstance(value, bool) for value in values):
            return [index(value) for value in values]
    except TypeError:
        pass
    raise TypeError(f"mean_pairwise_cosine: exclude: expected a sequence of ints; got {exclude!r}"[:300])


def _plan(pos: int, kept: tuple[int, ...], pairs: Tensor) -> PairPlan:
    on_host = pairs.to("cpu")
    chosen = (on_host | on_host.T).tolist()
    neighbors = {i: frozenset(j for j in kept if j != i and chosen[i][j]) for i in kept}
    listed = tuple((i, j) for i in kept for j in kept if i < j and j in neighbors[i])
    cliques: list[tuple[int, ...]] = []
    seen: set[int] = set()
    for i in kept:
        if i in seen or not neighbors[i]:
            continue
        members = neighbors[i] | {i}
        if any(neighbors[j] | {j} != members for j in members):
            return PairPlan(None, listed, len(listed))
        cliques.append(tuple(sorted(members)))
        seen |= members
    return PairPlan(tuple(cliques), listed, len(listed))


def plan_pairs(pos: int, exclude: Sequence[int], pairs: Tensor | None) -> PairPlan:
    """The pairs left of `pos` positions without the excluded ones, within `pairs` bool `[pos, pos]`.

    The unordered pair {i, j} counts where `pairs[i, j]` or `pairs[j, i]`; the diagonal is ignored. The
    plan of a tensor is kept until the tensor changes or dies. Raises ValueError where no pair is left.
    """
    kept = kept_positions(pos, exclude)
    if pairs is None:
        n_pairs = len(kept) * (len(kept) - 1) // 2
        plan = PairPlan((kept,), (), n_pairs)
    else:
        if not isinstance(pairs, Tensor):
            raise TypeError(
                f"mean_pairwise_cosine: pairs: expected a bool tensor; got {type(pairs).__name__}"
            )
        if pairs.shape != (pos, pos) or pairs.dtype != torch.bool:
            raise ValueError(
                f"mean_pairwise_cosine: pairs: expected a bool tensor [{pos}, {pos}]; "
                f"got {pairs.dtype} {list(pairs.shape)}"
            )
        versioned = not pairs.is_inference()
        key = (id(pairs), pairs._version if versioned else 0, pos, kept)
        found = _plans.get(key) if versioned else None
        if found is not None and found[0]() is pairs:
            plan = found[1]
        else:
            plan = _plan(pos, kept, pairs)
            if versioned:
                # A copy of the items, and pop: another thread may be at it as well.
                for dead in [k for k, (owner, _) in list(_plans.items()) if owner() is None]:
                    _plans.pop(dead, None)
                _plans[key] = (ref(pairs), plan)
    if plan.n_pairs == 0:
        raise ValueError(
            f"mean_pairwise_cosine: no pair is left of {pos} positions; the mean is undefined: "
            "exclude fewer positions or leave the value out"
        )
    return plan
