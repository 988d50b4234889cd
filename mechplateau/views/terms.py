"""Explanations of a report's terms: formula, and the paper's section."""

from __future__ import annotations

from collections.abc import Sequence

from mechplateau.views.columns import Panel
from mechplateau.views.data import ColumnView

_PAPER = "arXiv 2506.13688"

TERMS = {
    "drop": "The drop: the first step at which the smoothed loss is half-way from the level of its plateau to its "
    "final level. Both levels are found from the curve.",
    "loss": "The loss: mean cross-entropy of the next token, over all positions and sequences of the batch, in nats. "
    "The inputs of a sequence are random, so part of it remains whatever is learned: the floor.",
    "accuracy": "Accuracy: share of outputs that are right when the model writes them itself, the most likely token "
    "each time.",
    "partial": f"Partial solution: outputs that are easy and known early. Known: their loss is at most half of their "
    f"entropy in the data, in three evaluations in a row ({_PAPER}, section 2).",
    "cos": "COS: cosine similarity of the final hidden states at two outputs i > j, h_i·h_j / (|h_i| |h_j|), mean over "
    f"sequences, then over pairs. 1: all point the same way ({_PAPER}, section 3).",
    "apm": "APM, attention progress: the share of the output rows' attention that falls on Ω, the positions that the "
    f"solution needs: Σ over Ω of |A| / Σ over rows of |A|, mean over sequences ({_PAPER}, section 4).",
    "repetition": "ρ: share of neighboring outputs that are the same token. α₁: share of outputs equal to the first. "
    f"Dotted: the same of the data, which repeat by chance ({_PAPER}, section 3).",
    "entropy": f"Entropy of the tokens of one output sequence, −Σ f log f, mean over sequences, nats ({_PAPER}).",
    "pattern": "Attention map: how much each position (a row) takes from each earlier one (a column), mean over a "
    "batch. "
    f"Ω, outlined: the entries that the solution needs ({_PAPER}, section 4).",
    "cosine": "COS matrix: cosine similarity of the final hidden states at each two outputs, h_i·h_j / (|h_i| |h_j|), "
    f"mean over sequences. COS is the mean below the diagonal ({_PAPER}, section 3).",
    "phases": "Before: up to the plateau. During: from its onset to the drop. After: from the drop on. Peak of the "
    "collapse: the step with the largest COS.",
    "lossmap": "The loss of each output by itself, −log of the probability of the right token, mean over sequences, in "
    "nats. An output that cannot be known yet stays at the entropy of its tokens.",
    "cosmap": "COS of each output with the others after it: where it is 1, the hidden states are parallel "
    f"({_PAPER}, section 3).",
}
"""The key of a card or a panel → what it means."""


def term_of(panel: Panel, columns: Sequence[ColumnView]) -> str:
    """What a panel shows; for one that no paper has, the definition of its columns."""
    if panel.key in TERMS and (panel.key != "loss" or _is_cross_entropy(columns)):
        return TERMS[panel.key]
    definitions = {column.name: column.definition for column in columns}
    told = dict.fromkeys(
        f"{line.label}: {definitions[line.column]}" if len(panel.lines) > 1 else definitions[line.column]
        for line in panel.lines
        if definitions.get(line.column)
    )
    return "; ".join(told)


def _is_cross_entropy(columns: Sequence[ColumnView]) -> bool:
    return all(column.unit == "nats" for column in columns if column.name == "loss")
