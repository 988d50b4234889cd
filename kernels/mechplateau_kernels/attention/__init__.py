"""Attention that also returns the sums attention progress is made of, without its map: linear and softmax."""

from .linear import linear_attention
from .results import AttentionOutput, AttentionOutputWithStatistics
from .sets import Codes, Entries, First, Listed, Offsets, PositionSet, as_set
from .softmax import softmax_attention

__all__ = [
    "AttentionOutput",
    "AttentionOutputWithStatistics",
    "Codes",
    "Entries",
    "First",
    "Listed",
    "Offsets",
    "PositionSet",
    "as_set",
    "linear_attention",
    "softmax_attention",
]
