"""The encoder kind: a BERT that reads cells and gives a number for each (see `models.encoder`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from mechplateau.models.encoder_config import EncoderConfig
from mechplateau.models.kinds import ModelKind, register_model_kind


@register_model_kind
class EncoderKind(ModelKind[EncoderConfig]):
    """Its parts are the components of arXiv 2410.22244: attention goes with the norm after it, and the MLP too."""

    config_class: ClassVar = EncoderConfig
    patterns: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "tokens": ("embed.embed.*",),
        "positions": ("embed.pos_embed.W_pos",),
        "embedding_ln": ("embed.ln.*",),
        "attention": ("blocks.*.attn.*", "blocks.*.ln1.*"),
        "mlp": ("blocks.*.mlp.*", "blocks.*.ln2.*"),
        "readout": ("readout.*",),
    }
    interventions: ClassVar[frozenset[str]] = frozenset({"attention_scale"})

    def build(
        self,
        config: EncoderConfig,
        task: Any,
        *,
        generator: torch.Generator | None = None,
        device: str | torch.device = "cpu",
    ) -> nn.Module:
        from mechplateau.models.encoder import build_encoder  # TransformerLens: seconds

        return build_encoder(
            config, values=task.token_values, n_ctx=task.n_cells, generator=generator, device=device
        )

    def shapes(self, config: EncoderConfig, task: Any) -> dict[str, tuple[int, ...]]:
        """Written out, so that a configuration is checked without TransformerLens."""
        d, h, w, m = config.d_model, config.n_heads, config.head_width, config.mlp_width

        def norm(name: str) -> dict[str, tuple[int, ...]]:
            return {f"{name}.w": (d,), f"{name}.b": (d,)}

        shapes: dict[str, tuple[int, ...]] = {"embed.pos_embed.W_pos": (task.n_cells, d)}
        if config.inputs == "tokens":
            shapes["embed.embed.W_E"] = (task.vocab_size, d)
        else:
            shapes |= {f"embed.embed.{name}": (d,) for name in ("W_value", "b_value", "W_mask")}
        shapes |= norm("embed.ln") if config.norm == "post" else norm("readout.ln")
        shapes |= {"readout.w": (d,), "readout.b": ()}
        block: dict[str, tuple[int, ...]] = {
            **{f"attn.W_{letter}": (h, d, w) for letter in "QKV"},
            **{f"attn.b_{letter}": (h, w) for letter in "QKV"},
            "attn.W_O": (h, w, d),
            "attn.b_O": (d,),
            "mlp.W_in": (d, m),
            "mlp.b_in": (m,),
            "mlp.W_out": (m, d),
            "mlp.b_out": (d,),
            **norm("ln1"),
            **norm("ln2"),
        }
        for layer in range(config.n_layers):
            shapes |= {f"blocks.{layer}.{name}": shape for name, shape in block.items()}
        return shapes

    def places(self, config: EncoderConfig) -> tuple[str, ...]:
        """What the read-out sees, and what each layer hands on."""
        return ("final", *(f"L{layer}_out" for layer in range(config.n_layers)))


__all__ = ["EncoderKind"]
