"""The numbers of figure 8 for one checkpoint.

Over n new tokens after each prompt, with h the states at the n positions that predict them:

    cos_{location}  mean over prompts, then over all pairs i > j of positions, of cos(h_i, h_j)
    repetition      mean over prompts and adjacent new tokens of [y_i = y_{i+1}]
    entropy         mean over prompts of the entropy (nats) of the new tokens' empirical distribution
    loss            mean cross-entropy (nats) of the prompts' own tokens

Locations: `final` (after the final norm, the paper's), `embed` (input of the first block), `layer_0` …
(output of each block). What is undefined (no prompt with two tokens, states that overflow) is None. Where a final
state is not finite or its logits chose no token, repetition and entropy are None too.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mechplateau.llm.generation import FINAL, UNDEFINED, Generation
from mechplateau.metrics.entropy import sequence_entropy
from mechplateau.metrics.repetition import repetition_frequency
from mechplateau.metrics.similarity import mean_cosine
from mechplateau_kernels import pairwise_cosine


def measure(generation: Generation) -> dict[str, float | None]:
    """The numbers by their column names."""
    n_tokens = generation.tokens.shape[1]
    chosen = bool(generation.hidden[FINAL].isfinite().all() and (generation.tokens != UNDEFINED).all())
    pairs = torch.ones(n_tokens, n_tokens, dtype=torch.bool)
    # Entropy depends only on which tokens are equal: numbered anew, they need no table as wide as the vocabulary.
    vocabulary, numbered = generation.tokens.unique(return_inverse=True)
    values = {
        "loss": generation.loss,
        "repetition": repetition_frequency(generation.tokens) if chosen else None,
        "entropy": sequence_entropy(numbered, len(vocabulary)) if chosen else None,
        # The states are on the CPU: with torch named, the kernels have no choice to report.
        **{
            f"cos_{name}": mean_cosine(pairwise_cosine(h, backend="torch"), pairs)
            for name, h in generation.hidden.items()
        },
    }
    return {name: _defined(value) for name, value in values.items()}


def _defined(value: Tensor | float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
