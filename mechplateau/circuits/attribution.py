"""Direct attribution: how much each component adds to the logit of the right token.

The residual stream is a sum: token embedding, position, each head, each layer's attention bias b_O, each MLP. The logit
of token y at a position is linear in what follows the final LayerNorm, so with the norm's scale σ held at its actual
value ("frozen"),

    logit_y = Σ_c ((c − mean(c)) / σ · gain) · W_U[:, y]  +  bias · W_U[:, y] + b_U[y]

exactly; the last two terms are the component "bias". (RMS norm: without the centering; no norm: σ = gain = 1.)

Cost: one forward with caches, and one product with W_U a component. It sees direct effects only, and a frozen σ hides
that a component also changes σ; for total effects, patch or ablate.

Source: Elhage et al. 2021; nostalgebraist 2020 (logit lens).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechplateau.circuits.patching import activations
from mechplateau.circuits.scoring import checked_rows, inputs_of
from mechplateau.errors import UserError
from mechplateau.objectives import TokenBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformer_lens import HookedTransformer

_NORMS = ("LN", "LNPre", "RMS", "RMSPre", None)


@dataclass(frozen=True)
class Attribution:
    """What each component adds.

    Attributes:
        components: labels: embed, pos_embed, L0H0, …, L0 b_O, L0 MLP, bias.
        rows: the positions.
        values: `[component, sequence, row]`, logits (float32).
        total: `[sequence, row]`, the model's own logit (or logit difference); `values` sum to it.
    """

    components: tuple[str, ...]
    rows: tuple[int, ...]
    values: np.ndarray
    total: np.ndarray

    @property
    def table(self) -> pd.DataFrame:
        """Means over sequences: component, position, contribution."""
        means = self.values.mean(axis=1)
        return pd.DataFrame(
            {
                "component": np.repeat(self.components, len(self.rows)),
                "position": np.tile(self.rows, len(self.components)),
                "contribution": means.ravel(),
            }
        )


@torch.no_grad()
def attribute_logits(
    model: HookedTransformer,
    tokens: Int[Tensor, "batch seq"],
    *,
    rows: Sequence[int] | None = None,
    of: str = "logit",
    tolerance: float = 1e-4,
) -> Attribution:
    """Split the right token's logit into what each component adds.

    Args:
        model: any HookedTransformer whose residual stream is the sum of its components.
        tokens: whole sequences.
        rows: positions (a task's `output_rows`); None: all.
        of: "logit" of the right token, or its "difference" to the mean logit of all other tokens.
        tolerance: largest difference between the sum and the model's own logits, relative to their largest, that
            passes as rounding.

    Raises:
        UserError: a norm that is not known here, or components that do not sum to the model's logits (an architecture
            with other terms).
    """
    if model.cfg.normalization_type not in _NORMS:
        raise UserError(
            f"attribution knows the norms {_NORMS}; this model has {model.cfg.normalization_type!r}"
        )
    if getattr(model.cfg, "output_logits_soft_cap", 0) > 0:
        raise UserError(
            "attribution needs logits that are a sum; this model caps its own (output_logits_soft_cap)"
        )
    if of not in ("logit", "difference"):
        raise UserError(f'of: expected "logit" or "difference", got {of!r}')
    inputs = inputs_of(model, tokens)
    chosen = checked_rows(rows, inputs.shape[1])
    index = torch.tensor(chosen, device=inputs.device)
    right = TokenBatch(tokens.to(inputs.device)).targets[:, index].long()
    stream, logits = _components(model, inputs, index)
    scale = _scale(model, torch.stack(list(stream.values())).sum(0))
    directions = _directions(model, right, of)
    values = {
        name: torch.einsum("brd,brd->br", _normed(model, part, scale), directions)
        for name, part in stream.items()
    }
    values["bias"] = _bias(model, right, directions, of)
    own = _of(logits[:, index], right, of)
    if not bool(own.isfinite().all()):
        raise UserError("the model's logits are not finite, so there is nothing to attribute")
    gap = float((sum(values.values()) - own).abs().max())
    if not gap <= tolerance * max(1.0, float(logits.abs().max())):
        raise UserError(
            f"the components do not sum to the model's logits (largest difference {gap:.2g}): this architecture adds "
            "something else to its residual stream or logits"
        )
    stacked = torch.stack(list(values.values())).float().cpu().numpy()
    return Attribution(tuple(values), chosen, stacked, own.float().cpu().numpy())


def _components(
    model: HookedTransformer, inputs: Tensor, index: Tensor
) -> tuple[dict[str, Float[Tensor, "batch rows d_model"]], Tensor]:
    """What each component writes to the residual stream at the rows, float64; and the logits."""
    cfg = model.cfg
    wanted = ["hook_embed", "unembed.hook_out"]
    wanted += ["hook_pos_embed"] if cfg.positional_embedding_type == "standard" else []
    for layer in range(cfg.n_layers):
        wanted.append(f"blocks.{layer}.attn.hook_z")
        if not cfg.attn_only:
            wanted.append(f"blocks.{layer}.hook_mlp_out")
    cache = activations(model, inputs, wanted)
    stream = {"embed": cache["hook_embed"][:, index].double()}
    if "hook_pos_embed" in cache:
        positions = cache["hook_pos_embed"].expand(len(inputs), -1, -1)
        stream["pos_embed"] = positions[:, index].double()
    for layer, block in enumerate(model.blocks):
        z = cache[f"blocks.{layer}.attn.hook_z"][:, index].double()
        for head in range(cfg.n_heads):
            stream[f"L{layer}H{head}"] = z[:, :, head] @ block.attn.W_O[head].double()
        stream[f"L{layer} b_O"] = block.attn.b_O.double().expand_as(stream["embed"])
        if not cfg.attn_only:
            stream[f"L{layer} MLP"] = cache[f"blocks.{layer}.hook_mlp_out"][:, index].double()
    return stream, cache["unembed.hook_out"]


def _scale(model: HookedTransformer, residual: Tensor) -> Tensor:
    """σ of the final norm, `[batch, rows, 1]`."""
    kind = model.cfg.normalization_type
    if kind is None:
        return torch.ones_like(residual[..., :1])
    centered = residual - residual.mean(-1, keepdim=True) if kind.startswith("LN") else residual
    return (centered.square().mean(-1, keepdim=True) + model.cfg.eps).sqrt()


def _normed(model: HookedTransformer, part: Tensor, scale: Tensor) -> Tensor:
    kind = model.cfg.normalization_type
    if kind is None:
        return part
    centered = part - part.mean(-1, keepdim=True) if kind.startswith("LN") else part
    gain = getattr(model.ln_final, "w", None)
    return centered / scale if gain is None else centered / scale * gain.double()


def _directions(model: HookedTransformer, right: Tensor, of: str) -> Float[Tensor, "batch rows d_model"]:
    unembed = model.unembed.W_U.double()
    direction = unembed.T[right]
    if of == "logit":
        return direction
    return direction - (unembed.sum(1) - direction) / (unembed.shape[1] - 1)


def _bias(model: HookedTransformer, right: Tensor, directions: Tensor, of: str) -> Tensor:
    """The final norm's bias and the unembedding's."""
    own = _of(model.unembed.b_U.double().expand(*right.shape, -1), right, of)
    bias = getattr(getattr(model, "ln_final", None), "b", None)
    return own if bias is None else own + directions @ bias.double()


def _of(logits: Tensor, right: Tensor, of: str) -> Tensor:
    logits = logits.double()
    own = logits.gather(-1, right[..., None])[..., 0]
    if of == "logit":
        return own
    return own - (logits.sum(-1) - own) / (logits.shape[-1] - 1)
