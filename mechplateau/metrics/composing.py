"""How much heads read from what earlier heads write, for all pairs at once and cheap enough for every evaluation.

These are TransformerLens's scores (`all_composition_scores`), on the weights as they are: of W_OV = W_V W_O and
W_QK = W_Q W_Kᵀ,

    Q: ‖W_OV W_QK‖,   K: ‖W_OV W_QKᵀ‖,   V: ‖W_OV W_OV'‖,   each over the product of the two norms.

LayerNorm is ignored. `mechplateau.circuits.composition_scores` folds its centering and gain in and says how far a score
is from chance. Two random matrices give 1/√d_model.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Heads = Float[Tensor, "head d_model d_head"]


def composition(
    writers: tuple[Heads, Float[Tensor, "head d_head d_model"]],
    readers: tuple[Heads, Float[Tensor, "head d_head d_model"]],
) -> Float[Tensor, "writer reader"]:
    """‖A B‖ / (‖A‖ ‖B‖) in Frobenius norms, for all pairs of a writer A and a reader B, given as factors.

    NaN where one of the two is zero.
    """
    (a, b), (c, d) = writers, readers
    middle = torch.einsum("wim,rmj->wrij", b, c)
    both = torch.einsum("wim,wjm->wij", a.transpose(1, 2), a.transpose(1, 2))
    other = torch.einsum("rim,rjm->rij", d, d)
    # ‖a M d‖² = tr(Mᵀ aᵀa M d dᵀ)
    squares = torch.einsum("wij,wrjk,rkl,wril->wr", both, middle, other, middle)
    return (squares.clamp(min=0) / (_square(a, b)[:, None] * _square(c, d)[None])).sqrt()


def composition_of(
    kind: Literal["Q", "K", "V"],
    writer: dict[str, Tensor],
    reader: dict[str, Tensor],
) -> Float[Tensor, "writer reader"]:
    """The scores of all heads of a layer with all heads of a later one.

    Args:
        kind: what the reader reads with.
        writer, reader: W_Q, W_K, W_V `[head, d_model, d_head]` and W_O `[head, d_head, d_model]` of each layer.
    """
    q, k, v, o = (reader[name] for name in ("W_Q", "W_K", "W_V", "W_O"))
    read = {"Q": (q, k.transpose(1, 2)), "K": (k, q.transpose(1, 2)), "V": (v, o)}[kind]
    return composition((writer["W_V"], writer["W_O"]), read)


def _square(left: Tensor, right: Tensor) -> Float[Tensor, " head"]:
    """‖left right‖² for each head."""
    return torch.einsum(
        "hij,hji->h",
        left.transpose(1, 2) @ left,
        right @ right.transpose(1, 2),
    )


__all__ = ["composition", "composition_of"]
