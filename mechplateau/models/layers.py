"""TransformerLens components that compute in one fused call unless a hook point inside them is hooked.

Each has the parameters and hook points of the component it replaces. With a hook on one of those points, the
original's explicit path runs and the hook's edit takes effect; both paths agree to 1e-6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mechplateau.models.lens  # isort: skip  # noqa: F401 (before TransformerLens: says what to install)

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.components import MLP, Embed, LayerNorm, PosEmbed, TransformerBlock

from mechplateau.models.eager import in_plain_eager
from mechplateau.models.gelu import gelu_layers, gelu_new
from mechplateau.models.tokens import require_length
from mechplateau.models.watching import Watch, honors_hooks, observed

if TYPE_CHECKING:
    from mechplateau.models.table import Rows


class FusedLayerNorm(LayerNorm):
    """LayerNorm in one call; explicit where `hook_scale` or `hook_normalized` is hooked."""

    watch: Watch | None = None

    @honors_hooks
    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        if observed(self.hook_scale, self.hook_normalized):
            return super().forward(x)
        return F.layer_norm(x, (self.length,), self.w, self.b, self.eps)


class LookupEmbed(Embed):
    """Token embedding by lookup, whose gradient is summed in a fixed order.

    Indexing, as the original does, adds gradients atomically on several CPU threads: not reproducible.
    """

    def forward(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        return F.embedding(tokens, self.W_E)


class RepeatedPosEmbed(PosEmbed):
    """Learned positions, copied once for each sequence, so that a hook may edit them in place."""

    def forward(
        self,
        tokens: Int[Tensor, "batch pos"],
        past_kv_pos_offset: int = 0,
        attention_mask: Int[Tensor, "batch offset_pos"] | None = None,
    ) -> Float[Tensor, "batch new_pos d_model"]:
        batch, length = tokens.shape
        end = past_kv_pos_offset + length
        if attention_mask is not None:
            # The mask says how long the sequence is: TransformerLens's `generate` gives all tokens at every step.
            end = attention_mask.shape[1]
            if not bool(attention_mask.all()):
                require_length(int(attention_mask.sum(dim=1).max()), self.cfg.n_ctx, self.cfg.n_ctx)
                return super().forward(tokens, past_kv_pos_offset, attention_mask)
        require_length(end, self.cfg.n_ctx, self.cfg.n_ctx)
        return self.W_pos[past_kv_pos_offset:end].repeat(batch, 1, 1)


class FusedGeluMLP(MLP):
    """The MLP with the tanh-approximated GELU (`gelu_new`) in one call, where `hook_pre` and `hook_post` carry no hook.

    Attributes:
        in_blocks: whether the last forward ran in blocks of rows, see `mechplateau.models.gelu`.
    """

    watch: Watch | None = None

    def select_activation_function(self) -> None:
        self.act_fn = gelu_new
        self.hook_mid = None
        self.ln = None
        self.in_blocks = False

    @honors_hooks
    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        weights = (self.W_in, self.b_in, self.W_out, self.b_out)
        self.in_blocks = (
            self.act_fn is gelu_new
            and not observed(self.hook_pre, self.hook_post)
            and in_plain_eager(x, *weights)
        )
        return gelu_layers(x, *weights) if self.in_blocks else super().forward(x)


class OnceNormedBlock(TransformerBlock):
    """A block that takes LayerNorm once for queries, keys and values, where they share their input.

    The original takes it three times over, so a hook on `ln1` fires three times there and once here.
    """

    watch: Watch | None = None

    @honors_hooks
    def forward(
        self,
        resid_pre,
        shortformer_pos_embed=None,
        past_kv_cache_entry=None,
        attention_mask=None,
        looked_up: Rows | None = None,
    ):
        """As TransformerLens's; `looked_up` replaces `ln1(resid_pre)`, which carries no hook then."""
        if self.cfg.use_attn_in or self.cfg.use_split_qkv_input or shortformer_pos_embed is not None:
            return super().forward(resid_pre, shortformer_pos_embed, past_kv_cache_entry, attention_mask)
        resid_pre = self.hook_resid_pre(resid_pre)
        normalized = self.ln1(resid_pre) if looked_up is None else looked_up
        attn_out = self.hook_attn_out(
            self.attn(
                query_input=normalized,
                key_input=normalized,
                value_input=normalized,
                past_kv_cache_entry=past_kv_cache_entry,
                attention_mask=attention_mask,
            )
        )
        resid_mid = self.hook_resid_mid(resid_pre + attn_out)
        mlp_in = self.hook_mlp_in(resid_mid.clone()) if self.cfg.use_hook_mlp_in else resid_mid
        return self.hook_resid_post(resid_mid + self.apply_mlp(self.ln2(mlp_in)))


def replace_components(block: TransformerBlock) -> None:
    """Swap a block's LayerNorms and MLP for the ones above (before weights are set)."""
    block.ln1 = FusedLayerNorm(block.cfg)
    block.ln2 = FusedLayerNorm(block.cfg)
    block.mlp = FusedGeluMLP(block.cfg)


__all__ = [
    "FusedGeluMLP",
    "FusedLayerNorm",
    "LookupEmbed",
    "OnceNormedBlock",
    "RepeatedPosEmbed",
    "replace_components",
]
