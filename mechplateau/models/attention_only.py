"""An attention-only language model as a TransformerLens `HookedTransformer`.

Positions are Shortformer's: queries and keys read ln1(x) + W_pos, values read ln1(x), and the residual stream never
holds a position. There are no MLPs. Same parameter names, hook points and caches as any HookedTransformer with
`attn_only` and `positional_embedding_type="shortformer"`.

*Fused unless observed*: with no hook on scores or pattern, attention runs in one call and no map is kept; with a
hook or a record, it is explicit and a hook's edit takes effect. Both agree to 1e-5.

Source: arXiv 2402.02364, appendix F.1; Press et al. 2021 for the positions.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self

import mechplateau.models.lens  # isort: skip  # noqa: F401 (before TransformerLens: says what to install)

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens import HookedTransformerConfig
from transformer_lens.components import TransformerBlock

from mechplateau.devices import device_named
from mechplateau.models.attention import SoftmaxAttention
from mechplateau.models.attention_only_config import AttentionOnlyConfig
from mechplateau.models.hooks import WatchedHooks
from mechplateau.models.labels import LabeledTokens
from mechplateau.models.layers import FusedLayerNorm, LookupEmbed, RepeatedPosEmbed
from mechplateau.models.observation import observe
from mechplateau.models.records import Observation
from mechplateau.models.watching import observed


class FusedSoftmaxAttention(SoftmaxAttention):
    """Softmax attention in one call where its map is not looked at and nothing is padded, cached or scaled."""

    def forward(self, query_input, key_input, value_input, past_kv_cache_entry=None, **options):
        looked_at = observed(self.hook_attn_scores, self.hook_pattern)
        if (
            looked_at
            or self.record is not None
            or self.scale_set is not None
            or past_kv_cache_entry is not None
            or any(option is not None for option in options.values())
            or self.cfg.use_attn_result
        ):
            return super().forward(query_input, key_input, value_input, past_kv_cache_entry, **options)
        q, k, v = self.calculate_qkv_matrices(query_input, key_input, value_input)
        z = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, scale=1 / self.attn_scale
        )
        z = self.hook_z(z.transpose(1, 2))
        return F.linear(z.flatten(2), self.W_O.flatten(0, 1).T, self.b_O)


class ShortformerBlock(TransformerBlock):
    """A block that takes its LayerNorm once; the original takes it three times over."""

    def forward(
        self, resid_pre, shortformer_pos_embed=None, past_kv_cache_entry=None, attention_mask=None
    ) -> Float[Tensor, "batch pos d_model"]:
        if self.cfg.use_attn_in or self.cfg.use_split_qkv_input or shortformer_pos_embed is None:
            return super().forward(resid_pre, shortformer_pos_embed, past_kv_cache_entry, attention_mask)
        resid_pre = self.hook_resid_pre(resid_pre)
        normalized = self.ln1(resid_pre)
        placed = normalized + shortformer_pos_embed
        attn_out = self.hook_attn_out(
            self.attn(
                query_input=placed,
                key_input=placed,
                value_input=normalized,
                past_kv_cache_entry=past_kv_cache_entry,
                attention_mask=attention_mask,
            )
        )
        return self.hook_resid_post(resid_pre + attn_out)


class AttentionOnly(LabeledTokens, WatchedHooks):
    """An attention-only HookedTransformer, built by `build_attention_only`.

    Attributes:
        model_config: its sizes.
    """

    weights_processed = False
    """Its weights are never folded: positions are added after the LayerNorm (TransformerLens folds none either)."""

    def __init__(
        self, config: AttentionOnlyConfig, vocab_size: int, n_ctx: int, device: str | torch.device = "cpu"
    ):
        cfg = HookedTransformerConfig(
            n_layers=config.n_layers,
            n_heads=config.n_heads,
            d_model=config.d_model,
            d_head=config.head_width,
            n_ctx=n_ctx,
            d_vocab=vocab_size,
            attn_only=True,
            normalization_type="LN",
            eps=1e-5,
            positional_embedding_type="shortformer",
            init_weights=False,
            default_prepend_bos=False,
            device=str(device_named(device)),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            super().__init__(cfg, move_to_device=False)
        self.model_config = config
        self.embed = LookupEmbed(self.cfg)
        self.pos_embed = RepeatedPosEmbed(self.cfg)
        for layer in range(config.n_layers):
            block = ShortformerBlock(self.cfg, layer)
            block.attn = FusedSoftmaxAttention(self.cfg, "global", layer)
            block.ln1 = FusedLayerNorm(self.cfg)
            self.blocks[layer] = block
        self.ln_final = FusedLayerNorm(self.cfg)
        self._labels: Sequence[str] | Callable[[], Sequence[str]] | None = None
        self.setup()

    @property
    def token_labels(self) -> Sequence[str] | None:
        """A label for each token of the vocabulary; None where there are none."""
        if callable(self._labels):
            self._labels = self._labels()
        return self._labels

    @token_labels.setter
    def token_labels(self, labels: Sequence[str] | Callable[[], Sequence[str]] | None) -> None:
        self._labels = labels

    def to(self, *args: Any, print_details: bool = True, **kwargs: Any) -> Self:
        """As PyTorch's (`print_details` has no effect: nothing is printed)."""
        return nn.Module.to(self, *args, **kwargs)

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        """Whatever moves or casts the weights goes through here: `cfg` says where and what they are."""
        super()._apply(*args, **kwargs)
        weight = self.embed.W_E
        self.cfg.device, self.cfg.dtype = str(weight.device), weight.dtype
        return self

    def observe(self, tokens: Int[Tensor, "batch pos"], **wanted: Any) -> Observation:
        """See `mechplateau.models.observation`."""
        return observe(self, tokens, **wanted)

    @property
    def n_parameters(self) -> int:
        """Number of parameters that can be trained."""
        return sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)


@torch.no_grad()
def build_attention_only(
    config: AttentionOnlyConfig,
    *,
    vocab_size: int,
    n_ctx: int,
    generator: torch.Generator | None = None,
    device: str | torch.device = "cpu",
    token_labels: Sequence[str] | Callable[[], Sequence[str]] | None = None,
) -> AttentionOnly:
    """A freshly initialized model: every weight N(0, (0.8/√d_model)²), biases 0, LayerNorms 1 and 0.

    Args:
        config: its sizes.
        vocab_size: number of tokens, in and out.
        n_ctx: longest sequence.
        generator: a CPU generator, so that a seed gives the same weights on every device; None: seed 0.
        device: where the model is put.
        token_labels: what `model.to_str_tokens` shows for each token, or a function that returns these labels.
    """
    model = AttentionOnly(config, vocab_size, n_ctx, device)
    model.token_labels = token_labels
    generator = generator if generator is not None else torch.Generator().manual_seed(0)
    std = 0.8 / math.sqrt(config.d_model)
    for name, parameter in sorted(model.named_parameters()):
        kind = name.rpartition(".")[2]
        if kind.startswith("W_"):
            parameter.normal_(0.0, std, generator=generator)
        elif kind.startswith("b_"):
            parameter.zero_()
    return model.to(device)


__all__ = ["AttentionOnly", "FusedSoftmaxAttention", "ShortformerBlock", "build_attention_only"]
