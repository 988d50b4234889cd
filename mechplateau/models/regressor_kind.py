"""The regressor kind: a transformer of real-valued tokens (see `models.regressor`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from mechplateau.models.kinds import ModelKind, register_model_kind
from mechplateau.models.records import locations
from mechplateau.models.regressor_config import RegressorConfig

_MOST_LAYERS = 1000


@register_model_kind
class RegressorKind(ModelKind[RegressorConfig]):
    """Its initial weights are those that torch draws with the run's seed, in the order of the authors' code: the run
    of seed s starts from the weights of their model s."""

    config_class: ClassVar = RegressorConfig
    patterns: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "embeddings": ("embed.W_E", "pos_embed.W_pos"),
        "attention": ("blocks.*.attn.W_*",),
        "QK_only": ("blocks.*.attn.W_[KQ]",),
        "OV_only": ("blocks.*.attn.W_[VO]",),
        "mlp_weights": ("blocks.*.mlp.*",),
        "tokens": ("embed.W_E",),
        "positions": ("pos_embed.W_pos",),
        "ln1": ("blocks.*.ln1.*",),
        "ln2": ("blocks.*.ln2.*",),
        "ln_final": ("ln_final.*",),
        "unembedding": ("unembed.*",),
    }
    # Biases that the paper's model does not have: zero, frozen, in as many layers as a model may have.
    untrained: ClassVar[frozenset[str]] = frozenset(
        f"blocks.{layer}.attn.b_{kind}" for layer in range(_MOST_LAYERS) for kind in "QKVO"
    )

    def build(
        self,
        config: RegressorConfig,
        task: Any,
        *,
        generator: torch.Generator | None = None,
        device: str | torch.device = "cpu",
    ) -> nn.Module:
        from mechplateau.models.regressor import build_regressor  # TransformerLens: seconds

        return build_regressor(
            config, d_token=task.d_token, n_pairs=task.n_pairs, generator=generator, device=device
        )

    def initial_generator(self, seed: int) -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    def places(self, config: RegressorConfig) -> tuple[str, ...]:
        return locations(config.n_layers)


__all__ = ["RegressorKind"]
