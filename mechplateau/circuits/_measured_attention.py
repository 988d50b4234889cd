"""Run a model with every attention measured and none of its maps built.

What is computed before the scores (queries, keys and values, their norms, rotary positions) and after the weighted
values (the output projection) stays the model's own code, with its hooks. In between, scores, mask, softmax and the
weighted sum become one operation, which also gives the sums over sets. A component that adds something else to the
scores is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mechplateau.models.lens  # isort: skip  # noqa: F401 (before TransformerLens: says what to install)

import torch
from torch import Tensor
from transformer_lens import HookedTransformer
from transformer_lens.components import Attention, GroupedQueryAttention

import mechplateau_kernels as mk
from mechplateau.errors import UserError
from mechplateau.models.attention import MaskedAttention
from mechplateau.models.watched_parts import WatchedAttention
from mechplateau.models.watching import observed

_POSITIONS = {"alibi": "ALiBi positions", "relative_positional_bias": "relative position biases"}


@dataclass(frozen=True)
class Seen:
    """What was measured of one layer's attention.

    Attributes:
        layer: its number.
        window: keys a query may attend to, itself included; None: all before it.
        causal: whether keys after the query are out of reach.
        out: masses on the sets, and of the rows' statistics the entropy.
    """

    layer: int
    window: int | None
    causal: bool
    out: mk.AttentionOutputWithStatistics


Listener = Callable[[Seen], None]


@contextmanager
def measured_attention(
    model: HookedTransformer, sets: Sequence[mk.PositionSet], tell: Listener
) -> Iterator[None]:
    """Inside, every forward of the model reports what each layer's attention puts on the sets.

    Raises:
        UserError: an attention that this cannot measure, or a hook on a map; nothing is replaced then.
    """
    require_lens(model)
    components = [block.attn for block in model.blocks]
    for layer, attention in enumerate(components):
        _require_measurable(layer, attention)
    replaced: list[tuple[Any, str]] = []
    try:
        for layer, attention in enumerate(components):
            of_ours = isinstance(attention, MaskedAttention)
            methods = (
                _of_ours(layer, attention, sets, tell) if of_ours else _of_lens(layer, attention, sets, tell)
            )
            for name, method in methods.items():
                replaced.append((attention, name))
                setattr(attention, name, method)
        yield
    finally:
        for attention, name in replaced:
            del attention.__dict__[name]


def require_lens(model: object) -> None:
    """Raise UserError unless it is a HookedTransformer."""
    if not isinstance(model, HookedTransformer):
        raise UserError(f"model: expected a HookedTransformer, got {type(model).__name__}")


def _require_measurable(layer: int, attention: Any) -> None:
    name = f"blocks.{layer}.attn"
    known = (Attention, GroupedQueryAttention, WatchedAttention)
    if not isinstance(attention, MaskedAttention) and type(attention) not in known:
        raise UserError(
            f"{name}: attention of {type(attention).__name__} cannot be measured; "
            "expected Attention, GroupedQueryAttention or mechplateau's own"
        )
    positions = attention.cfg.positional_embedding_type
    if positions in _POSITIONS:
        raise UserError(f"{name}: {_POSITIONS[positions]} change the scores and cannot be measured here")
    if getattr(attention.cfg, "use_attention_sinks", False):
        raise UserError(f"{name}: attention with learned sinks cannot be measured here")
    for point in ("hook_attn_scores", "hook_pattern"):
        if observed(getattr(attention, point)):
            raise UserError(
                f"{name}.{point}: a hook here needs the map, which is not built while measuring; take it off first"
            )
    taken = {"calculate_attention_scores", "apply_causal_mask", "calculate_z_scores", "_attend", "forward"}
    if found := sorted(taken & attention.__dict__.keys()):
        raise UserError(f"{name}: its {found[0]} was replaced already; take that off first")


def _of_lens(layer: int, attention: Any, sets: Sequence[mk.PositionSet], tell: Listener) -> dict[str, Any]:
    """The three methods around the map of TransformerLens's attention."""
    cfg = attention.cfg
    causal = (attention._attention_dir_override or cfg.attention_dir) == "causal"
    window = cfg.window_size if causal and attention.attn_type == "local" else None
    projected: dict[str, Tensor] = {}

    def keep(q: Tensor, k: Tensor) -> Tensor:
        projected["q"], projected["k"] = q, k
        return q.new_zeros(q.shape[0], q.shape[2], 1, 1)

    def nothing_to_mask(scores: Tensor, offset: int = 0, padding: Tensor | None = None) -> Tensor:
        _require_whole(layer, offset, padding)
        return scores

    def attend(v: Tensor, pattern: Tensor) -> Tensor:
        q, k = projected.pop("q"), projected.pop("k")
        out = mk.softmax_attention(
            q,
            _of_every_head(k, q),
            _of_every_head(v, q),
            scale=1.0 / attention.attn_scale,
            causal=causal,
            soft_cap=cfg.attn_scores_soft_cap if cfg.attn_scores_soft_cap > 0 else None,
            allowed=None if window is None else mk.Offsets(0, window - 1),
            metric_sets=sets,
            row_statistics="entropy",
        )
        tell(Seen(layer, window, causal, out))
        return attention.hook_z(out.output)

    return {
        "calculate_attention_scores": keep,
        "apply_causal_mask": nothing_to_mask,
        "calculate_z_scores": attend,
    }


def _of_every_head(x: Tensor, q: Tensor) -> Tensor:
    """Keys or values of groups of heads, once for each head."""
    return x if x.shape[2] == q.shape[2] else x.repeat_interleave(q.shape[2] // x.shape[2], dim=2)


def _of_ours(
    layer: int, attention: MaskedAttention, sets: Sequence[mk.PositionSet], tell: Listener
) -> dict[str, Any]:
    """What attention of ours does between its projections, with the factor on Ω."""

    def attend(q: Tensor, k: Tensor, v: Tensor, offset: int, padding: Tensor | None) -> Tensor:
        _require_whole(layer, offset, padding)
        entries = attention._scaled(0, q.shape[1], k.shape[1])
        out = attention.fused(
            q, k, v, intervene=entries, c=attention.scale_factor, metric_sets=sets, row_statistics="entropy"
        )
        assert isinstance(out, mk.AttentionOutputWithStatistics)
        tell(Seen(layer, None, True, out))
        return out.output

    # Past the shortcuts that subclasses take where nothing is measured.
    return {"_attend": attend, "forward": MaskedAttention.forward.__get__(attention)}


def _require_whole(layer: int, offset: int, padding: Tensor | None) -> None:
    if offset or (padding is not None and not bool(torch.as_tensor(padding).all())):
        raise UserError(
            f"blocks.{layer}.attn: whole sequences without padding can be measured, not padded or continued ones"
        )
