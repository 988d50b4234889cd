"""The model of in-context regression: a pre-LayerNorm transformer that reads real-valued tokens.

A context is `[2K, D + 1]`: token 2k − 2 is (0, x_k) and token 2k − 1 is (y_k, 0 … 0), with k counted from 1. The
prediction of y_k is component 0 of the output at x_k's token. Parameters, hook points and caches have
TransformerLens's names. What differs from a usual HookedTransformer:

- Tokens are vectors, and the embedding is `token @ W_E`.
- Queries, keys, values and attention outputs have no bias: TransformerLens's are zero and frozen, and are not counted.
- The residual stream has a gain: a block gives `gain · x + attention + MLP`. The authors' code adds x twice, so that
  their gain is 2. Inside the block, the MLP still reads `x + attention`. No weights of a model with gain 1 do the same.

Without hooks inside, only what the predictions need is computed: not the last token, and of the last layer only
the rows of the x tokens. Both ways agree to 3e-7.

Source: arXiv 2402.02364, appendix F.2, and the authors' code.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, Self

import mechplateau.models.lens  # isort: skip  # noqa: F401 (before TransformerLens: says what to install)

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens import HookedTransformerConfig

from mechplateau.devices import device_named
from mechplateau.errors import UserError
from mechplateau.models.attention import SoftmaxAttention
from mechplateau.models.hooks import WatchedHooks
from mechplateau.models.layers import FusedLayerNorm, OnceNormedBlock
from mechplateau.models.regressor_block import BlockWeights, Rows, block_outputs
from mechplateau.models.regressor_config import RegressorConfig
from mechplateau.models.watching import observed


class GainedBlock(OnceNormedBlock):
    """A block that adds its input `residual_gain` times instead of once."""

    def __init__(self, cfg: HookedTransformerConfig, layer: int, residual_gain: int):
        super().__init__(cfg, layer)
        self.residual_gain = residual_gain
        self.attn = SoftmaxAttention(cfg, "global", layer)
        self.ln1, self.ln2 = FusedLayerNorm(cfg), FusedLayerNorm(cfg)

    def forward(self, resid_pre, *arguments, **options):
        """As TransformerLens's; its `hook_resid_post` sees the stream as the next block reads it."""
        resid_pre = self.hook_resid_pre(resid_pre)
        normalized = self.ln1(resid_pre)
        attn_out = self.hook_attn_out(
            self.attn(query_input=normalized, key_input=normalized, value_input=normalized)
        )
        resid_mid = self.hook_resid_mid(resid_pre + attn_out)
        mlp_in = self.hook_mlp_in(resid_mid.clone()) if self.cfg.use_hook_mlp_in else resid_mid
        resid_post = resid_mid + self.apply_mlp(self.ln2(mlp_in))
        if self.residual_gain != 1:
            resid_post = resid_post + (self.residual_gain - 1) * resid_pre
        return self.hook_resid_post(resid_post)


class Regressor(WatchedHooks):
    """Reads contexts `[batch, 2K, D + 1]` and predicts each y from the pairs before it; built by `build_regressor`.

    Attributes:
        model_config: sizes and residual gain.
    """

    def __init__(
        self, config: RegressorConfig, d_token: int, n_pairs: int, device: str | torch.device = "cpu"
    ):
        cfg = HookedTransformerConfig(
            n_layers=config.n_layers,
            n_heads=config.n_heads,
            d_model=config.d_model,
            d_head=config.head_width,
            d_mlp=config.mlp_width,
            n_ctx=2 * n_pairs,
            d_vocab=d_token,
            d_vocab_out=d_token,
            act_fn="relu",
            normalization_type="LN",
            eps=1e-5,
            init_weights=False,
            default_prepend_bos=False,
            device=str(device_named(device)),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            super().__init__(cfg, move_to_device=False)
        self.model_config = config
        for layer in range(config.n_layers):
            self.blocks[layer] = GainedBlock(self.cfg, layer, config.residual_gain)
        self.ln_final = FusedLayerNorm(self.cfg)
        for block in self.blocks:
            for name in ("b_Q", "b_K", "b_V", "b_O"):
                getattr(block.attn, name).requires_grad_(False)
        self.setup()
        self._modules_within = list(self.modules())

    def forward(self, inputs: Float[Tensor, "batch pos d_token"]) -> Float[Tensor, "batch pairs"]:
        """Predictions ŷ_k of all contexts.

        Args:
            inputs: contexts of up to K pairs; the last y, which no prediction depends on, may be missing.

        Raises:
            UserError: these are no contexts of this model.
        """
        self._check(inputs)
        self.check_hooks()
        if self._watched():
            return self.outputs(inputs)[:, ::2, 0]
        return self._needed_only(inputs)

    def outputs(self, inputs: Float[Tensor, "batch pos d_token"]) -> Float[Tensor, "batch pos d_token"]:
        """All outputs of all tokens, through every hook point."""
        embedded = self.hook_embed(inputs @ self.embed.W_E)
        positions = self.hook_pos_embed(self.pos_embed.W_pos[: inputs.shape[1]].repeat(len(inputs), 1, 1))
        residual = embedded + positions
        for block in self.blocks:
            residual = block(residual)
        return self.unembed(self.ln_final(residual))

    def _needed_only(self, inputs: Tensor) -> Tensor:
        """The same predictions from no more than they need."""
        if inputs.shape[1] % 2:
            inputs = F.pad(
                inputs, (0, 0, 0, 1)
            )  # a last y that nothing reads: rows of even length are much faster
        residual = inputs @ self.embed.W_E + self.pos_embed.W_pos[: inputs.shape[1]]
        for block in self.blocks[:-1]:
            residual = _stepped(block, residual, every=1)
        residual = _stepped(self.blocks[-1], residual, every=2)
        read = self.unembed
        return _normed(self.ln_final, residual) @ read.W_U[:, 0] + read.b_U[0]

    def _watched(self) -> bool:
        return (
            self.watch.on
            or observed(*self._modules_within)
            or any(block.attn.record is not None or block.attn.scale_set is not None for block in self.blocks)
            or self.cfg.use_attn_result
            or self.cfg.use_attn_in
            or self.cfg.use_split_qkv_input
        )

    def _check(self, inputs: Any) -> None:
        longest, width = self.cfg.n_ctx, self.cfg.d_vocab
        if (
            not isinstance(inputs, Tensor)
            or inputs.dim() != 3
            or not inputs.is_floating_point()
            or not 1 <= inputs.shape[1] <= longest
            or inputs.shape[2] != width
        ):
            came = f"{inputs.dtype} {list(inputs.shape)}" if isinstance(inputs, Tensor) else repr(inputs)
            raise UserError(
                f"inputs: expected real numbers [batch, 1 to {longest}, {width}] (a context's tokens), got {came}"
            )

    def to(self, *args: Any, print_details: bool = True, **kwargs: Any) -> Self:
        """As PyTorch's (`print_details` has no effect: nothing is printed)."""
        return nn.Module.to(self, *args, **kwargs)

    @property
    def n_parameters(self) -> int:
        """Number of parameters that can be trained."""
        return sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)


def _normed(norm: Any, x: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), norm.w, norm.b, norm.eps)


def _stepped(block: Any, x: Tensor, every: int) -> Tensor:
    """The block's output at every `every`-th token, from the first on."""
    attention, mlp, ln1, ln2 = block.attn, block.mlp, block.ln1, block.ln2
    weights = BlockWeights(
        w_ln1=ln1.w, b_ln1=ln1.b, w_q=attention.W_Q, w_k=attention.W_K, w_v=attention.W_V, w_o=attention.W_O,
        w_ln2=ln2.w, b_ln2=ln2.b, w_in=mlp.W_in, b_in=mlp.b_in, w_out=mlp.W_out, b_out=mlp.b_out,
    )  # fmt: skip
    return block_outputs(x, weights, Rows(every, block.residual_gain, ln1.eps))


@torch.no_grad()
def build_regressor(
    config: RegressorConfig,
    *,
    d_token: int,
    n_pairs: int,
    generator: torch.Generator | None = None,
    device: str | torch.device = "cpu",
) -> Regressor:
    """A freshly initialized model.

    Every weight and bias of a linear layer is uniform on ±1/√(its inputs), as torch's `nn.Linear` draws it; LayerNorms
    are 1 and 0. A generator that was seeded with s gives the weights of the authors' model s, to the bit: the numbers
    are drawn in the order of their layers, and the fused matrix of queries, keys and values has its rows grouped by
    head.

    Args:
        config: sizes and residual gain.
        d_token: numbers a token, D + 1.
        n_pairs: pairs a context, K.
        generator: a CPU generator, so that a seed gives the same weights on every device; None: seed 0.
        device: where the model is put.
    """
    model = Regressor(config, d_token, n_pairs, device)
    generator = generator if generator is not None else torch.Generator().manual_seed(0)
    d_model, n_heads, d_head = config.d_model, config.n_heads, config.head_width

    def drawn(fan_in: int, fan_out: int) -> Tensor:
        weight = torch.empty(fan_out, fan_in)
        return nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)

    def bias(fan_in: int, fan_out: int) -> Tensor:
        bound = 1 / math.sqrt(fan_in)
        return torch.empty(fan_out).uniform_(-bound, bound, generator=generator)

    model.embed.W_E.copy_(drawn(d_token, d_model).T)
    model.pos_embed.W_pos.copy_(drawn(2 * n_pairs, d_model).T)
    for block in model.blocks:
        attention, mlp = block.attn, block.mlp
        fused = drawn(d_model, 3 * n_heads * d_head).view(n_heads, 3, d_head, d_model)
        for part, name in enumerate(("W_Q", "W_K", "W_V")):
            getattr(attention, name).copy_(fused[:, part].transpose(1, 2))
        attention.W_O.copy_(drawn(n_heads * d_head, d_model).T.view(n_heads, d_head, d_model))
        for name in ("b_Q", "b_K", "b_V", "b_O"):
            getattr(attention, name).zero_()
        for weight, shift, fan_in, fan_out in (
            (mlp.W_in, mlp.b_in, d_model, config.mlp_width),
            (mlp.W_out, mlp.b_out, config.mlp_width, d_model),
        ):
            weight.copy_(drawn(fan_in, fan_out).T)
            shift.copy_(bias(fan_in, fan_out))
    model.unembed.W_U.copy_(drawn(d_model, d_token).T)
    model.unembed.b_U.copy_(bias(d_model, d_token))
    return model.to(device)


__all__ = ["GainedBlock", "Regressor", "build_regressor"]
