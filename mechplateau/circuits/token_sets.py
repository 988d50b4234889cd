"""Sets of attention entries that are often measured, and sequences on which they show.

    previous_token   the key right before the query
    first_token      the first key
    self             the query's own position
    same_token       earlier copies of the query's token
    induction        keys right after an earlier copy of the query's token

On sequences of random tokens that are repeated, only a head that looks for copies can do better than chance: the tokens
show nothing else (Olsson et al. 2022, In-context Learning and Induction Heads).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

import mechplateau_kernels as mk
from mechplateau.errors import UserError
from mechplateau.models.tokens import require_tokens

READY_MADE = ("previous_token", "first_token", "self", "same_token", "induction")


def attention_sets(
    inputs: Int[Tensor, "batch pos"], names: Sequence[str] = READY_MADE
) -> dict[str, mk.PositionSet]:
    """The ready-made sets on what the model sees.

    Args:
        inputs: `[batch, pos]`: sequences without their last token.
        names: which of them.

    Returns:
        by name; a set's `explain()` draws it for a short sequence.

    Raises:
        UserError: no such set, or no tokens.
    """
    require_tokens(inputs, name="inputs")
    listed = isinstance(names, Sequence) and not isinstance(names, str)
    if not listed or any(name not in READY_MADE for name in names):
        raise UserError(f"sets: expected some of {', '.join(READY_MADE)}, got {names!r}")
    if len(set(names)) < len(names):
        raise UserError(f"sets: expected each name once, got {names!r}")
    return {name: _made(name, inputs.long()) for name in names}


def _made(name: str, inputs: Int[Tensor, "batch pos"]) -> mk.PositionSet:
    if name == "previous_token":
        return mk.Offsets(1, 1)
    if name == "first_token":
        return mk.First(1)
    if name == "self":
        return mk.Offsets(0, 0)
    if name == "same_token":
        return mk.Codes(inputs, inputs) & mk.Offsets(1, None)
    before = torch.cat([torch.full_like(inputs[:, :1], -1), inputs[:, :-1]], dim=1)
    return mk.Codes(inputs, before) & mk.Offsets(0, None)


def repeated_tokens(
    vocab_size: int, *, length: int, copies: int = 2, batch: int = 4, seed: int = 0, first: int | None = None
) -> Int[Tensor, "batch seq"]:
    """Random tokens, repeated: whole sequences, of which a model sees exactly `copies` copies.

    Args:
        vocab_size: tokens there are; each is equally likely.
        length: tokens in a copy.
        copies: how often they come.
        batch: number of sequences.
        seed: of the tokens.
        first: a token at the front, such as the one that begins a text; None: none.

    Returns:
        int64 `[batch, copies · length + 1]`, one more with `first`; the last token is one that the model predicts only.

    Raises:
        UserError: a size below 1, or fewer than two copies.
    """
    sizes = {"vocab_size": vocab_size, "length": length, "copies": copies - 1, "batch": batch}
    for name, size in sizes.items():
        if size < 1:
            least = 2 if name == "copies" else 1
            raise UserError(f"{name}: expected at least {least}, got {size + least - 1}")
    generator = torch.Generator().manual_seed(seed)
    block = torch.randint(0, vocab_size, (batch, length), generator=generator)
    tokens = torch.cat([block.repeat(1, copies), block[:, :1]], dim=1)
    return tokens if first is None else torch.cat([torch.full((batch, 1), first), tokens], dim=1)
