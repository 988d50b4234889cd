"""Tokens that a model can be given: one check for whatever runs one."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from mechplateau.errors import UserError

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def require_tokens(
    tokens: Int[Tensor, "batch seq"],
    *,
    n_ctx: int | None = None,
    vocab_size: int | None = None,
    shortest: int = 1,
    unseen: int = 0,
    name: str = "tokens",
) -> None:
    """Check a batch of sequences.

    Args:
        tokens: `[batch, seq]`, integers of any width.
        n_ctx: positions that the model sees at most; None: any number.
        vocab_size: tokens there are; None: not checked, which saves a look at the values (on a GPU, a wait).
        shortest: tokens of a sequence at least.
        unseen: how many at the end of a sequence the model does not see.
        name: what the tokens were given as.

    Raises:
        UserError: one line that says what was expected and what came.
    """
    if not isinstance(tokens, Tensor) or tokens.dtype not in _INTEGERS:
        given = tokens.dtype if isinstance(tokens, Tensor) else type(tokens).__name__
        numbers = isinstance(tokens, list | tuple) or type(tokens).__module__ == "numpy"
        advice = "use torch.tensor(tokens)" if numbers else "a model that reads real values has no tokens"
        raise UserError(f"{name}: expected a tensor of integers, got {given}; {advice}")
    if tokens.dim() != 2 or tokens.shape[0] < 1 or tokens.shape[1] < shortest:
        raise UserError(
            f"{name}: expected [batch, seq] with at least {shortest} token{'s' * (shortest > 1)} each, got "
            f"{list(tokens.shape)}"
        )
    if n_ctx is not None:
        require_length(tokens.shape[1], n_ctx + unseen, n_ctx, name)
    if vocab_size is not None:
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= vocab_size:
            raise UserError(
                f"{name}: this model knows tokens 0 to {vocab_size - 1}, got {low} to {high}; "
                f"{'undefined, or ' * (low == -1)}another task's?"
            )


def require_length(length: int, most: int, n_ctx: int, name: str = "tokens") -> None:
    """Raise UserError for sequences of more than `most` tokens, of which the model sees `n_ctx`."""
    if length > most:
        raise UserError(
            f"{name}: this model sees {n_ctx} positions (n_ctx), got sequences of {length} tokens"
        )


__all__ = ["require_length", "require_tokens"]
