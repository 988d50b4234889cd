"""Where the heads of an encoder look, in a matrix that is given cell by cell.

A head's row of attention over the cells of an m × n matrix is split into its own row (without itself), its own column
(likewise), itself, and the rest. Masked and observed queries are counted separately.

| name | what is summed over keys | a uniform head has |
|---|---|---|
| `omega` | observed cells of the query's row and column, itself left out | (1 − p_mask) (m + n − 2) / T |
| `row` | cells of the same row, itself left out | (n − 1) / T |
| `col` | cells of the same column, itself left out | (m − 1) / T |
| `self` | itself | 1 / T |
| `obs` | observed cells | 1 − p_mask |
| `entropy` | −A log A, nats | log T |

Source: arXiv 2410.22244, section 4, which sorts heads by eye; these numbers and `head_class` are ours.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ._shapes import require_sequences

MASSES = ("omega", "row", "col", "self", "obs", "entropy")
"""What `attention_masses` gives, in order."""


def attention_masses(
    pattern: Float[Tensor, "batch head query key"],
    queries: Bool[Tensor, "batch query"],
    observed: Bool[Tensor, "batch key"],
    rows: Bool[Tensor, "query key"],
    columns: Bool[Tensor, "query key"],
) -> dict[str, Float[Tensor, " head"]]:
    """Mean over matrices and chosen queries of each mass in `MASSES`, a number a head.

    Args:
        pattern: attention, whose rows sum to 1.
        queries: which queries count: the masked ones, or the observed ones.
        observed: which cells are observed.
        rows: which cells lie in one row, a cell and itself left out.
        columns: likewise, in one column.

    Returns:
        name → `[head]`; NaN where no query is chosen.

    Raises:
        ValueError: no matrix.
    """
    require_sequences("attention_masses", pattern)
    count = queries.sum()
    weight = (queries.to(pattern.dtype) / count)[:, None, :]  # a mean over matrices and queries

    def mean(of: Tensor) -> Tensor:
        return (of * weight).sum(dim=(0, 2))

    seen = pattern * observed[:, None, None, :].to(pattern.dtype)
    cross = (rows | columns).to(pattern.dtype)
    return {
        "omega": mean((seen * cross).sum(-1)),
        "row": mean((pattern * rows).sum(-1)),
        "col": mean((pattern * columns).sum(-1)),
        "self": mean(pattern.diagonal(dim1=-2, dim2=-1)),
        "obs": mean(seen.sum(-1)),
        "entropy": mean(torch.special.entr(pattern).sum(-1)),
    }


def mean_pattern(
    pattern: Float[Tensor, "batch head query key"], queries: Bool[Tensor, "batch query"]
) -> Float[Tensor, "head query key"]:
    """Ā: each query's attention, averaged over the matrices in which it is chosen; NaN rows where it never is."""
    chosen = queries.to(pattern.dtype)
    return torch.einsum("bhqk,bq->hqk", pattern, chosen) / chosen.sum(dim=0)[None, :, None]


def fixedness(pattern: Float[Tensor, "head query key"]) -> Float[Tensor, " head"]:
    """1 − mean over queries of the total variation between Ā[q] and the mean of all rows of Ā.

    1: on average the head looks at the same cells whatever the query. Queries whose row of `mean_pattern` is NaN are
    left out; NaN where all are.
    """
    defined = ~pattern[:, :, 0].isnan()
    rows = torch.where(defined[..., None], pattern, 0.0)
    count = defined.sum(dim=1)
    mean = rows.sum(dim=1) / count[:, None]
    distance = (rows - mean[:, None, :]).abs().sum(-1) / 2
    return 1 - torch.where(defined, distance, 0.0).sum(dim=1) / count


def head_class(masses: Mapping[str, float], m: int, n: int) -> str | None:
    """Name a head by where it looks: "row", "col", "self", "cross" or "mixed".

    The one of row, column and self that holds more than half of the attention (the largest multiple of what a uniform
    head has there, where several do); else "cross" where row and column together do; else "mixed". A name for a
    number: always show the masses beside it.

    Args:
        masses: "row", "col" and "self", each from 0 to 1.
        m, n: rows and columns.

    Returns:
        the name; None where a mass is NaN (no such query).
    """
    share = {name: float(masses[name]) for name in ("row", "col", "self")}
    if any(mass != mass for mass in share.values()):
        return None
    uniform = {"row": (n - 1) / (m * n), "col": (m - 1) / (m * n), "self": 1 / (m * n)}
    large = [name for name, mass in share.items() if mass > 0.5 and uniform[name] > 0]
    if large:
        return max(large, key=lambda name: share[name] / uniform[name])
    return "cross" if share["row"] + share["col"] > 0.5 else "mixed"


def partners(pattern: Float[Tensor, "head query key"]) -> Tensor:
    """Each query's partner: the key on which a head's mean pattern is largest, `[head, query]`; −1 where it is NaN."""
    defined = ~pattern[:, :, 0].isnan()
    return torch.where(defined, torch.nan_to_num(pattern).argmax(dim=-1), -1)
