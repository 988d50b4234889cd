"""Accuracy: how often the predicted output tokens are the right ones."""

from jaxtyping import Float, Int
from torch import Tensor

from ._shapes import require_sequences


def accuracy_per_output(
    predicted: Int[Tensor, "batch n_outputs"], target: Int[Tensor, "batch n_outputs"]
) -> Float[Tensor, " n_outputs"]:
    """Share of sequences whose output r is right, for each r.

    Args:
        predicted: tokens the model gave: generated greedily, or the argmax of teacher-forced logits.
        target: the right tokens.

    Returns:
        `[n_outputs]` float32 in [0, 1].

    Raises:
        ValueError: shapes that differ, or no sequence.
    """
    if predicted.shape != target.shape:
        raise ValueError(
            f"accuracy: expected predicted and target of one shape; got {list(predicted.shape)} and "
            f"{list(target.shape)}; pass the output tokens only, without the prompt"
        )
    require_sequences("accuracy", predicted)
    return (predicted == target).float().mean(dim=0)


def accuracy(
    predicted: Int[Tensor, "batch n_outputs"], target: Int[Tensor, "batch n_outputs"]
) -> Float[Tensor, ""] | None:
    """Share of right tokens over all sequences and outputs, in [0, 1]; None without outputs.

    Args and errors as `accuracy_per_output`.
    """
    per_output = accuracy_per_output(predicted, target)
    return per_output.mean() if per_output.shape[0] else None
