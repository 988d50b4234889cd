"""Cross-entropy of each output position."""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ._shapes import require_sequences


def loss_per_output(
    logits: Float[Tensor, "batch n_outputs vocab"], target: Int[Tensor, "batch n_outputs"]
) -> Float[Tensor, " n_outputs"]:
    """Mean over sequences of −log p(target) at output r, for each r.

    Args:
        logits: teacher-forced logits at the output rows; half precision is computed in float32.
        target: the right tokens.

    Returns:
        `[n_outputs]`, nats.

    Raises:
        ValueError: shapes that do not fit, or no sequence.
    """
    if logits.dim() != 3 or logits.shape[:2] != target.shape:
        raise ValueError(
            f"loss_per_output: expected logits [batch, n_outputs, vocab] and target [batch, n_outputs]; got "
            f"{list(logits.shape)} and {list(target.shape)}; pass the output rows only"
        )
    require_sequences("loss_per_output", logits)
    wide = logits if logits.itemsize >= 4 else logits.float()
    return (
        F.cross_entropy(wide.flatten(0, 1), target.flatten(), reduction="none").view(target.shape).mean(dim=0)
    )
