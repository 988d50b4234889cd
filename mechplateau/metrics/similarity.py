"""Representation collapse: how alike the hidden states at a sequence's output rows are.

The paper (arXiv 2506.13688) calls COS the cosine similarity of the final hidden states at pairs of output
rows i > j, averaged over sequences first, then over pairs. The final hidden state is what the unembedding
reads, after the final LayerNorm's gain and bias, of weights that were not folded. Other locations have
their norm and stable rank beside it, since a cosine alone cannot distinguish a collapse from a large shared offset.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

import mechplateau_kernels as mk

from ._shapes import require_sequences

# 2^20 products suffice: what a Gram matrix's second eigenvalue adds to the estimate is at most
# (n − 1)/(e·2^21) of the first, below float32's resolution for the sizes in use.
_SQUARINGS = 20


def cosine_matrix(
    hidden: Float[Tensor, "batch n_outputs d"],
) -> Float[Tensor, "n_outputs n_outputs"]:
    """Mean over sequences of the cosine similarity of output rows i and j, for all i, j.

    Args:
        hidden: hidden states at the output rows; half precision is computed in float32.

    Returns:
        Symmetric, in [-1, 1]. Vectors shorter than 1e-8 count as that long, so that a zero vector has
        cosine 0 with everything, itself included.

    Raises:
        ValueError: an empty dimension.
    """
    return mk.pairwise_cosine(hidden)


def mean_cosine(
    matrix: Float[Tensor, "n_outputs n_outputs"],
    pairs: Bool[Tensor, "n_outputs n_outputs"],
    n_pairs: int | None = None,
) -> Float[Tensor, ""] | None:
    """COS: mean of `matrix[i, j]` over the pairs i > j with `pairs[i, j]`.

    Args:
        matrix: from `cosine_matrix`.
        pairs: which pairs count; entries on and above the diagonal are ignored.
        n_pairs: how many of them count, from `similarity.count_pairs`; None: they are counted, which waits for
            all work in flight where `pairs` is on a GPU, and cannot be captured in a CUDA graph. With it given,
            nothing is read back; `pairs` is then best on the device of `matrix`: it need not be copied there.

    Returns:
        0-d in [-1, 1] on the device of `matrix`; None where no pair counts.

    Raises:
        ValueError: shapes that differ.
    """
    if pairs.shape != matrix.shape:
        raise ValueError(
            f"mean_cosine: expected pairs of the matrix's shape {list(matrix.shape)}; got {list(pairs.shape)}"
        )
    if n_pairs is None:
        n_pairs = count_pairs(pairs)
    if n_pairs == 0:
        return None
    return torch.where(pairs.tril(diagonal=-1).to(matrix.device), matrix, 0.0).sum() / n_pairs


def count_pairs(pairs: Bool[Tensor, "n_outputs n_outputs"]) -> int:
    """How many pairs i > j `mean_cosine` would run over, read on the host."""
    return int(pairs.tril(diagonal=-1).sum())


def cosine_per_output(
    matrix: Float[Tensor, "n_outputs n_outputs"],
) -> Float[Tensor, " n_others"] | None:
    """`cos_out_r` = mean over i > r of `matrix[i, r]`, for each output r that has a later one.

    Returns:
        `[n_outputs − 1]`: the last output has no later one and is left out; None with fewer than two outputs.
    """
    n_outputs = matrix.shape[0]
    if n_outputs < 2:
        return None
    n_later = torch.arange(n_outputs - 1, 0, -1, device=matrix.device)
    return matrix.tril(diagonal=-1).sum(dim=0)[:-1] / n_later


def mean_norm(hidden: Float[Tensor, "batch n_outputs d"]) -> Float[Tensor, ""] | None:
    """Mean over sequences and output rows of the Euclidean norm of the hidden state.

    Returns:
        0-d ≥ 0, in the unit of the activations (float32 for half precision); None without outputs.

    Raises:
        ValueError: no sequence.
    """
    require_sequences("mean_norm", hidden)
    if hidden.shape[1] == 0:
        return None
    return torch.linalg.vector_norm(_at_least_float32(hidden), dim=-1).mean()


def stable_rank(
    hidden: Float[Tensor, "batch n_outputs d"],
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]] | None:
    """Mean over sequences of ‖X‖_F² / ‖X‖₂², where X is the sequence's [n_outputs, d] matrix.

    1 where all output rows are multiples of one vector, n_outputs where they are orthogonal and of one
    length. From the Gram matrix G = X Xᵀ: ‖X‖_F² is its trace, ‖X‖₂² its largest eigenvalue, found by
    repeated squaring, which unlike an eigenvalue solver never waits for the GPU.

    A sequence whose matrix is all zero has no stable rank: it is left out of the mean and counted.

    Returns:
        `(value, zero_count)`: 0-d in [1, min(n_outputs, d)], and the number of sequences left out, 0-d
        int64. Where all are left out (`zero_count == batch`) the value is undefined; only the data can
        show this, so the tensor holds NaN, which is written to files as null. None without outputs.

    Raises:
        ValueError: no sequence.
    """
    require_sequences("stable_rank", hidden)
    if hidden.shape[1] == 0 or hidden.shape[2] == 0:
        return None
    x = _at_least_float32(hidden)
    # The stable rank does not depend on scale; squares of tiny or huge states would leave float32.
    largest = x.abs().amax(dim=(1, 2), keepdim=True)
    nonzero = largest[:, 0, 0] != 0
    x = x / torch.where(largest == 0, 1.0, largest)
    # Autocast would take the products to half precision, where the squarings lose everything.
    with torch.autocast(x.device.type, enabled=False):
        gram = x @ x.mT
        power = gram
        for _ in range(_SQUARINGS):
            norm = torch.linalg.matrix_norm(power)[:, None, None]
            power = power / torch.where(norm == 0, 1.0, norm)
            power = power @ power
    rank = _trace(gram) * _trace(power) / (gram * power).sum(dim=(1, 2))
    value = torch.where(nonzero, rank, 0.0).sum() / nonzero.sum()
    return value, (~nonzero).sum()


def _trace(matrices: Float[Tensor, "batch n n"]) -> Float[Tensor, " batch"]:
    return matrices.diagonal(dim1=1, dim2=2).sum(dim=1)


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.itemsize >= 4 else x.float()
