"""The one check all metrics share: a mean over no sequences has no value, so it is an error."""

from torch import Tensor


def require_sequences(name: str, x: Tensor) -> None:
    """Raise ValueError where the batch, the first dimension of `x`, is empty."""
    if x.shape[0] == 0:
        raise ValueError(
            f"{name}: expected at least one sequence; got shape {list(x.shape)}; measure on a batch of 1 or more"
        )
