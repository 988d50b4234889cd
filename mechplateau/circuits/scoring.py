"""How well a model predicts, per position: the three numbers that every tool here compares.

Cost: one pass over the logits. The scored positions ("rows") are positions of what the model sees, a sequence
without its last token; a task's outputs are predicted at `task.output_rows`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechplateau.errors import UserError

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

MEASURES = ("loss", "accuracy", "logit_difference")


@dataclass(frozen=True)
class Scores:
    """Means over sequences at each scored position.

    Attributes:
        rows: the positions.
        loss: −log p(next token), nats, `[rows]`; NaN, as the others, where a model's logits are.
        accuracy: share of sequences whose most likely next token is the right one, `[rows]`; teacher-forced.
        logit_difference: logit of the right token minus the mean logit of all others, `[rows]`.
    """

    rows: tuple[int, ...]
    loss: np.ndarray
    accuracy: np.ndarray
    logit_difference: np.ndarray

    def mean(self) -> dict[str, float]:
        """The three numbers averaged over the positions."""
        return {name: float(getattr(self, name).mean()) for name in MEASURES}


def score(
    logits: Float[Tensor, "batch pos vocab"],
    tokens: Int[Tensor, "batch seq"],
    rows: Sequence[int] | None = None,
) -> Scores:
    """Score next-token logits.

    Args:
        logits: teacher-forced, of `tokens[:, :-1]`.
        tokens: whole sequences; `seq` is `pos + 1`.
        rows: positions to score; None: all.

    Raises:
        UserError: shapes or positions that do not fit.
    """
    if logits.dim() != 3 or tokens.shape != (logits.shape[0], logits.shape[1] + 1):
        raise UserError(
            f"expected logits [batch, pos, vocab] and tokens [batch, pos + 1]; got {list(logits.shape)} and "
            f"{list(tokens.shape)}"
        )
    chosen = checked_rows(rows, logits.shape[1])
    index = torch.tensor(chosen, device=logits.device)
    per_sequence = measures_of(logits[:, index], tokens.to(logits.device)[:, index + 1])
    means = per_sequence.mean(dim=1).cpu().numpy()
    return Scores(chosen, *means)


def measures_of(
    logits: Float[Tensor, "batch rows vocab"], right: Int[Tensor, "batch rows"]
) -> Float[Tensor, "3 batch rows"]:
    """Loss, accuracy and logit difference of each sequence and row, float64; NaN, all three, where the logits are."""
    logits = logits.detach().double()
    of_right = logits.gather(-1, right[..., None])[..., 0]
    others = (logits.sum(-1) - of_right) / max(logits.shape[-1] - 1, 1)
    loss = logits.logsumexp(-1) - of_right
    # The largest of logits that are not numbers is no answer, right or wrong.
    hits = (logits.argmax(-1) == right).double().masked_fill(loss.isnan(), torch.nan)
    return torch.stack([loss, hits, of_right - others])


def checked_rows(rows: Sequence[int] | None, n_positions: int, name: str = "rows") -> tuple[int, ...]:
    """Some positions, to score for instance; all where None is given.

    Raises:
        UserError: none, or one that is not a position of what the model sees; `name` is what they were given as.
    """
    try:
        chosen = tuple(range(n_positions)) if rows is None else tuple(map(operator.index, rows))
    except TypeError:
        chosen = ()
    if not chosen or min(chosen) < 0 or max(chosen) >= n_positions or len(set(chosen)) < len(chosen):
        raise UserError(
            f"{name}: expected different positions from 0 to {n_positions - 1} (what the model sees is one shorter "
            f"than a sequence), got {rows!r}"
        )
    return chosen


def inputs_of(model: HookedTransformer, tokens: Int[Tensor, "batch seq"]) -> Int[Tensor, "batch pos"]:
    """What the model sees of whole sequences: all but the last token, on the model's device.

    Raises:
        UserError: not a tensor of integers, not a batch of sequences of at least two tokens, longer than the model
            takes, or with tokens outside its vocabulary.
    """
    if not isinstance(tokens, Tensor) or tokens.is_floating_point():
        given = tokens.dtype if isinstance(tokens, Tensor) else type(tokens).__name__
        raise UserError(f"tokens: expected a tensor of integers, got {given}; use torch.tensor(tokens)")
    if tokens.dim() != 2 or tokens.shape[0] < 1 or tokens.shape[1] < 2:
        raise UserError(
            f"tokens: expected [batch, seq] with at least 2 tokens each, got {list(tokens.shape)}"
        )
    n_ctx, vocab = model.cfg.n_ctx, model.cfg.d_vocab
    if tokens.shape[1] - 1 > n_ctx:
        raise UserError(
            f"tokens: this model sees {n_ctx} positions, got sequences of {tokens.shape[1]} tokens"
        )
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocab:
        raise UserError(
            f"tokens: this model knows tokens 0 to {vocab - 1}, got {low} to {high}; another task's?"
        )
    return tokens[:, :-1].to(model.W_E.device)
