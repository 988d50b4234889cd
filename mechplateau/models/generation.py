"""Greedy generation with a key/value cache, one token at a time; every hook and intervention acts in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import mechplateau.models.lens  # isort: skip  # noqa: F401 (before TransformerLens: says what to install)

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.utilities import get_attention_mask

from mechplateau.errors import UserError
from mechplateau.models.observation import observe
from mechplateau.models.records import Observation
from mechplateau.models.table import Table, table_for, unobserved
from mechplateau.models.tokens import require_tokens

if TYPE_CHECKING:
    from mechplateau.models.transformer import HookedGPT

_JOIN = 32
"""Positions that join the sums of linear attention together."""


def generate(
    model: HookedGPT, prompt: Int[Tensor, "batch prompt"], n_outputs: int
) -> Int[Tensor, "batch n_outputs"]:
    """The `n_outputs` tokens that the model finds most likely, one after the other, after each prompt.

    Ties go to the smaller token; a token whose logits are not finite is undefined, −1, and so are those after it. The
    model's mode (train or eval) and gradients are left as they are.

    Raises:
        UserError: the number of tokens is 0, prompt and outputs are longer than the model's n_ctx, or the prompt is
            padded or not of tokens `[batch, prompt]` that the model knows.
    """
    if n_outputs < 1:
        raise UserError(f"n_outputs: expected at least 1, got {n_outputs}")
    require_tokens(prompt, n_ctx=model.cfg.n_ctx, vocab_size=model.cfg.d_vocab, name="prompt")
    if prompt.shape[1] + n_outputs - 1 > model.cfg.n_ctx:
        raise UserError(
            f"n_outputs: expected at most {model.cfg.n_ctx - prompt.shape[1] + 1} after {prompt.shape[1]} prompt "
            f"tokens (n_ctx = {model.cfg.n_ctx}), got {n_outputs}"
        )
    if model.tokenizer is not None and not bool(get_attention_mask(model.tokenizer, prompt, False).all()):
        raise UserError(
            "prompt: expected no padding, got some; give each prompt by itself, or use model.generate, which knows it"
        )
    seen = observe(model, prompt, at=())
    return generate_on(model, seen, prompt.shape[1], n_outputs)


def generate_on(
    model: HookedGPT, seen: Observation, prompt_length: int, n_outputs: int
) -> Int[Tensor, "batch n_outputs"]:
    """Generate after a forward over sequences that begin with the prompt.

    Attention is causal, so the keys and values of the prompt's positions do not depend on what came after:
    a teacher-forced forward serves as the prefill.

    Args:
        model: the model.
        seen: that forward.
        prompt_length: how many of its positions are the prompt's.
        n_outputs: how many tokens to generate.

    Returns:
        Tokens; −1 where the logits that decide one, or one before it, are not finite.
    """
    entries = [_Cache(*record.cache(), prompt_length, n_outputs - 1) for record in seen.records]
    table = _table(model, seen, prompt_length, n_outputs - 1)
    deciding = [seen.logits[:, prompt_length - 1]]
    outputs = [deciding[0].argmax(dim=-1)]
    for position in range(prompt_length, prompt_length + n_outputs - 1):
        deciding.append(_step(model, outputs[-1][:, None], position, entries, table))
        outputs.append(deciding[-1].argmax(dim=-1))
    finite = torch.stack(deciding, dim=1).isfinite().all(dim=-1)
    # What follows an undefined token was made from an arbitrary one.
    defined = finite.long().cumprod(dim=1).bool()
    return torch.stack(outputs, dim=1).where(defined, -1)


class _Cache:
    """Keys and values of one layer, with room for what is to come.

    Has what attention uses of TransformerLens's own cache entry, which copies everything at every token. Heads come
    before positions, so that what attention multiplies at a token are views, however many heads there are.
    """

    def __init__(self, keys: Tensor, values: Tensor, filled: int, room: int):
        batch, _, heads, width = keys.shape
        # [batch, head, pos, d_head]
        self._keys, self._values = (
            kept.new_empty(batch, heads, filled + room, width) for kept in (keys, values)
        )
        self._keys[:, :, :filled] = keys[:, :filled].detach().transpose(1, 2)
        self._values[:, :, :filled] = values[:, :filled].detach().transpose(1, 2)
        self._filled = filled
        self._summed = 0
        self._sums: Tensor | None = None

    @property
    def past_keys(self) -> Tensor:
        return self._keys[:, :, : self._filled].transpose(1, 2)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add the next token's; returns all so far, `[batch, pos, head, d_head]`."""
        self._keys[:, :, self._filled] = keys[:, 0].detach()
        self._values[:, :, self._filled] = values[:, 0].detach()
        self._filled += 1
        kept = (self._keys, self._values)
        return tuple(each[:, :, : self._filled].transpose(1, 2) for each in kept)  # type: ignore[return-value]

    def linear(self, query: Float[Tensor, "batch 1 head d_head"]) -> Tensor | None:
        """Σ_j (query · k_j) v_j over all so far, of query's shape; None where they are too few for it to gain.

        Σ_j k_j v_jᵀ, `[d_head, d_head]` a head, replaces all but the last positions: a token reads it from memory,
        not all keys and values. The last ones join it together. It is summed in float32 at least.
        """
        width = self._keys.shape[-1]
        if self._keys.shape[2] < 2 * width or self._filled < width:
            return None
        if self._sums is None:
            precise = torch.promote_types(self._keys.dtype, torch.float32)
            self._sums = self._keys.new_zeros(*self._keys.shape[:2], width, width, dtype=precise)
        q = query.transpose(1, 2)
        if self._filled - self._summed >= _JOIN:
            new = slice(self._summed, self._filled)
            keys, values = (
                kept[:, :, new].flatten(0, 1).to(self._sums.dtype) for kept in (self._keys, self._values)
            )
            self._sums.flatten(0, 1).baddbmm_(keys.transpose(1, 2), values)
            self._summed = self._filled
        z = q @ self._sums.to(q.dtype)
        if self._summed < self._filled:
            last = slice(self._summed, self._filled)
            z = z + (q @ self._keys[:, :, last].transpose(2, 3)) @ self._values[:, :, last]
        return z.transpose(1, 2)


def _table(model: HookedGPT, seen: Observation, start: int, n_positions: int) -> Table | None:
    """The forward's table of the first layer, where it serves; else one of our own, where that pays."""
    table = seen.records[0].table if seen.records else None
    if table is not None and table.serves(model, start, n_positions) and unobserved(model):
        return table
    return table_for(model, len(seen.logits), start, n_positions)


def _step(
    model: HookedGPT,
    token: Int[Tensor, "batch 1"],
    position: int,
    entries: Sequence[_Cache],
    table: Table | None,
) -> Float[Tensor, "batch vocab"]:
    """Logits after one more token: HookedTransformer.forward with a cache, less its padding machinery."""
    if table is not None:
        rows = table.at(token, position)
        return model.logits_of(rows.residual(), entries, rows)[:, -1]
    residual = model.hook_embed(model.embed(token)) + model.hook_pos_embed(model.pos_embed(token, position))
    return model.logits_of(residual, entries)[:, -1]
