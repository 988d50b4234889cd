"""One teacher-forced forward that records all that measurements need, without building attention maps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from jaxtyping import Int
from torch import Tensor

from mechplateau.errors import UserError
from mechplateau.models.records import AttentionRecord, Observation, hook_of
from mechplateau.models.tokens import require_tokens
from mechplateau_kernels import PositionSet

if TYPE_CHECKING:
    from mechplateau.models.transformer import HookedGPT


def observe(
    model: HookedGPT,
    tokens: Int[Tensor, "batch pos"],
    *,
    metric_sets: Mapping[int, Sequence[Tensor | PositionSet]] | None = None,
    at: Iterable[str] = ("final",),
    keep_patterns: bool = False,
) -> Observation:
    """Run the model once and record.

    The user's hooks stay in place and act; ours are removed afterwards, also after an exception.

    Args:
        model: with its trained weights (not folded: hidden states would be others).
        tokens: what the model sees, `[batch, pos]`.
        metric_sets: layer → sets of attention entries whose mass is wanted, each a `mechplateau_kernels` set or bool
            `[query, key]` or `[batch, query, key]`.
        at: locations of hidden states.
        keep_patterns: also keep each layer's attention map.

    Raises:
        UserError: the model's weights were folded, a location is unknown, or the tokens are no integers `[batch, pos]`
            or more than n_ctx long.
    """
    if model.weights_processed:
        raise UserError(
            "hidden states cannot be measured on a model whose weights were folded or centered; load it again "
            "unprocessed"
        )
    require_tokens(tokens, n_ctx=model.cfg.n_ctx)
    hidden: dict[str, Tensor] = {}

    def keep(location):
        def hook(activation, hook):
            hidden[location] = activation

        return hook

    records = []
    try:
        for layer, block in enumerate(model.blocks):
            block.attn.record = AttentionRecord(tuple((metric_sets or {}).get(layer, ())), keep_patterns)
            records.append(block.attn.record)
        with model.hooks(fwd_hooks=[(hook_of(location), keep(location)) for location in at]):
            logits = model(tokens.long())
    finally:
        for block in model.blocks:
            block.attn.record = None
    return Observation(logits, hidden, records)
