"""A BERT encoder with a scalar read-out, with TransformerLens's parameter and hook names.

    x = LN(E[token] + P[position]);  per layer  x' = LN₁(x + Attn(x)),  x ← LN₂(x' + MLP(x'));  ŷ = w · x + b

Softmax attention in both directions, exact GELU, no token types, no pooler, no dropout. `HookedTransformer` cannot
express this, and `HookedEncoder` brings token types, pooler and language-model heads. As in `HookedEncoder`, with
`norm = "post"` the hooks `hook_resid_mid` and `hook_resid_post` see the sums before LN₁ and LN₂, and what a layer hands
on is `hook_normalized_resid_post`. With `norm = "pre"` the norms come before attention and MLP, and a final one before
the read-out; there is none after the embedding.

*Fused unless observed*: with a hook on `hook_attn_scores` or `hook_pattern` the attention map is built and an edit of
it takes effect; otherwise attention runs fused. Both agree to 1e-6. The same holds for the hooks inside a norm.

Source: arXiv 2410.22244, section 2 and appendix A; Devlin et al. 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import mechplateau.models.lens  # isort: skip  # noqa: F401 (before TransformerLens: says what to install)

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformer_lens import ActivationCache, HookedRootModule, HookedTransformerConfig
from transformer_lens.hook_points import HookPoint

from mechplateau.errors import UserError
from mechplateau.models.encoder_config import EncoderConfig
from mechplateau.models.encoder_parts import EPS, MASK, Embedding, EncoderBlock, Readout
from mechplateau.models.hooks import WatchedPoint
from mechplateau.models.records import AttentionRecord, Observation
from mechplateau.models.watching import Watch, honors_hooks


class Encoder(HookedRootModule):
    """The encoder, built by `build_encoder`. Called with tokens `[batch, cell]`, it gives a number a cell.

    Attributes:
        model_config: sizes and kind.
        cfg: the same as TransformerLens's config, for its caches and tools.
    """

    def __init__(self, config: EncoderConfig, values: Float[Tensor, " vocab"], n_ctx: int):
        super().__init__()
        self.model_config = config
        self.cfg = HookedTransformerConfig(
            n_layers=config.n_layers,
            n_heads=config.n_heads,
            d_model=config.d_model,
            d_head=config.head_width,
            d_mlp=config.mlp_width,
            n_ctx=n_ctx,
            d_vocab=len(values),
            d_vocab_out=1,
            act_fn="gelu",
            eps=EPS,
            attention_dir="bidirectional",
            normalization_type="LN",
            init_weights=False,
            device="cpu",
        )
        self._scaled: tuple[Callable[[Tensor], Tensor], float, tuple[int, ...]] | None = None
        self.embed = Embedding(config, values, n_ctx)
        self.hook_full_embed = HookPoint()
        self.blocks = nn.ModuleList(EncoderBlock(config) for _ in range(config.n_layers))
        self.readout = Readout(config)
        self.setup()
        self.watch = Watch()
        for name in list(self.hook_dict):
            parent, _, leaf = name.rpartition(".")
            point = WatchedPoint(None, self.cfg, self.watch)
            point.name = name
            setattr(self.get_submodule(parent), leaf, point)
            self.hook_dict[name] = self.mod_dict[name] = point
        self.watch.points = list(self.hook_dict.values())

    @honors_hooks
    def forward(self, tokens: Int[Tensor, "batch cell"]) -> Float[Tensor, "batch cell"]:
        """Predictions, a number a cell.

        Raises:
            UserError: tokens that are no integers `[batch, cell]`, or more cells than the model has positions.
        """
        self.watch.look()
        self._require(tokens)
        self._set_factors(tokens)
        x = self.hook_full_embed(self.embed(tokens))
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.readout(x)
        return out

    def observe(
        self, tokens: Int[Tensor, "batch cell"], *, at: Iterable[str] = (), keep_patterns: bool = True
    ) -> Observation:
        """One forward that records what measurements need.

        Args:
            tokens: what the model sees.
            at: further places of hidden states: "final", what the read-out sees. What each layer hands on, "L0_out", …,
                is always kept.
            keep_patterns: also keep each layer's attention map, in its record.

        Returns:
            outputs, hidden states, and a record a layer.

        Raises:
            UserError: no such place, or tokens that `forward` does not take.
        """
        hidden: dict[str, Tensor] = {}

        def keep(place: str) -> Callable[..., None]:
            def hook(activation: Tensor, hook: HookPoint) -> None:
                hidden[place] = activation

            return hook

        places = dict.fromkeys([*at, *(f"L{layer}_out" for layer in range(len(self.blocks)))])
        blocks: Sequence[Any] = list(self.blocks)
        records = [AttentionRecord(keep_pattern=keep_patterns) for _ in blocks]
        try:
            for block in blocks:
                block.attn.keep = keep_patterns
            with self.hooks(
                fwd_hooks=[(place_hook(self.model_config, place), keep(place)) for place in places]
            ):
                outputs = self(tokens)
            for block, record in zip(blocks, records, strict=True):
                record.pattern = block.attn.kept
        finally:
            for block in blocks:
                block.attn.keep, block.attn.kept = False, None
        return Observation(outputs, hidden, records)

    def scale_on(
        self,
        entries: Callable[[Tensor], Bool[Tensor, "batch query key"]],
        c: float,
        layers: Iterable[int] | None = None,
    ) -> Callable[[], None]:
        """Multiply the pattern by `c`, after the softmax, where `entries` of the tokens say so.

        Args:
            entries: tokens → where, bool `[batch, query, key]`.
            c: the factor.
            layers: in these; None: in all.

        Returns:
            a function that takes the factor off again.

        Raises:
            RuntimeError: there is one on already.
        """
        if self._scaled is not None:
            raise RuntimeError("this encoder already has a factor on its pattern; remove that one first")
        self._scaled = (entries, c, tuple(range(len(self.blocks)) if layers is None else layers))

        def undo() -> None:
            self._scaled = None
            blocks: Sequence[Any] = list(self.blocks)
            for block in blocks:
                block.attn.factors = None

        return undo

    def _set_factors(self, tokens: Tensor) -> None:
        if self._scaled is None or self._scaled[1] == 1.0:
            return
        entries, c, layers = self._scaled
        factors = torch.where(entries(tokens), c, 1.0)[:, None]
        for layer in layers:
            block: Any = self.blocks[layer]
            block.attn.factors = factors

    def _require(self, tokens: Tensor) -> None:
        if tokens.dim() != 2 or tokens.is_floating_point() or tokens.shape[1] > self.cfg.n_ctx:
            raise UserError(
                f"tokens: expected integers [batch, cell] with at most {self.cfg.n_ctx} cells, got {tokens.dtype} "
                f"{list(tokens.shape)}"
            )

    def run_with_cache(self, *args: Any, return_cache_object: bool = True, **kwargs: Any) -> Any:
        """As TransformerLens's: predictions, and the cache of activations."""
        out, cache = super().run_with_cache(*args, **kwargs)
        return out, ActivationCache(cache, self, has_batch_dim=True) if return_cache_object else cache

    def _apply(self, *args: Any, **kwargs: Any) -> Encoder:
        """Whatever moves or casts the weights goes through here: `cfg` says where and what they are."""
        super()._apply(*args, **kwargs)
        self.cfg.device, self.cfg.dtype = str(self.readout.w.device), self.readout.w.dtype
        return self


def layer_output(config: EncoderConfig, layer: int) -> str:
    """The hook on what a layer hands on."""
    return f"blocks.{layer}.hook_{'normalized_' if config.norm == 'post' else ''}resid_post"


def place_hook(config: EncoderConfig, place: str) -> str:
    """The hook of a place: "final", or "L0_out", …

    Raises:
        UserError: no such place.
    """
    known = {f"L{layer}_out": layer_output(config, layer) for layer in range(config.n_layers)}
    known["final"] = "readout.hook_in"
    if place not in known:
        raise UserError(f"unknown place {place!r}; expected one of {', '.join(known)}")
    return known[place]


def build_encoder(
    config: EncoderConfig,
    *,
    values: Float[Tensor, " vocab"],
    n_ctx: int,
    generator: torch.Generator | None = None,
    device: str | torch.device = "cpu",
) -> Encoder:
    """A freshly initialized encoder.

    Every matrix and embedding is N(0, init_std²), biases 0, norms 1 and 0; a frozen MASK row is 0. The read-out is
    uniform on ±1/√d_model, its bias too, as torch's Linear is.

    Args:
        config: sizes and kind.
        values: the number of each token; that of MASK, token 0, is not used.
        n_ctx: most cells of a matrix.
        generator: a CPU generator, so that a seed gives the same weights on every device; None: seed 0.
        device: where the model is put.
    """
    model = Encoder(config, values, n_ctx)
    generator = generator if generator is not None else torch.Generator().manual_seed(0)
    bound = config.d_model**-0.5
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if name in ("readout.w", "readout.b"):
                parameter.uniform_(-bound, bound, generator=generator)
            elif name.rpartition(".")[2].startswith("W_"):
                parameter.normal_(0.0, config.init_std, generator=generator)
        if config.inputs == "tokens" and config.mask_embedding == "frozen_zero":
            model.embed.embed.W_E[MASK] = 0.0
    return model.to(device)


__all__ = ["Encoder", "build_encoder", "layer_output", "place_hook"]
