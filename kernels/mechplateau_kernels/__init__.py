"""Kernels for studying attention: linear attention fused with attention progress, and pairwise cosine.

Needs torch; Triton is imported on the first call that runs it, so importing this package stays cheap
and works where Triton is missing. `backend="auto"` runs Triton on CUDA and vectorized torch elsewhere.
"""

from ._dispatch import BackendUnavailable
from .attention import (
    AttentionOutput,
    AttentionOutputWithStatistics,
    Codes,
    Entries,
    First,
    Listed,
    Offsets,
    PositionSet,
    as_set,
    linear_attention,
    softmax_attention,
)
from .capture import Captured
from .cosine import mean_pairwise_cosine, pairwise_cosine
from .progress import apm, apm_per_sample, zero_attention
from .report import backend_report, report

__all__ = [
    "AttentionOutput",
    "AttentionOutputWithStatistics",
    "BackendUnavailable",
    "Captured",
    "Codes",
    "Entries",
    "First",
    "Listed",
    "Offsets",
    "PositionSet",
    "apm",
    "apm_per_sample",
    "as_set",
    "backend_report",
    "linear_attention",
    "mean_pairwise_cosine",
    "pairwise_cosine",
    "report",
    "softmax_attention",
    "zero_attention",
]
