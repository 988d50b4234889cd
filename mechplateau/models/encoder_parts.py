"""Parts of the encoder (see `models.encoder`): norm, embedding, attention in both directions, MLP, block, read-out."""

from __future__ import annotations

from typing import Any

import mechplateau.models.lens  # isort: skip  # noqa: F401 (before TransformerLens: says what to install)

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from mechplateau.models.encoder_config import EncoderConfig
from mechplateau.models.watching import observed

EPS = 1e-12
MASK = 0
"""The token of a masked cell, BERT's padding token."""


class Norm(nn.Module):
    """LayerNorm in one call; explicit where `hook_scale` or `hook_normalized` is hooked."""

    def __init__(self, width: int):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.hook_scale, self.hook_normalized = HookPoint(), HookPoint()

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        if not observed(self.hook_scale, self.hook_normalized):
            return F.layer_norm(x, self.w.shape, self.w, self.b, EPS)
        x = x - x.mean(-1, keepdim=True)
        x = x / self.hook_scale((x.square().mean(-1, keepdim=True) + EPS).sqrt())
        return self.hook_normalized(x) * self.w + self.b


class _Weight(nn.Module):
    """A table under the name that TransformerLens gives it (`embed.W_E`, `pos_embed.W_pos`)."""

    def __init__(self, name: str, *shape: int):
        super().__init__()
        self.register_parameter(name, nn.Parameter(torch.zeros(shape)))


class _ValueEmbed(nn.Module):
    """Continuous inputs: a value's direction and offset, and the vector of a masked cell."""

    W_value: Tensor
    b_value: Tensor
    W_mask: Tensor

    def __init__(self, width: int):
        super().__init__()
        self.W_value, self.b_value, self.W_mask = (nn.Parameter(torch.zeros(width)) for _ in range(3))


class Embedding(nn.Module):
    """Token (or value) plus position, and with `norm = "post"` a norm of the sum."""

    values: Tensor
    embed: Any
    pos_embed: Any

    def __init__(self, config: EncoderConfig, values: Float[Tensor, " vocab"], n_ctx: int):
        super().__init__()
        self.config = config
        width = config.d_model
        tokens = config.inputs == "tokens"
        self.embed = _Weight("W_E", len(values), width) if tokens else _ValueEmbed(width)
        self.pos_embed = _Weight("W_pos", n_ctx, width)
        self.hook_embed, self.hook_pos_embed = HookPoint(), HookPoint()
        if config.norm == "post":
            self.ln = Norm(width)
        self.register_buffer("values", values, persistent=False)

    def forward(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        if self.config.inputs == "tokens":
            # The padding row gets no gradient, so that it stays what it is at the start: exactly zero.
            padding = MASK if self.config.mask_embedding == "frozen_zero" else None
            embedded = F.embedding(tokens, self.embed.W_E, padding_idx=padding)
        else:
            value = self.values[tokens][..., None] * self.embed.W_value + self.embed.b_value
            embedded = torch.where((tokens == MASK)[..., None], self.embed.W_mask, value)
        positions = self.pos_embed.W_pos[: tokens.shape[1]].expand(len(tokens), -1, -1)
        x = self.hook_embed(embedded) + self.hook_pos_embed(positions)
        return self.ln(x) if self.config.norm == "post" else x


class BidirectionalAttention(nn.Module):
    """Softmax attention of every cell to every cell, MASK included.

    Attributes:
        factors: multiplies the pattern after the softmax, `[batch, 1, query, key]`; None: left alone. Set by
            `Encoder.forward` where an intervention is on.
        kept: the last forward's pattern, where `keep` is on.
    """

    def __init__(self, config: EncoderConfig):
        super().__init__()
        heads, width, d_head = config.n_heads, config.d_model, config.head_width
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.zeros(heads, width, d_head)) for _ in range(3))
        self.b_Q, self.b_K, self.b_V = (nn.Parameter(torch.zeros(heads, d_head)) for _ in range(3))
        self.W_O, self.b_O = nn.Parameter(torch.zeros(heads, d_head, width)), nn.Parameter(torch.zeros(width))
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()
        self.hook_attn_scores, self.hook_pattern, self.hook_z = HookPoint(), HookPoint(), HookPoint()
        self.attn_scale = d_head**0.5
        self.keep = False
        self.kept: Tensor | None = None
        self.factors: Tensor | None = None

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        # One product for the three, and one copy of their weights, which keep TransformerLens's shapes. Joined by heads
        # and then turned: joining views that are turned already takes longer, forward and backward.
        weight = torch.cat([self.W_Q, self.W_K, self.W_V]).transpose(0, 1).flatten(1)
        bias = torch.cat([self.b_Q, self.b_K, self.b_V]).flatten()
        projected = F.linear(x, weight.T, bias).view(*x.shape[:2], 3, *self.b_Q.shape)
        q, k, v = projected.unbind(dim=2)
        q, k, v = self.hook_q(q), self.hook_k(k), self.hook_v(v)
        z = self.hook_z(self._attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2))
        return F.linear(z.flatten(2), self.W_O.flatten(0, 1).T, self.b_O)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_head"]:
        if not self.keep and self.factors is None and not observed(self.hook_attn_scores, self.hook_pattern):
            return F.scaled_dot_product_attention(q, k, v)
        pattern = self.hook_attn_scores(q @ k.mT / self.attn_scale).softmax(dim=-1)
        if self.factors is not None:
            pattern = pattern * self.factors
        pattern = self.hook_pattern(pattern)
        if self.keep:
            self.kept = pattern
        return pattern @ v


class GeluMLP(nn.Module):
    """W_out · gelu(W_in · x + b_in) + b_out, the exact GELU (erf)."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        width, hidden = config.d_model, config.mlp_width
        self.W_in, self.b_in = nn.Parameter(torch.zeros(width, hidden)), nn.Parameter(torch.zeros(hidden))
        self.W_out, self.b_out = nn.Parameter(torch.zeros(hidden, width)), nn.Parameter(torch.zeros(width))
        self.hook_pre, self.hook_post = HookPoint(), HookPoint()

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        hidden = self.hook_post(F.gelu(self.hook_pre(F.linear(x, self.W_in.T, self.b_in))))
        return F.linear(hidden, self.W_out.T, self.b_out)


class EncoderBlock(nn.Module):
    """One layer, norms after (`post`) or before (`pre`) attention and MLP."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.post = config.norm == "post"
        self.attn, self.mlp = BidirectionalAttention(config), GeluMLP(config)
        self.ln1, self.ln2 = Norm(config.d_model), Norm(config.d_model)
        self.hook_resid_pre, self.hook_attn_out, self.hook_resid_mid = HookPoint(), HookPoint(), HookPoint()
        self.hook_mlp_out, self.hook_resid_post = HookPoint(), HookPoint()
        if self.post:
            self.hook_normalized_resid_post = HookPoint()

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        # What has been added is not kept by a name: its memory is the next one's.
        x = self.hook_resid_pre(x)
        x = self.hook_resid_mid(x + self.hook_attn_out(self.attn(x if self.post else self.ln1(x))))
        if self.post:
            x = self.ln1(x)
        x = self.hook_resid_post(x + self.hook_mlp_out(self.mlp(x if self.post else self.ln2(x))))
        return self.hook_normalized_resid_post(self.ln2(x)) if self.post else x


class Readout(nn.Module):
    """ŷ = w · x + b, one number a cell."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.zeros(config.d_model)), nn.Parameter(torch.zeros(()))
        if config.norm == "pre":
            self.ln = Norm(config.d_model)
        self.hook_in = HookPoint()

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos"]:
        return self.hook_in(self.ln(x) if hasattr(self, "ln") else x) @ self.w + self.b
