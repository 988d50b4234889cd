"""The first layer's queries, keys and values, looked up in a table where that pays and nothing before them is hooked.

Before the first attention a row of the model depends on its token and its position only:

    residual[t, p] = W_E[t] + W_pos[p],   q, k, v[t, p] = LN1(residual[t, p]) · W + b

Where the batch holds many more sequences than there are tokens, that is computed once for each pair (t, p) and
gathered; the gather's gradient sums what came from equal pairs. What follows is unchanged: `hook_q`, `hook_k` and
`hook_v` see the gathered values, and their edits take effect.

*Fused unless observed*: with a hook on anything before (embeddings, `hook_resid_pre`, LN1), every row is computed by
itself and the hook acts. Both paths agree to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import mechplateau.models.lens  # isort: skip  # noqa: F401 (before TransformerLens: says what to install)

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.components import LayerNormPre

from mechplateau.models.layers import FusedLayerNorm, LookupEmbed, OnceNormedBlock, RepeatedPosEmbed
from mechplateau.models.watched_parts import WatchedLayerNormPre
from mechplateau.models.watching import observed

if TYPE_CHECKING:
    from mechplateau.models.transformer import HookedGPT

PAYS_FROM = 2
"""Sequences for each token of the vocabulary from which the table is less work than the rows themselves."""


@dataclass(frozen=True)
class Table:
    """One row for each token and each of some positions: row `token · n_positions + (position − start)`.

    Attributes:
        residual: token and position embeddings summed.
        queries, keys, values: of the first layer, before its hooks.
        start: the first position.
        n_positions: how many positions from there on.
        made_of: the parameters it was made of, each with its count of changes in place.
    """

    residual: Float[Tensor, "row d_model"]
    queries: Float[Tensor, "row head d_head"]
    keys: Float[Tensor, "row head d_head"]
    values: Float[Tensor, "row head d_head"]
    start: int
    n_positions: int
    made_of: tuple[tuple[Tensor, int | None], ...]

    @classmethod
    def of(cls, model: HookedGPT, start: int, n_positions: int) -> Self:
        """The table of a model's present weights."""
        block = model.blocks[0]
        positions = model.pos_embed.W_pos[start : start + n_positions]
        residual = (model.embed.W_E[:, None] + positions).flatten(0, 1)
        queries, keys, values = block.attn.projected(block.ln1(residual))
        return cls(residual, queries, keys, values, start, n_positions, _weights(model))

    def serves(self, model: HookedGPT, start: int, n_positions: int) -> bool:
        """Whether it holds all of these positions, as the model's present weights give them."""
        if start < self.start or start + n_positions > self.start + self.n_positions:
            return False
        now = _weights(model)
        return len(now) == len(self.made_of) and all(
            one is other and changes == changes_then
            for (one, changes), (other, changes_then) in zip(now, self.made_of, strict=True)
        )

    def at(self, tokens: Int[Tensor, "batch pos"], start: int = 0) -> Rows:
        """Where the rows of these tokens are; the first of them is at position `start`."""
        first = start - self.start
        positions = torch.arange(first, first + tokens.shape[1], device=tokens.device)
        return Rows(self, tokens * self.n_positions + positions)


@dataclass(frozen=True)
class Rows:
    """A batch given by the rows of a table, which attention takes in place of its input.

    Attributes:
        table: the table.
        index: the row of each position.
    """

    table: Table
    index: Int[Tensor, "batch pos"]

    def residual(self) -> Float[Tensor, "batch pos d_model"]:
        """The residual stream before the first layer."""
        return _gathered(self.table.residual, self.index)

    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each `[batch, pos, head, d_head]`."""
        table = self.table
        return (
            _gathered(table.queries, self.index),
            _gathered(table.keys, self.index),
            _gathered(table.values, self.index),
        )


def _weights(model: HookedGPT) -> tuple[tuple[Tensor, int | None], ...]:
    block = model.blocks[0]
    return tuple(
        (weight, None if weight.is_inference() else weight._version)
        for part in (model.embed, model.pos_embed, block.ln1, block.attn)
        for weight in part.parameters()
    )


def _gathered(kept: Float[Tensor, "row ..."], index: Int[Tensor, "batch pos"]) -> Tensor:
    """`[batch, pos, …]`. Gradients of equal rows are many: they are summed in float32 at least."""
    half = kept.dtype in (torch.float16, torch.bfloat16)
    wide = kept.float() if half else kept
    return F.embedding(index, wide.flatten(1)).to(kept.dtype).unflatten(-1, kept.shape[1:])


def table_for(model: HookedGPT, batch: int, start: int, n_positions: int) -> Table | None:
    """A table for `batch` sequences at these positions; None where it does not pay or would leave a hook out."""
    if PAYS_FROM * model.cfg.d_vocab > batch or start + n_positions > model.cfg.n_ctx:
        return None
    return Table.of(model, start, n_positions) if unobserved(model) else None


def unobserved(model: HookedGPT) -> bool:
    """Whether the model's rows before the first attention are those of the table, and nothing there is hooked."""
    if not len(model.blocks):
        return False
    cfg, block = model.cfg, model.blocks[0]
    if cfg.use_split_qkv_input or cfg.use_attn_in or cfg.use_qk_norm or cfg.use_hook_tokens:
        return False
    known = (
        type(model.embed) is LookupEmbed
        and type(model.pos_embed) is RepeatedPosEmbed
        and type(block) is OnceNormedBlock
        and type(block.ln1) in (FusedLayerNorm, LayerNormPre, WatchedLayerNormPre)
        and getattr(block.attn, "takes_rows", False)
    )
    return known and not observed(
        model.embed,
        model.pos_embed,
        model.hook_embed,
        model.hook_pos_embed,
        block,
        block.hook_resid_pre,
        *block.ln1.modules(),
        block.attn,
    )
