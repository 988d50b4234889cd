"""How weights are spread: over singular directions, over coordinates, and how two sets of them are aligned.

| name | formula | range |
|---|---|---|
| `variance_shares` | σ_i² / Σσ², largest first | [0, 1], sums to 1 |
| `effective_rank` | exp of the shares' entropy | [1, number of shares] |
| `alignment` | cosines of the angles between the top-r row spaces of two matrices | [0, 1] |
| `gain_statistics` | mean, standard deviation, smallest, largest, share below 0.1 in size | |
| `effective_readout` | W_U[:, 0] ⊙ γ_f, what one output reads of the normalized stream | |
| `small_share`, `top_share` | share of coordinates below a size; share of Σw² in the top n | [0, 1] |

Source: arXiv 2402.02364, appendix D (Roy and Vetterli 2007 for the effective rank).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def variance_shares(matrix: Float[Tensor, "rows columns"]) -> Float[Tensor, " rank"]:
    """σ_i² / Σσ² of a matrix, largest first; NaN for a matrix of zeros."""
    squares = torch.linalg.svdvals(matrix.double()).square()
    return squares / squares.sum()


def effective_rank(shares: Float[Tensor, " rank"]) -> Float[Tensor, ""]:
    """exp(−Σ s log s): how many directions of equal share would be as spread out."""
    return torch.special.entr(shares).sum().exp()


def alignment(
    first: Float[Tensor, "m columns"], second: Float[Tensor, "n columns"], rank: int
) -> Float[Tensor, " rank"]:
    """Cosines of the principal angles between the spans of the top `rank` right singular vectors, largest first.

    All 1 where the two read or write the same directions, all 0 where they share none.

    Raises:
        ValueError: matrices over different numbers of columns, or a rank that one of them does not have.
    """
    least = min(*first.shape, *second.shape)
    if first.shape[1] != second.shape[1] or not 1 <= rank <= least:
        raise ValueError(
            f"alignment: expected two matrices with as many columns and a rank from 1 to {least}, got "
            f"{list(first.shape)}, {list(second.shape)} and rank {rank}"
        )
    bases = [torch.linalg.svd(m.double(), full_matrices=False).Vh[:rank] for m in (first, second)]
    return torch.linalg.svdvals(bases[0] @ bases[1].T).clamp(max=1.0)


def gain_statistics(gain: Float[Tensor, " width"]) -> dict[str, Float[Tensor, ""]]:
    """Of a LayerNorm's gain: mean, sd (divided by the width), min, max, and small, the share with |w| < 0.1."""
    return {
        "mean": gain.mean(),
        "sd": gain.std(correction=0),
        "min": gain.min(),
        "max": gain.max(),
        "small": small_share(gain, 0.1),
    }


def effective_readout(
    unembedding: Float[Tensor, "width outputs"], gain: Float[Tensor, " width"], output: int = 0
) -> Float[Tensor, " width"]:
    """How strongly an output reads each coordinate of the stream, once it is normalized."""
    return unembedding[:, output] * gain


def small_share(weights: Float[Tensor, " width"], size: float) -> Float[Tensor, ""]:
    """Share of the weights whose size is below `size`."""
    return (weights.abs() < size).to(weights.dtype).mean()


def top_share(weights: Float[Tensor, " width"], n: int = 5) -> Float[Tensor, ""]:
    """Share of Σw² that the `n` largest hold; NaN where all are zero."""
    squares = weights.square()
    return squares.topk(min(n, len(squares))).values.sum() / squares.sum()


__all__ = [
    "alignment",
    "effective_rank",
    "effective_readout",
    "gain_statistics",
    "small_share",
    "top_share",
    "variance_shares",
]
