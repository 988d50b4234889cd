"""Sequence entropy: how many different tokens an output sequence uses."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ._counts import token_counts
from ._shapes import require_sequences


def sequence_entropy(outputs: Int[Tensor, "batch n_outputs"], vocab_size: int) -> Float[Tensor, ""] | None:
    """Mean over sequences of the entropy of the tokens' empirical distribution within the sequence.

        H_b = −Σ_v f_bv log f_bv,   f_bv = share of sequence b's outputs that equal v

    Low where the model repeats itself, log(n_outputs) where all outputs differ (arXiv 2506.13688).

    Args:
        outputs: tokens, generated or from the data, each below `vocab_size`.
        vocab_size: number of token values.

    Returns:
        0-d, nats, in [0, log(min(n_outputs, vocab_size))]; None without outputs.

    Raises:
        ValueError: no sequence.
    """
    require_sequences("sequence_entropy", outputs)
    n_outputs = outputs.shape[1]
    if n_outputs == 0:
        return None
    shares = token_counts(outputs, vocab_size) / n_outputs
    return torch.special.entr(shares).sum(dim=1).mean()
