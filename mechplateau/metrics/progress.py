"""Attention progress (APM): the share of the output rows' attention that falls on the optimal positions."""

from collections.abc import Sequence

from jaxtyping import Float, Int
from torch import Tensor

import mechplateau_kernels as mk

from ._shapes import require_sequences


def attention_progress(
    row_mass: Float[Tensor, "batch head pos"],
    set_mass: Float[Tensor, "batch head set pos"],
    rows: slice | Sequence[int] | Tensor,
    set: int = 0,
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]] | None:
    """APM of a batch and the number of its sequences without any attention.

        APM = mean over sequences of  Σ_{(i,j) ∈ Ω} |A_ij|  /  Σ_{i ∈ rows, all j} |A_ij|

    with heads summed in both sums: a mean of ratios, not a ratio of sums (arXiv 2506.13688). A sequence
    whose map is zero in all `rows` counts as 0 by definition, and is counted in `zero_count`.

    Args:
        row_mass: Σ_j |A_ij| of each row i, all rows of the map, as the attention component returns it.
        set_mass: Σ_{j: (i,j) ∈ Ω_s} |A_ij|, likewise, for each optimal set Ω_s.
        rows: the query positions Ω speaks of: for an output row r, prompt length − 1 + r.
        set: which Ω.

    Returns:
        `(value, zero_count)`: 0-d in [0, 1], and 0-d int64; None where there is no Ω or no row.

    Raises:
        ValueError: masses that do not fit, no such set, or no sequence.
    """
    require_sequences("attention_progress", row_mass)
    if row_mass[:1, :1, rows].numel() == 0 or set_mass.shape[2] == 0:
        return None
    value = mk.apm(row_mass, set_mass, rows=rows, set=set)
    return value, mk.zero_attention(row_mass, rows=rows).sum()
