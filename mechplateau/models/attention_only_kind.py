"""The attention_only kind: a language model of attention layers alone (see `models.attention_only`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from mechplateau.models.attention_only_config import AttentionOnlyConfig
from mechplateau.models.kinds import ModelKind, register_model_kind
from mechplateau.models.records import locations


@register_model_kind
class AttentionOnlyKind(ModelKind[AttentionOnlyConfig]):
    """Every parameter is trained."""

    config_class: ClassVar = AttentionOnlyConfig
    patterns: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "embeddings": ("embed.W_E", "pos_embed.W_pos"),
        "attention": ("blocks.*.attn.*",),
        "QK_only": ("blocks.*.attn.[Wb]_[KQ]",),
        "OV_only": ("blocks.*.attn.[Wb]_[VO]",),
        "tokens": ("embed.W_E",),
        "positions": ("pos_embed.W_pos",),
        "ln1": ("blocks.*.ln1.*",),
        "ln_final": ("ln_final.*",),
        "unembedding": ("unembed.*",),
    }

    def build(
        self,
        config: AttentionOnlyConfig,
        task: Any,
        *,
        generator: torch.Generator | None = None,
        device: str | torch.device = "cpu",
    ) -> nn.Module:
        from mechplateau.models.attention_only import build_attention_only  # TransformerLens: seconds

        return build_attention_only(
            config,
            vocab_size=task.vocab_size,
            n_ctx=task.n_ctx,
            generator=generator,
            device=device,
            token_labels=lambda: task.token_labels,  # of a text, they cost reading it
        )

    def places(self, config: AttentionOnlyConfig) -> tuple[str, ...]:
        return tuple(place for place in locations(config.n_layers) if not place.endswith("resid_mid"))


__all__ = ["AttentionOnlyKind"]
