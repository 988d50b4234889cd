"""Attention components: linear and softmax, with a factor on Ω and the sums that attention progress needs.

Both keep TransformerLens's parameters and hook points. In the order of the hooks:

    scores = QKᵀ / √d_head, masked          → hook_attn_scores → masked again
    pattern = scores (linear) or softmax     → × c on the intervention's Ω → hook_pattern
    z = pattern · V                          → hook_z

*Fused unless observed*: while neither `hook_attn_scores` nor `hook_pattern` carries a hook, attention runs in one
fused operation (softmax beyond `SHORT` positions), whose memory grows with the length and not with its square; with a
hook, the map is explicit and an edit of it takes effect. Both paths agree to 1e-6.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import mechplateau.models.lens  # isort: skip  # noqa: F401 (before TransformerLens: says what to install)

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from transformer_lens.components import Attention

import mechplateau_kernels as mk
from mechplateau.models.eager import in_plain_eager
from mechplateau.models.records import AttentionRecord
from mechplateau.models.table import Rows
from mechplateau.models.watching import Watch, honors_hooks, observed

_BUFFERS = ("mask", "IGNORE")
Fused = mk.AttentionOutput | mk.AttentionOutputWithStatistics
SHORT = 64
"""Up to here softmax attention always builds its map, which is small and as fast."""


class MaskedAttention(Attention):
    """Base of linear and softmax attention: the order of the hooks, the factor on Ω, the record.

    Attributes:
        looked_up: whether the last forward took its queries, keys and values from the first layer's table.
    """

    watch: Watch | None = None

    def __init__(self, cfg, attn_type="global", layer_id=None):
        super().__init__(cfg, attn_type, layer_id)
        self.scale_set: Bool[Tensor, "query key"] | None = None
        self.scale_factor: float = 1.0
        self.record: AttentionRecord | None = None
        self.looked_up = False

    @property
    def takes_rows(self) -> bool:
        """Whether `Rows` can replace the input: not where queries, keys and values are made another way."""
        ours = type(self) in (LinearAttention, SoftmaxAttention)
        return ours and "calculate_qkv_matrices" not in self.__dict__

    def scale_on(self, entries: Bool[Tensor, "query key"] | None, c: float = 1.0) -> None:
        """Multiply the pattern by `c` at these entries, `[n_ctx, n_ctx]`; None takes the factor off.

        Raises:
            RuntimeError: a factor is on already (two at once have no defined order).
        """
        if entries is not None and self.scale_set is not None:
            raise RuntimeError("this attention already has a factor on its pattern; remove that one first")
        self.scale_set = entries
        self.scale_factor = c

    @honors_hooks
    def forward(
        self,
        query_input,
        key_input,
        value_input,
        past_kv_cache_entry=None,
        additive_attention_mask=None,
        attention_mask=None,
        position_bias=None,
    ) -> Float[Tensor, "batch pos d_model"]:
        if additive_attention_mask is not None or position_bias is not None:
            raise NotImplementedError("attention here takes neither an additive mask nor a position bias")
        self.looked_up = isinstance(query_input, Rows)
        if self.looked_up and self.record is not None:
            self.record.table = query_input.table
        q, k, v = self.calculate_qkv_matrices(query_input, key_input, value_input)
        offset = 0
        if past_kv_cache_entry is not None:
            offset = past_kv_cache_entry.past_keys.shape[1]
            k, v = past_kv_cache_entry.append(k, v)
        z = None if attention_mask is not None else self._by_sums(q, past_kv_cache_entry)
        z = self.hook_z(self._attend(q, k, v, offset, attention_mask) if z is None else z)
        if self.cfg.use_attn_result:
            result = self.hook_result(torch.einsum("bphd,hdm->bphm", z, self.W_O))
            return result.sum(dim=2) + self.b_O
        return F.linear(z.flatten(2), self.W_O.flatten(0, 1).T, self.b_O)

    def calculate_qkv_matrices(self, query_input, key_input, value_input):
        """As TransformerLens's, to the bit, in fewer calls: generating a token mostly costs calls.

        A query input given as `Rows` of the first layer's table gives all three.
        """
        cfg = self.cfg
        if isinstance(query_input, Rows):
            q, k, v = query_input.qkv()
            return self.hook_q(q), self.hook_k(k), self.hook_v(v)
        if cfg.use_split_qkv_input or cfg.use_attn_in or cfg.use_qk_norm or cfg.load_in_4bit:
            return super().calculate_qkv_matrices(query_input, key_input, value_input)
        return (
            self.hook_q(_project(query_input, self.W_Q, self.b_Q)),
            self.hook_k(_project(key_input, self.W_K, self.b_K)),
            self.hook_v(_project(value_input, self.W_V, self.b_V)),
        )

    def projected(self, x: Float[Tensor, "*batch d_model"]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of these rows before any hook, each `[*batch, head, d_head]`."""
        return (
            _project(x, self.W_Q, self.b_Q),
            _project(x, self.W_K, self.b_K),
            _project(x, self.W_V, self.b_V),
        )

    def calculate_attention_scores(self, q, k):
        """As TransformerLens's, to the bit."""
        if self.cfg.attn_scores_soft_cap > 0:
            return super().calculate_attention_scores(q, k)
        return q.transpose(1, 2) @ k.permute(0, 2, 3, 1) / self.attn_scale

    def _attend(self, q, k, v, offset: int, padding) -> Float[Tensor, "batch query head d_head"]:
        record = self.record
        entries = self._scaled(offset, q.shape[1], k.shape[1])
        whole = offset == 0 and (padding is None or bool(padding.all()))
        if record is not None:
            record.keys, record.values = k, v
        if whole and self._fusible(q.shape[1]) and not (record is not None and record.keep_pattern):
            out = self.fused(
                q,
                k,
                v,
                intervene=entries,
                c=self.scale_factor,
                metric_sets=() if record is None else record.metric_sets,
                row_mass=record is not None,
            )
            if record is not None:
                record.row_mass, record.set_mass = out.row_mass, out.set_mass
            return out.output

        scores = self.calculate_attention_scores(q, k)
        # The newest token alone may attend to every other: nothing is masked.
        allowed = None
        if padding is not None or q.shape[1] > 1 or k.shape[1] > offset + 1:
            allowed = self._allowed(q, k, offset, padding)
            scores = self.mask_scores(scores, allowed)
        if observed(self.hook_attn_scores):
            scores = self.hook_attn_scores(scores)
            if allowed is not None:
                scores = self.mask_scores(scores, allowed)
        pattern = self.scores_to_pattern(scores)
        if entries is not None and self.scale_factor != 1.0:
            pattern = torch.where(entries, pattern * self.scale_factor, pattern)
        pattern = self.hook_pattern(pattern)
        if record is not None:
            self._fill(record, pattern)
        return (pattern @ v.transpose(1, 2)).transpose(1, 2)

    @abstractmethod
    def fused(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Fused:
        """Causal attention without its map; options as the operation's."""

    @abstractmethod
    def _fusible(self, pos: int) -> bool:
        """Whether scores and pattern have no hook, and the map is worth leaving out."""

    def _by_sums(self, q: Tensor, cache) -> Tensor | None:
        """z of a new token from what the cache keeps summed; None where that does not give z."""
        if (
            not isinstance(self, LinearAttention)
            or not self._fusible(1)
            or self.record is not None
            or not hasattr(cache, "linear")
        ):
            return None
        if self.scale_set is not None and self.scale_factor != 1.0:
            return None
        z = cache.linear(q)
        return None if z is None else z / self.attn_scale

    @abstractmethod
    def mask_scores(self, scores: Tensor, allowed: Tensor) -> Tensor:
        """Take the scores that causality (and padding) forbids out."""

    @abstractmethod
    def scores_to_pattern(self, scores: Tensor) -> Tensor:
        """Attention pattern from masked scores, both `[batch, head, query, key]`."""

    def _scaled(self, offset: int, queries: int, keys: int) -> Bool[Tensor, "query key"] | None:
        if self.scale_set is None:
            return None
        return self.scale_set[offset : offset + queries, :keys]

    @staticmethod
    def _allowed(q: Tensor, k: Tensor, offset: int, padding: Tensor | None) -> Tensor:
        query = torch.arange(offset, offset + q.shape[1], device=q.device)[:, None]
        key = torch.arange(k.shape[1], device=q.device)[None, :]
        allowed = (key <= query)[None, None]
        return allowed if padding is None else allowed & padding.bool()[:, None, None, :]

    @staticmethod
    def _fill(record: AttentionRecord, pattern: Float[Tensor, "batch head query key"]) -> None:
        size = pattern.abs()
        record.row_mass = size.sum(-1)
        masses = []
        for entries in record.metric_sets:
            mask = mk.as_set(entries).dense(size.shape[-1]).to(size.device)[:, None]
            masses.append(torch.where(mask, size, 0.0).sum(-1))
        empty = size.new_zeros(*size.shape[:2], 0, size.shape[2])
        record.set_mass = torch.stack(masses, dim=2) if masses else empty
        if record.keep_pattern:
            record.pattern = pattern


def _project(
    x: Float[Tensor, "*batch d_model"],
    weight: Float[Tensor, "head d_model d_head"],
    bias: Float[Tensor, "head d_head"],
) -> Float[Tensor, "*batch head d_head"]:
    flat = F.linear(x, weight.transpose(1, 2).flatten(0, 1), bias.flatten())
    return flat.view(*x.shape[:-1], *bias.shape)


class LinearAttention(MaskedAttention):
    """A = causal(QKᵀ / √d_head): zeros above the diagonal, no softmax, no normalization."""

    def __init__(self, cfg, attn_type="global", layer_id=None):
        super().__init__(cfg, attn_type, layer_id)
        # TransformerLens's two buffers hold no weights. Without them in the state dict, a plain HookedTransformer,
        # whose attention is softmax, refuses to load it strictly.
        for name in _BUFFERS:
            self.register_buffer(name, getattr(self, name), persistent=False)

    def fused(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Fused:
        return mk.linear_attention(q, k, v, scale=1.0 / self.attn_scale, **options)

    def _fusible(self, pos: int) -> bool:
        return not observed(self.hook_attn_scores, self.hook_pattern)

    def mask_scores(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return torch.where(allowed, scores, torch.zeros((), dtype=scores.dtype, device=scores.device))

    def scores_to_pattern(self, scores: Tensor) -> Tensor:
        return scores


class SoftmaxAttention(MaskedAttention):
    """The usual causal softmax attention. A row with nothing to attend to is all zero."""

    def _load_from_state_dict(self, state_dict, prefix, *rest):
        """As torch's; the two buffers may be there or not, in any size (older versions save a whole mask)."""
        state_dict.update({prefix + name: getattr(self, name) for name in _BUFFERS})
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def fused(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Fused:
        cap = self.cfg.attn_scores_soft_cap
        return mk.softmax_attention(
            q, k, v, scale=1.0 / self.attn_scale, soft_cap=cap if cap > 0 else None, **options
        )

    def _fusible(self, pos: int) -> bool:
        return pos > SHORT and not observed(self.hook_attn_scores, self.hook_pattern)

    def mask_scores(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores.masked_fill(~allowed, -torch.inf)

    def scores_to_pattern(self, scores: Tensor) -> Tensor:
        if in_plain_eager(scores):
            pattern = scores.softmax(dim=-1)
            # A row with nothing to attend to is NaN here. That is rare: what makes it 0 runs only where needed.
            if not pattern[..., 0].isnan().any():
                return pattern
        nothing = (scores == -torch.inf).all(dim=-1, keepdim=True)
        return scores.masked_fill(nothing, 0.0).softmax(dim=-1).masked_fill(nothing, 0.0)
