"""The paper's model as a TransformerLens `HookedTransformer`.

Same parameter names, hook points and caches as any HookedTransformer. What differs: the attention component
(linear or softmax, see `attention`), the paper's initialization from a generator of its own, strict loading,
and the refusal of weight processing that would silently change what linear attention computes.

`cfg.attn_types` is a list of "linear" where attention is linear (and `use_local_attn` on, which makes TransformerLens
read it): a plain HookedTransformer with that cfg, whose attention could only be softmax, says "Invalid attention type:
linear". With softmax attention the cfg is a plain one.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import mechplateau.models.lens  # isort: skip  # noqa: F401 (before TransformerLens: says what to install)

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens import HookedTransformerConfig
from transformer_lens.components import LayerNormPre, TransformerBlock
from transformer_lens.utilities import warn_if_mps
from transformer_lens.weight_processing import ProcessWeights

from mechplateau.devices import device_named
from mechplateau.models import processing
from mechplateau.models.attention import LinearAttention, SoftmaxAttention
from mechplateau.models.config import ModelConfig
from mechplateau.models.generation import generate_on
from mechplateau.models.hooks import WatchedHooks
from mechplateau.models.labels import LabeledTokens
from mechplateau.models.layers import (
    FusedLayerNorm,
    LookupEmbed,
    OnceNormedBlock,
    RepeatedPosEmbed,
    replace_components,
)
from mechplateau.models.lens_generation import LensGeneration
from mechplateau.models.observation import observe
from mechplateau.models.records import Observation
from mechplateau.models.table import Rows, Table, table_for
from mechplateau.models.weights import check_fits, load_weights, parameters_of, plain_names

if TYPE_CHECKING:
    from mechplateau.models.bridge import CausalBridge

INIT_STD = 0.02

_RAW_ATTRIBUTION = (
    "attribution by cache.logit_attrs leaves the last LayerNorm's gain and bias out while weights are raw; call "
    "model.process_weights_() first, or use mechplateau.circuits.attribute_logits"
)
_BUFFER = re.compile(r"blocks\.\d+\.attn\.(mask|IGNORE)")


class HookedGPT(LabeledTokens, LensGeneration, WatchedHooks):
    """A HookedTransformer with linear or softmax attention, built by `build_model`.

    Attributes:
        model_config: sizes and kind.
    """

    def __init__(self, config: ModelConfig, vocab_size: int, n_ctx: int, device: str | torch.device = "cpu"):
        cfg = HookedTransformerConfig(
            n_layers=config.n_layers,
            n_heads=config.n_heads,
            d_model=config.d_model,
            d_head=config.head_width,
            d_mlp=config.mlp_width,
            n_ctx=n_ctx,
            d_vocab=vocab_size,
            act_fn="gelu_new",
            normalization_type="LN",
            eps=1e-5,
            positional_embedding_type="standard",
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
        attention = LinearAttention if config.attention == "linear" else SoftmaxAttention
        for layer in range(config.n_layers):
            block: TransformerBlock = OnceNormedBlock(self.cfg, layer)
            block.attn = attention(self.cfg, "global", layer)
            replace_components(block)
            self.blocks[layer] = block
        self.ln_final = FusedLayerNorm(self.cfg)
        self.unembed.b_U.requires_grad_(False)
        self._processed = False
        self._warned_of_raw_weights = False
        if config.attention == "linear":
            cfg.use_local_attn, cfg.attn_types, cfg.window_size = True, ["linear"] * config.n_layers, n_ctx
        self.setup()

    def forward(self, input, *arguments, **options):
        """TransformerLens's, with the first layer from its table where that pays and nothing before it is hooked.

        Only for a plain call on tokens `[batch, pos]`: text, padding, caches, losses, calls that start or stop at a
        layer and compiled models go TransformerLens's way. See `mechplateau.models.table`.
        """
        plain = not arguments and not options and not torch.compiler.is_compiling()
        table = self._table_for(input) if plain else None
        if table is None:
            return super().forward(input, *arguments, **options)
        self.check_hooks()
        rows = table.at(input)
        return self.logits_of(rows.residual(), looked_up=rows)

    def _table_for(self, tokens: Any) -> Table | None:
        if (
            not isinstance(tokens, Tensor)
            or tokens.dim() != 2
            or tokens.dtype not in (torch.int32, torch.int64)
            or tokens.device != self.embed.W_E.device
            or self.tokenizer is not None
            or self.cfg.output_logits_soft_cap > 0
        ):
            return None
        return table_for(self, tokens.shape[0], 0, tokens.shape[1])

    def logits_of(
        self,
        residual: Float[Tensor, "batch pos d_model"],
        cache: Sequence[Any] | None = None,
        looked_up: Rows | None = None,
    ) -> Float[Tensor, "batch pos vocab"]:
        """Logits from the residual stream before the first layer.

        Args:
            residual: that stream.
            cache: past keys and values, an entry a layer; None: none.
            looked_up: the same rows of the first layer's table, where it is used.
        """
        for layer, block in enumerate(self.blocks):
            options = {} if looked_up is None or layer else {"looked_up": looked_up}
            residual = block(residual, past_kv_cache_entry=cache and cache[layer], **options)
        return self.unembed(self.ln_final(residual))

    def load_and_process_state_dict(
        self,
        state_dict: dict[str, Tensor],
        fold_ln: bool = True,
        center_writing_weights: bool = True,
        center_unembed: bool = True,
        fold_value_biases: bool | None = None,
        refactor_factored_attn_matrices: bool = False,
    ) -> None:
        """Load weights by TransformerLens's names, strictly, and process them exactly.

        As TransformerLens's, except that names and shapes must fit, that every step is exact whatever the
        sizes, and that what is wrong for linear attention is refused.

        Args:
            state_dict: every parameter of the model; buffers may be left out.
            fold_ln: fold LayerNorms into the weights that read from them.
            center_writing_weights: center what writes to the residual stream.
            center_unembed: center the logits.
            fold_value_biases: fold b_V into b_O; None: with softmax attention only.
            refactor_factored_attn_matrices: make W_Q, W_K and W_V, W_O even; softmax attention only.

        Raises:
            CheckpointError: a tensor is missing, unknown or has another shape.
            UserError: a requested step is wrong for linear attention.
        """
        linear = self.model_config.attention == "linear"
        if fold_value_biases is None:
            fold_value_biases = not linear
        asked = {
            "fold_value_biases": fold_value_biases,
            "refactor_factored_attn_matrices": refactor_factored_attn_matrices,
        }
        self._refuse_steps(asked)
        weights = {name: t for name, t in plain_names(state_dict).items() if not _BUFFER.fullmatch(name)}
        check_fits(weights, parameters_of(self), "the state dict")
        n_layers = self.cfg.n_layers
        if fold_ln and self.cfg.normalization_type == "LN":
            processing.fold_layer_norms(weights, n_layers)
            self._drop_layer_norms()
        if center_writing_weights:
            processing.center_writing_weights(weights, n_layers)
        if center_unembed:
            processing.center_unembed(weights)
        if fold_value_biases:
            processing.fold_value_biases(weights, n_layers)
        if refactor_factored_attn_matrices:
            weights = ProcessWeights.refactor_factored_attn_matrices(weights, self.cfg)
        self._processed |= fold_ln or center_writing_weights or center_unembed or any(asked.values())
        load_weights(self, weights, "the state dict")

    def process_weights_(self, *steps: bool, **named_steps: bool) -> None:
        """`load_and_process_state_dict` on the model's own weights, in place."""
        weights = {name: tensor.clone() for name, tensor in parameters_of(self).items()}
        self.load_and_process_state_dict(weights, *steps, **named_steps)

    def _drop_layer_norms(self) -> None:
        """Put in LayerNorms without gain and bias, with the hook points of the ones before."""
        self.cfg.normalization_type = "LNPre"
        for parent, name in (
            (self, "ln_final"),
            *((block, ln) for block in self.blocks for ln in ("ln1", "ln2")),
        ):
            before, plain = getattr(parent, name), LayerNormPre(self.cfg)
            # The same points, so that hooks on them stay.
            plain.hook_scale, plain.hook_normalized = before.hook_scale, before.hook_normalized
            setattr(parent, name, plain)
        self.setup()

    def to(self, *args: Any, print_details: bool = True, **kwargs: Any) -> Self:
        """As PyTorch's, with any of device and dtype (`print_details` has no effect: nothing is printed).

        Raises:
            ConfigError: the device is not there.
        """
        if len(args) > 1 and isinstance(args[1], bool):  # TransformerLens's second argument
            args = (args[0], *args[2:])
        device, *_ = torch._C._nn._parse_to(*args, **kwargs)
        if device is not None and device.type != "meta":
            warn_if_mps(device_named(device))
        return torch.nn.Module.to(self, *args, **kwargs)

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        """Whatever moves or casts the weights goes through here: `cfg` says where and what they are."""
        super()._apply(*args, **kwargs)
        weight = self.embed.W_E
        self.cfg.device, self.cfg.dtype = str(weight.device), weight.dtype
        return self

    def tokens_to_residual_directions(self, tokens: Any) -> Tensor:
        """As TransformerLens's: columns of W_U. On raw weights, warns once (see `_RAW_ATTRIBUTION`)."""
        if not self._warned_of_raw_weights and self._final_norm_acts():
            self._warned_of_raw_weights = True
            warnings.warn(_RAW_ATTRIBUTION, UserWarning, stacklevel=3)
        return super().tokens_to_residual_directions(tokens)

    def _final_norm_acts(self) -> bool:
        gain, bias = getattr(self.ln_final, "w", None), getattr(self.ln_final, "b", None)
        return gain is not None and bias is not None and bool((gain != 1).any() | (bias != 0).any())

    def fold_value_biases(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        self._refuse_steps({"fold_value_biases": True})
        return super().fold_value_biases(state_dict)

    def refactor_factored_attn_matrices(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        self._refuse_steps({"refactor_factored_attn_matrices": True})
        return super().refactor_factored_attn_matrices(state_dict)

    def _refuse_steps(self, steps: Mapping[str, Any]) -> None:
        processing.refuse_steps(self.model_config.attention, steps)

    def observe(self, tokens: Tensor, **wanted: Any) -> Observation:
        """See `mechplateau.models.observation`."""
        return observe(self, tokens, **wanted)

    def generate_on(self, seen: Observation, prompt_length: int, n_outputs: int) -> Tensor:
        """See `mechplateau.models.generation`."""
        return generate_on(self, seen, prompt_length, n_outputs)

    def to_bridge(self) -> CausalBridge:
        """This model, its weights copied, as TransformerLens's TransformerBridge; see `mechplateau.models.bridge`."""
        from mechplateau.models.bridge import bridge_of

        norms = self.cfg.normalization_type == "LN"
        return bridge_of(self.model_config, parameters_of(self), processed=not norms)

    @property
    def weights_processed(self) -> bool:
        """Whether the weights were folded or centered, so that hidden states are not the trained ones."""
        return self._processed


def build_model(
    config: ModelConfig,
    *,
    vocab_size: int,
    n_ctx: int,
    generator: torch.Generator | None = None,
    device: str | torch.device = "cpu",
    token_labels: Sequence[str] | None = None,
) -> HookedGPT:
    """A freshly initialized model.

    Every weight of a linear layer or embedding is N(0, 0.02²), biases are 0, LayerNorms 1 and 0; the two
    projections that write to the residual stream (W_O, W_out) are N(0, (0.02 / √(2 · n_layers))²). All
    weights are multiplied by `config.init_scale`.

    Args:
        config: sizes and kind.
        vocab_size: number of tokens, in and out.
        n_ctx: longest sequence.
        generator: a CPU generator, so that a seed gives the same weights on every device; None: seed 0.
        device: where the model is put.
        token_labels: what `model.to_str_tokens` shows for each token (a task's `token_labels`).

    Source: arXiv 2506.13688, appendix A.
    """
    model = HookedGPT(config, vocab_size, n_ctx, device)
    model.token_labels = token_labels
    generator = generator if generator is not None else torch.Generator().manual_seed(0)
    residual_std = INIT_STD / math.sqrt(2 * config.n_layers)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            kind = name.rpartition(".")[2]
            if kind.startswith("W_"):
                std = residual_std if kind in ("W_O", "W_out") else INIT_STD
                parameter.normal_(0.0, std * config.init_scale, generator=generator)
            elif kind.startswith("b_"):
                parameter.zero_()
    # The layer norms' w and b hold 1 and 0 from their construction.
    return model.to(device)


__all__ = ["HookedGPT", "build_model", "load_weights", "parameters_of"]
