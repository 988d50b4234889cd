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
from mechplateau.models.tokens import require_tokens
from mechplateau.objectives import Batch, NextToken, Objective, TokenBatch

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

    from mechplateau.tasks import Task

MEASURES = ("loss", "accuracy", "logit_difference")


@dataclass(frozen=True)
class Scores:
    """Means over sequences at each scored position.

    Attributes:
        rows: the positions.
        loss: −log p(next token), nats, `[rows]`; NaN, as the others, where a model's logits are.
        accuracy: share of sequences whose most likely next token is the right one, `[rows]`; teacher-forced.
        logit_difference: logit of the right token minus the mean logit of all others, `[rows]`.
        each: the three of each sequence, `[3, batch, rows]`.
    """

    rows: tuple[int, ...]
    loss: np.ndarray
    accuracy: np.ndarray
    logit_difference: np.ndarray
    each: np.ndarray

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
        UserError: shapes or positions that do not fit, or tokens that are no integers or have no logit.
    """
    if (
        logits.dim() != 3
        or not isinstance(tokens, Tensor)
        or tokens.shape != (logits.shape[0], logits.shape[1] + 1)
    ):
        raise UserError(
            f"expected logits [batch, pos, vocab] and tokens [batch, pos + 1]; got {list(logits.shape)} and "
            f"{list(getattr(tokens, 'shape', ())) or type(tokens).__name__}"
        )
    require_tokens(tokens, vocab_size=logits.shape[2], shortest=2)
    chosen = checked_rows(rows, logits.shape[1])
    index = torch.tensor(chosen, device=logits.device)
    right = TokenBatch(tokens.to(logits.device)).targets
    per_sequence = measures_of(logits[:, index], right[:, index])
    loss, accuracy, difference = per_sequence.mean(dim=1).cpu().numpy()
    return Scores(chosen, loss, accuracy, difference, per_sequence.cpu().numpy())


def standard_error(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """Of the mean over sequences: standard deviation (n − 1) / √n; NaN of a single one."""
    n = values.shape[axis]
    if n < 2:
        return np.full(np.delete(values.shape, axis), np.nan)
    return values.std(axis=axis, ddof=1) / np.sqrt(n)


def measures_of(
    logits: Float[Tensor, "batch rows vocab"], right: Int[Tensor, "batch rows"]
) -> Float[Tensor, "3 batch rows"]:
    """Loss, accuracy and logit difference of each sequence and row, float64; NaN, all three, where the logits are."""
    logits = logits.detach().double()
    right = right.long()
    of_right = logits.gather(-1, right[..., None])[..., 0]
    others = (logits.sum(-1) - of_right) / max(logits.shape[-1] - 1, 1)
    loss = NextToken().losses(logits, Batch(right, right))
    # The largest of logits that are not numbers is no answer, right or wrong.
    hits = (logits.argmax(-1) == right).double().masked_fill(loss.isnan(), torch.nan)
    return torch.stack([loss, hits, of_right - others])


def example_measures(
    outputs: Tensor, batch: Batch, objective: Objective, rows: Sequence[int]
) -> Float[np.ndarray, "3 batch"]:
    """Loss, accuracy and logit difference of each example, whose means are those of the batch.

    The loss is the objective's over these entries (an example's share of it, where entries count differently); accuracy
    and logit difference are NaN unless the objective is the next token.
    """
    index = torch.tensor(list(rows), device=outputs.device)
    if isinstance(objective, NextToken):
        return measures_of(outputs[:, index], batch.targets[:, index]).mean(-1).cpu().numpy()
    loss = example_losses(outputs.detach(), batch, objective, rows)
    return np.stack([loss.cpu().numpy(), *np.full((2, len(loss)), np.nan)])


def example_losses(
    outputs: Tensor, batch: Batch, objective: Objective, rows: Sequence[int]
) -> Float[Tensor, " batch"]:
    """The objective's loss of each example over these entries, float64, differentiable: its share of the batch's."""
    index = torch.tensor(list(rows), device=outputs.device)
    losses, weights = objective.losses(outputs.double(), batch), objective.weights(batch)
    counted = torch.ones_like(losses) if weights is None else weights.double()
    losses, counted = losses[:, index], counted[:, index]
    return (losses * counted).sum(-1) / counted.sum(-1).mean()


def objective_for(batch: Batch, objective: Objective | None) -> Objective:
    """The objective that was given, or of a batch of tokens, the next token.

    Raises:
        UserError: none was given for another batch.
    """
    if objective is None and not isinstance(batch, TokenBatch):
        raise UserError(
            f"objective: expected the task's (objective=run.task.objective) for a {type(batch).__name__}, got none"
        )
    return NextToken() if objective is None else objective


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
            f"{name}: expected different positions from 0 to {n_positions - 1} (of what the model sees: of a sequence "
            f"all but its last token, of a matrix every cell), got {rows!r}"
        )
    return chosen


def inputs_of(model: HookedTransformer, tokens: Int[Tensor, "batch seq"]) -> Int[Tensor, "batch pos"]:
    """What the model sees of whole sequences: all but the last token, int64, on the model's device.

    Raises:
        UserError: not a tensor of integers, not a batch of sequences of at least two tokens, longer than the model
            takes, or with tokens outside its vocabulary.
    """
    cfg = model.cfg
    if isinstance(tokens, TokenBatch):
        tokens = tokens.tokens
    require_tokens(tokens, n_ctx=cfg.n_ctx, vocab_size=cfg.d_vocab, shortest=2, unseen=1)
    return TokenBatch(tokens).inputs.to(model.W_E.device, torch.int64).contiguous()


def seen_by(model: HookedTransformer, inputs: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
    """Inputs as the model takes them: int64, on its device; one sequence by itself is a batch of one.

    Raises:
        UserError: not a tensor of integers, empty, longer than the model takes, or with tokens outside its vocabulary.
    """
    device = next(model.parameters()).device
    if not hasattr(model, "cfg") or (isinstance(inputs, Tensor) and inputs.is_floating_point()):
        if not isinstance(inputs, Tensor) or not len(inputs):
            raise UserError(f"inputs: expected a tensor of at least one example, got {type(inputs).__name__}")
        return inputs.to(device)  # of another kind of model: its own forward knows what it takes
    whole = inputs[None] if isinstance(inputs, Tensor) and inputs.dim() == 1 else inputs
    require_tokens(whole, n_ctx=model.cfg.n_ctx, vocab_size=model.cfg.d_vocab, name="inputs")
    return whole.to(device, torch.int64).contiguous()


def require_task_of(tokens: Int[Tensor, "batch seq"], task: Task) -> None:
    """Raise UserError unless these can be a task's sequences: of its length, with its tokens."""
    require_tokens(tokens, vocab_size=task.vocab_size)
    if tokens.shape[1] != task.n_ctx:
        raise UserError(
            f"tokens: sequences of {task.name} have {task.n_ctx} tokens, got {tokens.shape[1]}; another task's?"
        )
