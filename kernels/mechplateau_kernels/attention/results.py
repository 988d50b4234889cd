"""What the attention operations return."""

from typing import NamedTuple

from torch import Tensor

__all__ = ["AttentionOutput", "AttentionOutputWithStatistics"]


class AttentionOutput(NamedTuple):
    """What `linear_attention` and `softmax_attention` return."""

    output: Tensor
    """`[batch, pos, head, d_v]`, dtype of v."""
    row_mass: Tensor
    """`[batch, head, pos]`, Σ_j |A_ij| after the intervention; float32 (float64 for float64 inputs). Without it, pos is
    0."""
    set_mass: Tensor
    """`[batch, head, set, pos]`, the part of it on each metric set; set dimension 0 without sets."""


class AttentionOutputWithStatistics(NamedTuple):
    """The same, with the `row_statistics` of each row, each `[batch, head, pos]`."""

    output: Tensor
    row_mass: Tensor
    set_mass: Tensor
    largest: Tensor
    """max_j |A_ij|; no gradient."""
    largest_at: Tensor
    """The key it is at, int64; -1 where the whole row is 0."""
    entropy: Tensor
    """-Σ_j p_ij log p_ij in nats, p_ij = |A_ij| / row_mass_i; NaN where the whole row is 0."""
