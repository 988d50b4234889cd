"""How often each token occurs in each sequence."""

import torch
from jaxtyping import Int
from torch import Tensor


def token_counts(
    tokens: Int[Tensor, "batch n_outputs"], vocab_size: int
) -> Int[Tensor, "batch {vocab_size}"]:
    """`counts[b, v]` = number of outputs of sequence b that equal v."""
    counts = torch.zeros(tokens.shape[0], vocab_size, dtype=torch.int64, device=tokens.device)
    return counts.scatter_add_(1, tokens.long(), torch.ones_like(tokens, dtype=torch.int64))
