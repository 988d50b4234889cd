"""Our models as a TransformerLens `TransformerBridge`, on TransformerLens 3.9 and 4.

TransformerLens 4 has no HookedTransformer any more. Its bridge wraps a plain module and gives it hook points; this
wraps TransformerLens's own small transformer ("native") with our weights, and puts in an attention that does its own
arithmetic, so that hooks on scores and pattern act, and linear attention stays linear.

Names and shapes of weights and hook points are those of a HookedTransformer (`blocks.0.attn.hook_pattern`, `W_Q`
`[head, d_model, d_head]`). What the bridge does not carry: fused attention, measurements, our generation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.generalized_components import AttentionBridge, LinearBridge
from transformer_lens.model_bridge.sources.native.model import NativeModel
from transformer_lens.model_bridge.supported_architectures.native import NativeArchitectureAdapter

from mechplateau.errors import CheckpointError
from mechplateau.models.config import ModelConfig
from mechplateau.models.processing import refuse_steps
from mechplateau.models.weights import check_fits


class CausalAttentionBridge(AttentionBridge):
    """Causal attention, linear or softmax, whose scores and pattern can be edited."""

    supports_attn_result = True

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Attention's output `[batch, pos, d_model]` and its pattern `[batch, head, query, key]`."""
        config, mask = self.config, kwargs.get("attention_mask")
        stream = self.hook_in(kwargs["hidden_states"] if "hidden_states" in kwargs else args[0])
        q, k, v, batch, positions, width = self._reshape_qkv_to_heads(
            self.q(stream), self.k(stream), self.v(stream), config.n_heads
        )
        allowed = torch.ones(positions, positions, dtype=torch.bool, device=q.device).tril()
        if mask is not None:
            allowed = allowed & mask.bool()[:, None, None, :]
        forbidden = 0.0 if config.linear_attention else -math.inf
        scores = (q @ k.transpose(-2, -1) / math.sqrt(width)).masked_fill(~allowed, forbidden)
        scores = self.hook_attn_scores(scores).masked_fill(~allowed, forbidden)
        pattern = scores if config.linear_attention else scores.softmax(-1).masked_fill(~allowed, 0.0)
        pattern = self.hook_pattern(pattern)
        z = self._reshape_attn_output(pattern @ v, batch, positions, config.n_heads, width)
        if config.use_attn_result:
            z = self.o.hook_in(z).view(batch, positions, config.n_heads, width)
            return self.hook_out(self._compute_per_head_result(z, config.n_heads, width)), pattern
        return self.hook_out(self.o(z)), pattern


class CausalAdapter(NativeArchitectureAdapter):
    """TransformerLens's adapter of its own transformer, with the attention above."""

    def __init__(self, cfg: TransformerBridgeConfig):
        super().__init__(cfg)
        parts = {name: LinearBridge(name=name) for name in ("q", "k", "v", "o")}
        blocks = self.component_mapping["blocks"]
        blocks.submodules["attn"] = CausalAttentionBridge(name="attn", config=self.cfg, submodules=parts)


class CausalBridge(TransformerBridge):
    """A TransformerBridge that refuses the processing of weights which is wrong for linear attention."""

    def enable_compatibility_mode(
        self,
        disable_warnings: bool = False,
        no_processing: bool = False,
        fold_ln: bool = True,
        center_writing_weights: bool = True,
        center_unembed: bool = True,
        fold_value_biases: bool | None = None,
        refactor_factored_attn_matrices: bool = False,
        **options: Any,
    ) -> None:
        """As TransformerLens's. `fold_value_biases`: None folds them with softmax attention only.

        Raises:
            UserError: a requested step is wrong for linear attention.
        """
        super().enable_compatibility_mode(
            disable_warnings,
            no_processing,
            fold_ln,
            center_writing_weights,
            center_unembed,
            **self._checked(fold_value_biases, refactor_factored_attn_matrices),
            **options,
        )

    def process_weights(
        self,
        verbose: bool = False,
        fold_ln: bool = True,
        center_writing_weights: bool = True,
        center_unembed: bool = True,
        fold_value_biases: bool | None = None,
        refactor_factored_attn_matrices: bool = False,
        **options: Any,
    ) -> None:
        """As TransformerLens's; `fold_value_biases` as in `enable_compatibility_mode`.

        Raises:
            UserError: a requested step is wrong for linear attention.
        """
        super().process_weights(
            verbose,
            fold_ln,
            center_writing_weights,
            center_unembed,
            **self._checked(fold_value_biases, refactor_factored_attn_matrices),
            **options,
        )

    def _checked(self, fold: bool | None, refactor: bool) -> dict[str, bool]:
        linear = self.cfg.linear_attention
        steps = {
            "fold_value_biases": not linear if fold is None else fold,
            "refactor_factored_attn_matrices": refactor,
        }
        refuse_steps("linear" if linear else "softmax", steps)
        return steps


def bridge_of(config: ModelConfig, weights: Mapping[str, Tensor], *, processed: bool = False) -> CausalBridge:
    """A bridge that computes what our model with these weights computes.

    Args:
        config: sizes and kind of the model.
        weights: its parameters by TransformerLens's names, as `parameters_of` gives them and checkpoints hold them;
            copied.
        processed: whether LayerNorms have no gain and bias any more (after `process_weights_`).

    Raises:
        CheckpointError: a tensor is missing, unknown or has another shape.
    """
    if missing := {"embed.W_E", "pos_embed.W_pos"} - set(weights):
        raise CheckpointError(f"the given weights: missing {', '.join(sorted(missing))}")
    embedding, positions = weights["embed.W_E"], weights["pos_embed.W_pos"]
    cfg = TransformerBridgeConfig(
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        d_model=config.d_model,
        d_head=config.head_width,
        d_mlp=config.mlp_width,
        n_ctx=len(positions),
        d_vocab=len(embedding),
        d_vocab_out=len(embedding),
        act_fn="gelu_new",
        normalization_type="LNPre" if processed else "LN",
        eps=1e-5,
        positional_embedding_type="standard",
        default_prepend_bos=False,
        architecture="TransformerLensNative",
        dtype=embedding.dtype,
        device=str(embedding.device),
    )
    cfg.linear_attention = config.attention == "linear"
    model = NativeModel(cfg)
    model.head = nn.Linear(config.d_model, len(embedding))
    model.to(device=embedding.device, dtype=embedding.dtype)
    with torch.no_grad():
        views = _by_our_names(model, config.n_heads)
        check_fits(weights, views, "the given weights")
        for name, view in views.items():
            view.copy_(weights[name])
    return CausalBridge(model.eval(), CausalAdapter(cfg), None)


def _by_our_names(model: NativeModel, n_heads: int) -> dict[str, Tensor]:
    """The parameters as views with a HookedTransformer's names and shapes; the native matrices are `[out, in]`."""
    named = {
        "embed.W_E": model.tok_embed.weight,
        "pos_embed.W_pos": model.pos.weight,
        "unembed.W_U": model.head.weight.T,
        "unembed.b_U": model.head.bias,
    }
    norms = {"ln_final": model.ln_out}
    for layer, block in enumerate(model.layers):
        prefix = f"blocks.{layer}"
        norms |= {f"{prefix}.ln1": block.ln1, f"{prefix}.ln2": block.ln2}
        for kind, matrix in (("in", block.mlp.fc_in), ("out", block.mlp.fc_out)):
            named |= {f"{prefix}.mlp.W_{kind}": matrix.weight.T, f"{prefix}.mlp.b_{kind}": matrix.bias}
        for kind, matrix in (("Q", block.attn.q), ("K", block.attn.k), ("V", block.attn.v)):
            by_head = matrix.weight.unflatten(0, (n_heads, -1)).transpose(1, 2)
            named |= {f"{prefix}.attn.W_{kind}": by_head}
            named |= {f"{prefix}.attn.b_{kind}": matrix.bias.unflatten(0, (n_heads, -1))}
        named |= {f"{prefix}.attn.W_O": block.attn.o.weight.T.unflatten(0, (n_heads, -1))}
        named |= {f"{prefix}.attn.b_O": block.attn.o.bias}
    for name, norm in norms.items():
        named |= {f"{name}.{leaf[0]}": parameter for leaf, parameter in norm.named_parameters()}
    return named
