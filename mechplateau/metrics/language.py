"""Measures of a small language model, as pure functions of logits, losses and weights.

| name | formula | unit |
|---|---|---|
| `bigram_table` | q(v given t): share of t's successors that are v | share |
| `bigram_floor` | mean over positions of the entropy of q(· given t_k) | nats |
| `bigram_score` | mean over positions of −Σ_v q(v given t_k) log p(v given t_≤k) | nats |
| `in_context_score` | mean loss late in the context minus early in it; below 0: context helps | nats |
| `repeat_gain` | loss of the first half minus that of the second, once it has begun | nats |
| `position_shares` | shares of the principal components of the position embedding | share |

Source: arXiv 2402.02364, section 4 and appendix C; the repeat gain is ours.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

BROWNIAN_SHARE = 6 / math.pi**2
"""Share of the first principal component of Brownian motion, which position embeddings resemble."""


def bigram_table(tokens: Int[Tensor, " tokens"], vocab_size: int) -> Float[Tensor, "vocab vocab"]:
    """q(v | t), how often t is followed by v; a row of zeros for a token that nothing follows."""
    pairs = tokens[:-1] * vocab_size + tokens[1:]
    counts = torch.bincount(pairs, minlength=vocab_size**2).view(vocab_size, vocab_size).float()
    return counts / counts.sum(1, keepdim=True).clamp(min=1)


def bigram_floor(table: Float[Tensor, "vocab vocab"], tokens: Int[Tensor, " positions"]) -> Float[Tensor, ""]:
    """The lowest bigram score, that of p = q; NaN where no token has a successor in the table."""
    return _over_known(torch.special.entr(table[tokens]).sum(-1), table, tokens)


def bigram_score(
    logits: Float[Tensor, "positions vocab"],
    table: Float[Tensor, "vocab vocab"],
    tokens: Int[Tensor, " positions"],
) -> Float[Tensor, ""]:
    """Cross-entropy from the bigrams of the training text to what the model predicts after these tokens.

    Positions whose token has no successor in the table are left out.

    Args:
        logits: what the model predicts at these positions.
        table: of `bigram_table`.
        tokens: the token at each position.
    """
    crossed = -(table[tokens] * logits.float().log_softmax(-1)).sum(-1)
    return _over_known(crossed, table, tokens)


def in_context_score(
    losses: Float[Tensor, " pos"],
    late: tuple[float, float] = (0.8, 1.0),
    early: tuple[float, float] = (0.05, 0.15),
) -> Float[Tensor, ""] | None:
    """Mean loss in the late part of the context minus that in the early part; None where a part has no position.

    Args:
        losses: mean loss at each position.
        late, early: from where to where, as shares of the context.
    """
    parts = [losses[int(part[0] * len(losses)) : int(part[1] * len(losses))] for part in (late, early)]
    return None if not all(len(part) for part in parts) else parts[0].mean() - parts[1].mean()


def repeat_gain(losses: Float[Tensor, "batch pos"], half: int, begun: int = 8) -> Float[Tensor, ""] | None:
    """Mean loss of the first `half` tokens minus that of the second, without the first `begun` of each half.

    None where a half is no longer than that.

    Args:
        losses: of tokens 1 … 2·half of sequences [BOS, random half, the same half again].
    """
    if half <= begun:
        return None
    return losses[:, begun:half].mean() - losses[:, half + begun : 2 * half].mean()


def position_shares(embedding: Float[Tensor, "pos width"]) -> Float[Tensor, " components"]:
    """Share of variance of each principal component of the position embedding, largest first."""
    squares = torch.linalg.svdvals((embedding - embedding.mean(0)).double()).square()
    return squares / squares.sum()


def _over_known(values: Tensor, table: Tensor, tokens: Tensor) -> Tensor:
    known = (table.sum(-1) > 0)[tokens]
    return torch.where(known, values, 0.0).sum() / known.sum()


__all__ = [
    "BROWNIAN_SHARE",
    "bigram_floor",
    "bigram_score",
    "bigram_table",
    "in_context_score",
    "position_shares",
    "repeat_gain",
]
