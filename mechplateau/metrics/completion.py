"""How well masked cells of a matrix are filled in, and how alike their hidden states are.

All numbers are pooled over the batch. Whether a batch has masked (or observed) cells at all, only the data show:
what is undefined is NaN, which is written to tables as null.

Source: arXiv 2410.22244; `spread` and `cosine_among` are measures of our own.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ._shapes import require_sequences


def squared_errors(
    predictions: Float[Tensor, "batch cell"],
    targets: Float[Tensor, "batch cell"],
    observed: Bool[Tensor, "batch cell"],
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, ""]]:
    """Mean of (ŷ − x)² over all, over the observed and over the masked cells.

    With q the share of masked cells in the batch, all = (1 − q) · observed + q · masked.

    Returns:
        `(all, observed, masked)`, 0-d each; NaN where there is no such cell.

    Raises:
        ValueError: no matrix.
    """
    require_sequences("squared_errors", predictions)
    errors = (predictions - targets).square()
    return errors.mean(), mean_where(errors, observed), mean_where(errors, ~observed)


def masked_value(
    predictions: Float[Tensor, "batch cell"], observed: Bool[Tensor, "batch cell"]
) -> Float[Tensor, ""]:
    """Mean of |ŷ| over masked cells; NaN without one. About 0 where the model copies and gives masked cells 0."""
    return mean_where(predictions.abs(), ~observed)


def spread(
    predictions: Float[Tensor, "batch cell"],
    targets: Float[Tensor, "batch cell"],
    observed: Bool[Tensor, "batch cell"],
) -> Float[Tensor, ""]:
    """Σ ŷ² / Σ x² over masked cells: about 0 where the model copies, near 1 where it completes.

    Returns:
        0-d ≥ 0; NaN without a masked cell that is not 0.
    """
    given = torch.where(observed, 0.0, predictions).square().sum()
    right = torch.where(observed, 0.0, targets).square().sum()
    return torch.where(right > 0, given / right, torch.nan)


def cosine_among(
    hidden: Float[Tensor, "batch cell d_model"], chosen: Bool[Tensor, "batch cell"]
) -> Float[Tensor, ""]:
    """COS: mean cosine of the hidden states at ordered pairs of different chosen cells of one matrix.

    The mean is taken within a matrix first, then over the matrices with at least two chosen cells. A zero vector has
    cosine 0 with everything.

    Args:
        hidden: hidden states.
        chosen: which cells: the masked ones, or the observed ones.

    Returns:
        0-d in [−1, 1]; NaN where no matrix has two such cells.

    Raises:
        ValueError: no matrix.
    """
    require_sequences("cosine_among", hidden)
    unit = torch.nn.functional.normalize(hidden.float(), dim=-1, eps=1e-8) * chosen[..., None]
    # Over ordered pairs i ≠ j: Σ u_i · u_j = |Σ u_i|² − Σ |u_i|².
    pairs = unit.sum(dim=1).square().sum(dim=-1) - unit.square().sum(dim=(1, 2))
    count = chosen.sum(dim=1)
    enough = count >= 2
    cosine = pairs / (count * (count - 1)).clamp(min=1)
    return torch.where(enough, cosine, 0.0).sum() / enough.sum()


def cosine_of_equals(
    hidden: Float[Tensor, "batch cell d_model"],
    tokens: Int[Tensor, "batch cell"],
    chosen: Bool[Tensor, "batch cell"],
) -> Float[Tensor, ""]:
    """Mean cosine over ordered pairs of different chosen cells of one matrix that hold the same token.

    The control for COS of masked cells, which all hold one token. Mean within a matrix, then over the matrices with
    such a pair.

    Args:
        hidden: hidden states.
        tokens: what the cells hold.
        chosen: which cells count.

    Returns:
        0-d in [−1, 1]; NaN where no matrix has such a pair.

    Raises:
        ValueError: no matrix.
    """
    require_sequences("cosine_of_equals", hidden)
    unit = torch.nn.functional.normalize(hidden.float(), dim=-1, eps=1e-8)
    pairs = (tokens[:, :, None] == tokens[:, None, :]) & chosen[:, :, None] & chosen[:, None, :]
    pairs = pairs & ~torch.eye(tokens.shape[1], dtype=torch.bool, device=tokens.device)
    count = pairs.sum(dim=(1, 2))
    cosine = torch.where(pairs, unit @ unit.mT, 0.0).sum(dim=(1, 2)) / count.clamp(min=1)
    return cosine.sum() / (count > 0).sum()


def mean_where(values: Float[Tensor, "*shape"], chosen: Bool[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """Mean of the chosen values; NaN where none is chosen."""
    return torch.where(chosen, values, 0.0).sum() / chosen.sum()
