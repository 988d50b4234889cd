"""The geometry of embeddings whose tokens represent numbers, and of positions that represent cells.

Plain tensors in. Cost: milliseconds.

Source: arXiv 2410.22244, section 4 and figure 7; the numbers are our definitions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechplateau.errors import UserError


@dataclass(frozen=True)
class NumberEmbeddings:
    """What the embeddings of some numbers look like.

    Attributes:
        values: the numbers, increasing.
        norms: the length of each embedding.
        symmetry: 1 − mean |‖e(v)‖ − ‖e(−v)‖| / mean ‖e‖: 1 where v and −v have one length; None without such a pair.
        axes: the two directions of largest variance around the mean, `[2, d_model]`.
        coordinates: the embeddings on these axes, centered, `[value, 2]`.
        size_correlation: the larger |Spearman correlation| of an axis with |v|.
        sign_auc: the larger area under the curve with which an axis separates positive from negative numbers, 0.5 to 1.
    """

    values: tuple[float, ...]
    norms: Float[Tensor, " value"]
    symmetry: float | None
    axes: Float[Tensor, "2 d_model"]
    coordinates: Float[Tensor, "value 2"]
    size_correlation: float
    sign_auc: float

    def project(self, embeddings: Float[Tensor, "value d_model"]) -> Float[Tensor, "value 2"]:
        """Another checkpoint's embeddings on these axes, not centered."""
        return embeddings @ self.axes.T


def number_embeddings(
    embeddings: Float[Tensor, "value d_model"], values: Float[Tensor, " value"]
) -> NumberEmbeddings:
    """Look at the embeddings of some numbers.

    Args:
        embeddings: a row a number. Rows of numbers that hardly occur in training hardly move: leave them out (|v| ≤ 1.5
            for the paper's task).
        values: the numbers.

    Raises:
        UserError: fewer than 3 numbers, a number twice, or not as many rows.
    """
    if len(values) != len(embeddings) or len(values) < 3 or len(values.unique()) < len(values):
        raise UserError(
            f"values: expected at least 3 different numbers, one a row of the {len(embeddings)} embeddings, got "
            f"{len(values)}"
        )
    order = values.argsort()
    values, rows = values[order].double(), embeddings[order].detach().double()
    norms = rows.norm(dim=1)
    centered = rows - rows.mean(dim=0)
    axes = torch.linalg.svd(centered, full_matrices=False).Vh[:2]
    coordinates = centered @ axes.T
    sizes = [_spearman(coordinates[:, axis], values.abs()) for axis in range(len(axes))]
    signs = [_auc(coordinates[:, axis], values) for axis in range(len(axes))]
    return NumberEmbeddings(
        values=tuple(values.tolist()),
        norms=norms.float(),
        symmetry=_symmetry(norms, values),
        axes=axes.float(),
        coordinates=coordinates.float(),
        size_correlation=max(sizes),
        sign_auc=max(signs),
    )


def position_cosines(
    positions: Float[Tensor, "cell d_model"],
    rows: Bool[Tensor, "cell cell"],
    columns: Bool[Tensor, "cell cell"],
) -> dict[str, float]:
    """Mean cosine of centered position embeddings: cells of one row, of one column, and all other pairs.

    Args:
        positions: a row a cell.
        rows, columns: which cells lie in one row or column, a cell and itself left out.
    """
    centered = positions.detach() - positions.detach().mean(dim=0)
    unit = torch.nn.functional.normalize(centered, dim=1)
    cosine = unit @ unit.T
    other = ~(rows | columns | torch.eye(len(rows), dtype=torch.bool, device=rows.device))
    return {
        name: float(cosine[pairs].mean())
        for name, pairs in (("row", rows), ("col", columns), ("other", other))
    }


def _symmetry(norms: Tensor, values: Tensor) -> float | None:
    pairs = [
        (i, int(j))
        for i, value in enumerate(values.tolist())
        if value > 0
        for j in torch.nonzero((values + value).abs() < 1e-6).flatten()
    ]
    if not pairs:
        return None
    gaps = torch.stack([(norms[i] - norms[j]).abs() for i, j in pairs])
    used = torch.stack([norms[i] for pair in pairs for i in pair])
    return float(1 - gaps.mean() / used.mean())


def _ranks(x: Tensor) -> Tensor:
    """Ranks from 0, ties at their mean."""
    below = (x[:, None] > x[None, :]).sum(dim=1).double()
    ties = (x[:, None] == x[None, :]).sum(dim=1).double()
    return below + (ties - 1) / 2


def _spearman(x: Tensor, y: Tensor) -> float:
    ranks = torch.stack([_ranks(x), _ranks(y)])
    return abs(float(torch.corrcoef(ranks)[0, 1]))


def _auc(score: Tensor, values: Tensor) -> float:
    positive, negative = score[values > 0], score[values < 0]
    if len(positive) == 0 or len(negative) == 0:
        return float("nan")
    above = (positive[:, None] > negative[None, :]).double() + 0.5 * (
        positive[:, None] == negative[None, :]
    ).double()
    area = float(above.mean())
    return max(area, 1 - area)


__all__ = ["NumberEmbeddings", "number_embeddings", "position_cosines"]
