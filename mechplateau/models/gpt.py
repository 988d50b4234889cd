"""The gpt kind: a causal transformer of tokens, TransformerLens's HookedTransformer (see `models.transformer`)."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from mechplateau.models.config import ModelConfig
from mechplateau.models.kinds import ModelKind, Slot, register_model_kind
from mechplateau.models.records import locations

_INPUTS = ("embed.W_E", "pos_embed.W_pos", "blocks.*.ln1.*")
_UNEMBEDDING_BIAS = "unembed.b_U"


_QK = ("W_Q", "W_K", "_W_K", "b_Q", "b_K", "_b_K")
_OV = ("W_V", "_W_V", "W_O", "b_V", "_b_V")


def hooked_components(names: Sequence[str], n_layers: int, n_heads: int) -> dict[str, tuple[Slot, ...]]:
    """Components of a HookedTransformer with these parameters.

    Embeddings, norms, attention as a whole, as QK and OV, by head (where there are several), and MLPs.
    """
    found: dict[str, tuple[Slot, ...]] = {}

    def add(label: str, *patterns: str) -> None:
        slots = tuple((n, None) for n in names if any(fnmatch.fnmatchcase(n, p) for p in patterns))
        if slots:
            found[label] = slots

    add("embed", "embed.*")
    add("pos_embed", "pos_embed.*")
    for layer in range(n_layers):
        block = f"blocks.{layer}."
        add(f"L{layer} ln1", f"{block}ln1*")
        add(f"L{layer} attention", f"{block}attn.*")
        add(f"L{layer} QK", *(f"{block}attn.{name}" for name in _QK))
        add(f"L{layer} OV", *(f"{block}attn.{name}" for name in (*_OV, "b_O")))
        for head in range(n_heads if n_heads > 1 else 0):
            for kind, parts in (("QK", _QK), ("OV", _OV)):
                slots = tuple((f"{block}attn.{n}", head) for n in parts if f"{block}attn.{n}" in names)
                found[f"L{layer}H{head} {kind}"] = slots
        add(f"L{layer} ln2", f"{block}ln2*")
        add(f"L{layer} MLP", f"{block}mlp.*")
    add("ln_final", "ln_final.*")
    add("unembed", "unembed.*")
    return found


@register_model_kind
class Gpt(ModelKind[ModelConfig]):
    """Its first four parts are the paper's (KQ: queries, keys, LN1 and what they read; KQOV: all of attention likewise;
    MLP: what comes after attention; embeddings). QK_only and inputs are the two halves of KQ: attention's weights, and
    tokens, positions and LN1. The others are single components."""

    config_class: ClassVar = ModelConfig
    patterns: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "KQ": ("blocks.*.attn.[Wb]_[KQ]", *_INPUTS),
        "KQOV": ("blocks.*.attn.*", *_INPUTS),
        "MLP": ("blocks.*.mlp.*", "blocks.*.ln2.*", "ln_final.*", "unembed.W_U"),
        "embeddings": ("embed.W_E", "pos_embed.W_pos", "unembed.W_U", "ln_final.*"),
        "QK_only": ("blocks.*.attn.[Wb]_[KQ]",),
        "inputs": _INPUTS,
        "attention": ("blocks.*.attn.*",),
        "mlp_weights": ("blocks.*.mlp.*",),
        "tokens": ("embed.W_E",),
        "positions": ("pos_embed.W_pos",),
        "ln1": ("blocks.*.ln1.*",),
        "ln2": ("blocks.*.ln2.*",),
        "ln_final": ("ln_final.*",),
        "unembedding": ("unembed.W_U",),
    }
    untrained: ClassVar[frozenset[str]] = frozenset({_UNEMBEDDING_BIAS})
    attention: ClassVar[bool] = True
    generates: ClassVar[bool] = True

    def build(
        self,
        config: ModelConfig,
        task: Any,
        *,
        generator: torch.Generator | None = None,
        device: str | torch.device = "cpu",
    ) -> nn.Module:
        from mechplateau.models.transformer import build_model  # TransformerLens: seconds

        return build_model(
            config,
            vocab_size=task.vocab_size,
            n_ctx=task.n_ctx,
            generator=generator,
            device=device,
            token_labels=task.token_labels,
        )

    def shapes(self, config: ModelConfig, task: Any) -> dict[str, tuple[int, ...]]:
        """Written out, so that a configuration is checked without TransformerLens."""
        d, h, w, m = config.d_model, config.n_heads, config.head_width, config.mlp_width
        shapes: dict[str, tuple[int, ...]] = {
            "embed.W_E": (task.vocab_size, d),
            "pos_embed.W_pos": (task.n_ctx, d),
            "ln_final.w": (d,),
            "ln_final.b": (d,),
            "unembed.W_U": (d, task.vocab_size),
            _UNEMBEDDING_BIAS: (task.vocab_size,),
        }
        block: dict[str, tuple[int, ...]] = {
            **{f"attn.W_{kind}": (h, d, w) for kind in "QKV"},
            **{f"attn.b_{kind}": (h, w) for kind in "QKV"},
            "attn.W_O": (h, w, d),
            "attn.b_O": (d,),
            "mlp.W_in": (d, m),
            "mlp.b_in": (m,),
            "mlp.W_out": (m, d),
            "mlp.b_out": (d,),
            **{f"{norm}.{kind}": (d,) for norm in ("ln1", "ln2") for kind in "wb"},
        }
        for layer in range(config.n_layers):
            shapes |= {f"blocks.{layer}.{name}": shape for name, shape in block.items()}
        return shapes

    def places(self, config: ModelConfig) -> tuple[str, ...]:
        return locations(config.n_layers)

    def components(self, config: ModelConfig, names: Sequence[str]) -> Mapping[str, tuple[Slot, ...]]:
        return hooked_components(names, config.n_layers, config.n_heads)


__all__ = ["Gpt", "hooked_components"]
