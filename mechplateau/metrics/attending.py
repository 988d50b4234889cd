"""Where heads look, from their attention patterns `[batch, head, query, key]`: pure functions, one number a head.

Rows of a pattern are causal and sum to 1. Positions count from 0.

| name | formula | range |
|---|---|---|
| `attention_entropy` | H_j = −Σ a log2 a over log2(j + 1); 0 at j = 0 | [0, 1]: one key to all alike |
| `attention_variability` | mean over contexts of ½Σ abs(a − ā) | [0, 1]: the same for all contexts to disjoint |
| `offset_profile` | mean attention to the key o positions back, for each o | [0, 1] |
| `mass_on` | mean attention to a set of keys | [0, 1] |
| `previous_token_score` | mean attention from the last position to the one before it | [0, 1] |
| `prefix_matching_score` | mean attention from the last position to one chosen key a sequence | [0, 1] |

Source: arXiv 2402.02364, appendices C and D; Olsson et al. 2022.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Pattern = Float[Tensor, "batch head query key"]


def attention_entropy(pattern: Pattern, queries: Sequence[int]) -> Float[Tensor, " head"]:
    """Mean over contexts and these query positions of H_j, the share of the entropy that a query's keys allow.

    A query at position 0 has one key, and its entropy is 0.
    """
    _require_pattern("attention_entropy", pattern, queries)
    rows = pattern[:, :, list(queries)].double()
    bits = torch.special.entr(rows).sum(-1) / torch.log(torch.tensor(2.0, dtype=torch.float64))
    most = torch.log2(torch.tensor([j + 1 for j in queries], dtype=torch.float64, device=pattern.device))
    return torch.where(most > 0, bits / most.clamp(min=1e-12), 0.0).mean(dim=(0, 2))


def attention_variability(pattern: Pattern, queries: Sequence[int]) -> Float[Tensor, " head"]:
    """Mean over contexts and these queries of ½Σ_key |a − ā|, with ā the mean over contexts.

    0 where a head looks at the same places whatever it reads.
    """
    _require_pattern("attention_variability", pattern, queries)
    rows = pattern[:, :, list(queries)]
    return (rows - rows.mean(0)).abs().sum(-1).mean(dim=(0, 2)) / 2


def offset_profile(pattern: Pattern, queries: Sequence[int], offsets: int) -> Float[Tensor, "head offset"]:
    """Mean attention to the key 0, 1, … `offsets` − 1 positions back; queries that have no such key are left out.

    NaN for an offset that no query has. Offset 0 is attention to oneself, offset 1 to the previous token.
    """
    _require_pattern("offset_profile", pattern, queries)
    query = torch.tensor(list(queries), device=pattern.device)
    key = query[:, None] - torch.arange(offsets, device=pattern.device)
    there = key >= 0
    mean = pattern.mean(0)[:, query[:, None], key.clamp(min=0)]
    return torch.where(there, mean, 0.0).sum(1) / there.sum(0)


def mass_on(pattern: Pattern, queries: Sequence[int], keys: Bool[Tensor, " key"]) -> Float[Tensor, " head"]:
    """Mean over contexts and these queries of the attention to these keys."""
    _require_pattern("mass_on", pattern, queries)
    return pattern[:, :, list(queries)][..., keys].sum(-1).mean(dim=(0, 2))


def previous_token_score(last_rows: Float[Tensor, "batch head key"]) -> Float[Tensor, " head"]:
    """Mean attention from the last position to the one before it.

    Args:
        last_rows: attention of the last query of each sequence, all of one length of at least 2.

    Raises:
        ValueError: sequences of one token.
    """
    if last_rows.dim() != 3 or last_rows.shape[2] < 2:
        raise ValueError(
            f"previous_token_score: expected [batch, head, key] with at least 2 keys, got {list(last_rows.shape)}"
        )
    return last_rows[..., -2].mean(0)


def prefix_matching_score(
    last_rows: Float[Tensor, "batch head key"], target: Int[Tensor, " batch"]
) -> Float[Tensor, " head"]:
    """Mean attention from the last position to key `target[b]` of sequence b.

    In a sequence … A B … A, the definition of an induction head takes the key of B (it attends to what came after the
    earlier A); the wording of arXiv 2402.02364 takes the key of A. The two differ.
    """
    if last_rows.dim() != 3 or target.shape != last_rows.shape[:1]:
        raise ValueError(
            f"prefix_matching_score: expected rows [batch, head, key] and a key for each sequence, got "
            f"{list(last_rows.shape)} and {list(target.shape)}"
        )
    return last_rows.gather(2, target[:, None, None].expand(-1, last_rows.shape[1], 1)).mean(dim=(0, 2))


def _require_pattern(name: str, pattern: Tensor, queries: Sequence[int]) -> None:
    if pattern.dim() != 4 or not len(pattern):
        raise ValueError(f"{name}: expected [batch, head, query, key], got {list(pattern.shape)}")
    if not queries or not all(0 <= query < pattern.shape[2] for query in queries):
        raise ValueError(
            f"{name}: expected query positions from 0 to {pattern.shape[2] - 1}, got {list(queries)}"
        )


__all__ = [
    "attention_entropy",
    "attention_variability",
    "mass_on",
    "offset_profile",
    "prefix_matching_score",
    "previous_token_score",
]
