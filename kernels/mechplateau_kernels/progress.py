"""Attention progress (APM): the share of attention that falls on the optimal positions.

    per sample   APM_b = Σ_h Σ_{i in rows} set_mass[b,h,s,i] / Σ_h Σ_{i in rows} row_mass[b,h,i]

Masses come from `linear_attention`. The paper (arXiv 2506.13688) averages APM_b over samples
(`mean_of_ratios`); `ratio_of_sums` divides the batch's sums. A sample without any attention has
APM 0 by definition and counts in the mean; `zero_attention` finds such samples.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

__all__ = ["apm", "apm_per_sample", "zero_attention"]

Rows = slice | Sequence[int] | Tensor | None


def _sum_over_rows(mass: Tensor, rows: Rows) -> Tensor:
    """`[batch, head, pos]` -> `[batch]`; no rows at all would make every sample's attention 0."""
    if rows is None:
        return mass.sum(dim=(1, 2))
    chosen = mass[:, :, rows]
    if chosen.dim() != 3 or chosen.shape[2] == 0:
        raise ValueError(
            f"apm: rows: expected a slice, ints or a 1-d tensor that keep some of {mass.shape[2]} positions; got {rows}"
        )
    return chosen.sum(dim=(1, 2))


def _sums(row_mass: Tensor, set_mass: Tensor, rows: Rows, set: int) -> tuple[Tensor, Tensor]:
    shape = list(row_mass.shape)
    if row_mass.dim() != 3 or set_mass.dim() != 4 or [*set_mass.shape[:2], set_mass.shape[3]] != shape:
        raise ValueError(
            "apm: expected row_mass [batch, head, pos] and set_mass [batch, head, set, pos]; "
            f"got {shape} and {list(set_mass.shape)}"
        )
    if not -set_mass.shape[2] <= set < set_mass.shape[2]:
        raise ValueError(
            f"apm: set {set} was requested, and the masses hold {set_mass.shape[2]}; "
            "pass its mask in metric_sets of linear_attention"
        )
    return _sum_over_rows(set_mass[:, :, set], rows), _sum_over_rows(row_mass, rows)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """0 where the denominator is 0, with a gradient of 0 there instead of 0/0."""
    empty = denominator == 0
    return torch.where(empty, 0.0, numerator / torch.where(empty, 1.0, denominator))


def apm_per_sample(row_mass: Tensor, set_mass: Tensor, *, rows: Rows = None, set: int = 0) -> Tensor:
    """APM of each sample, `[batch]`, in [0, 1]; 0 for a sample without attention in `rows`.

    Args:
        row_mass: `[batch, head, pos]`, from `linear_attention`.
        set_mass: `[batch, head, set, pos]`, likewise.
        rows: query positions summed over (the output rows): a slice, ints or an index tensor; None: all.
        set: which of the metric sets.

    Raises:
        ValueError: shapes that do not fit, no such set, or no row left.
    """
    return _ratio(*_sums(row_mass, set_mass, rows, set))


def apm(
    row_mass: Tensor,
    set_mass: Tensor,
    *,
    rows: Rows = None,
    set: int = 0,
    reduce: Literal["mean_of_ratios", "ratio_of_sums"] = "mean_of_ratios",
) -> Tensor:
    """Attention progress of the batch, a 0-d tensor in [0, 1]; differentiable through the masses.

    Args: as `apm_per_sample`; `reduce`: `"mean_of_ratios"` (the paper's) is the mean of the samples'
    APM, `"ratio_of_sums"` divides the sums over the batch (0 where there is no attention at all).

    Raises:
        ValueError: as `apm_per_sample`, or an unknown `reduce`.
    """
    if reduce not in ("mean_of_ratios", "ratio_of_sums"):
        raise ValueError(f'apm: reduce: expected "mean_of_ratios" or "ratio_of_sums"; got {reduce!r}')
    numerator, denominator = _sums(row_mass, set_mass, rows, set)
    if reduce == "mean_of_ratios":
        return _ratio(numerator, denominator).mean()
    return _ratio(numerator.sum(), denominator.sum())


def zero_attention(row_mass: Tensor, *, rows: Rows = None) -> Tensor:
    """Which samples have no attention at all in `rows`: bool `[batch]`; `.sum()` counts them.

    Args: `row_mass` `[batch, head, pos]`; `rows` as `apm_per_sample`. Raises ValueError likewise.
    """
    if row_mass.dim() != 3:
        raise ValueError(f"zero_attention: expected row_mass [batch, head, pos]; got {list(row_mass.shape)}")
    return _sum_over_rows(row_mass, rows) == 0
