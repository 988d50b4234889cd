"""TransformerLens's own blocks and what is in them, in which hooks also fire if the part is compiled by itself."""

from __future__ import annotations

import mechplateau.models.lens  # isort: skip  # noqa: F401 (before TransformerLens: says what to install)

from torch import nn
from transformer_lens.components import (
    MLP,
    Attention,
    GatedMLP,
    LayerNorm,
    LayerNormPre,
    RMSNorm,
    RMSNormPre,
    TransformerBlock,
)

from mechplateau.models.watching import Watch, honors_hooks


class WatchedBlock(TransformerBlock):
    watch: Watch | None = None
    forward = honors_hooks(TransformerBlock.forward)


class WatchedAttention(Attention):
    watch: Watch | None = None
    forward = honors_hooks(Attention.forward)


class WatchedMLP(MLP):
    watch: Watch | None = None
    forward = honors_hooks(MLP.forward)


class WatchedGatedMLP(GatedMLP):
    watch: Watch | None = None
    forward = honors_hooks(GatedMLP.forward)


class WatchedLayerNorm(LayerNorm):
    watch: Watch | None = None
    forward = honors_hooks(LayerNorm.forward)


class WatchedLayerNormPre(LayerNormPre):
    watch: Watch | None = None
    forward = honors_hooks(LayerNormPre.forward)


class WatchedRMSNorm(RMSNorm):
    watch: Watch | None = None
    forward = honors_hooks(RMSNorm.forward)


class WatchedRMSNormPre(RMSNormPre):
    watch: Watch | None = None
    forward = honors_hooks(RMSNormPre.forward)


_WATCHED: dict[type[nn.Module], type[nn.Module]] = {
    TransformerBlock: WatchedBlock,
    Attention: WatchedAttention,
    MLP: WatchedMLP,
    GatedMLP: WatchedGatedMLP,
    LayerNorm: WatchedLayerNorm,
    LayerNormPre: WatchedLayerNormPre,
    RMSNorm: WatchedRMSNorm,
    RMSNormPre: WatchedRMSNormPre,
}


def watch_parts(model: nn.Module) -> None:
    """Make hooks fire in each part of these classes, compiled or not; other parts stay as they are."""
    for module in model.modules():
        if watched := _WATCHED.get(type(module)):
            module.__class__ = watched


__all__ = ["watch_parts"]
