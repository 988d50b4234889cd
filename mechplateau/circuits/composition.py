"""Composition scores: how much a head could read of what an earlier head writes, from the weights alone.

For a source head s and a reading head r of a later layer, with W_OV = W_V W_O and W_QK = W_Q W_Kᵀ (rows are vectors of
the residual stream),

    Q:  ‖W_OV^s W_QK^r‖ / (‖W_OV^s‖ ‖W_QK^r‖)      queries of r can read what s writes
    K:  ‖W_OV^s (W_QK^r)ᵀ‖ / (‖W_OV^s‖ ‖W_QK^r‖)   keys can
    V:  ‖W_OV^s W_OV^r‖ / (‖W_OV^s‖ ‖W_OV^r‖)      values can

in Frobenius norms. The reader's LayerNorm is part of its weights: its centering and gain are folded into them;
its scale, which depends on the input and cancels in the ratio, is not.

Baselines. If the writer were turned at random against the reader, the squared score would be 1/d_model on
average, exactly (`random` = 1/√d_model), and its variance is known exactly too, for the d_model and the singular
values at hand: with a and b the squared singular values of the two matrices, each divided by its sum, A = Σa²,
B = Σb² and d = d_model,

    E[s⁴] = ( 3AB + A(1−B) + (1−A)B + (1−A)(1−B)(d+1)/(d−1) ) / (d(d+2))

`z` = (s² − 1/d) / √(E[s⁴] − 1/d²): how many standard deviations a score is from chance, also in small models,
where scores far from 1/√d_model are common.

Cost: milliseconds; d_head × d_head matrices only. It says what heads could read, not what they do. With `tokens`, each
score has its causal effect beside it (`mechplateau.circuits.edges`), at a forward an edge: a large score with no effect
is common.

Source: Elhage et al. 2021, A Mathematical Framework for Transformer Circuits; the moments are those of a Haar-random
orthogonal matrix (Weingarten calculus).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechplateau.circuits.edges import edge_effects
from mechplateau.errors import UserError

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

KINDS = ("Q", "K", "V")


@torch.no_grad()
def composition_scores(
    model: HookedTransformer,
    tokens: Int[Tensor, "batch seq"] | None = None,
    *,
    rows: Sequence[int] | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Q, K and V composition of all pairs of heads in different layers.

    Args:
        model: any HookedTransformer.
        tokens: whole sequences: also measure what each edge does to the loss.
        rows: positions whose loss counts (a task's `output_rows`); None: all.
        seed: of the resampling.

    Returns:
        one line a pair and kind: kind, source and reader (as L0H0), score in [0, 1], random (1/√d_model), z, and
        undefined: null, or why there is no score (a head whose weights are zero neither writes nor reads; one of
        a model that diverged has weights that are not numbers);
        score and z are null then. z is null too where chance has no spread (d_model 1). With `tokens` also effect, the
        rise of the loss in nats when this reader gets the source's write on another sequence, effect_se, its standard
        error over sequences, and n, how many.

    Raises:
        UserError: the model has one layer, so that no head can read what another wrote; with `tokens`, what
            `edge_effects` refuses.
    """
    cfg = model.cfg
    if cfg.n_layers < 2:
        raise UserError(
            "composition is between heads of different layers, and this model has one; "
            "use qk_circuit and ov_circuit for it, or train with model.n_layers of 2 or more"
        )
    written = [[_written(model, layer, head) for head in range(cfg.n_heads)] for layer in range(cfg.n_layers)]
    read = [[_read(model, layer, head) for head in range(cfg.n_heads)] for layer in range(cfg.n_layers)]
    lines = []
    for source_layer in range(cfg.n_layers - 1):
        for source in range(cfg.n_heads):
            for layer in range(source_layer + 1, cfg.n_layers):
                for head in range(cfg.n_heads):
                    for kind in KINDS:
                        pair = (f"L{source_layer}H{source}", f"L{layer}H{head}")
                        score, z, why = _score(
                            written[source_layer][source], read[layer][head][kind], pair, kind
                        )
                        lines.append((kind, *pair, score, 1 / math.sqrt(cfg.d_model), z, why))
    table = pd.DataFrame(lines, columns=["kind", "source", "reader", "score", "random", "z", "undefined"])
    table = table.astype({"score": "Float64", "z": "Float64", "undefined": "string"})
    if tokens is None:
        return table
    edges = [
        (kind, _head(source), _head(reader))
        for kind, source, reader in table[["kind", "source", "reader"]].itertuples(index=False)
    ]
    effects = edge_effects(model, tokens, edges, rows=rows, seed=seed)
    return table.assign(effect=effects[:, 0], effect_se=effects[:, 1], n=len(tokens))


def _head(name: str) -> tuple[int, int]:
    layer, head = name.removeprefix("L").split("H")
    return int(layer), int(head)


Factors = tuple[Float[Tensor, "d_model d_head"], Float[Tensor, "d_head d_model"]]
"""A matrix of low rank as a product of two."""


def _score(
    written: Factors, read: Factors, pair: tuple[str, str], kind: str
) -> tuple[float | None, float | None, str | None]:
    for name, factors in zip(pair, (written, read), strict=True):
        if not all(bool(factor.isfinite().all()) for factor in factors):
            return None, None, f"{name} has weights that are not finite"
    spectra = [_squared_singular_values(factors) for factors in (written, read)]
    for name, spectrum, what in zip(pair, spectra, ("writes", "reads"), strict=True):
        if spectrum.sum() == 0:
            return (
                None,
                None,
                f"{name} {what} nothing: its {'OV' if what == 'writes' or kind == 'V' else 'QK'} is zero",
            )
    product = written[0], written[1] @ read[0] @ read[1]
    total = _squared_singular_values(product).sum()
    square = float(total / (spectra[0].sum() * spectra[1].sum()))
    variance = chance_variance(spectra[0] / spectra[0].sum(), spectra[1] / spectra[1].sum(), len(read[0]))
    z = (square - 1 / len(read[0])) / math.sqrt(variance) if variance > 0 else None
    return math.sqrt(square), z, None


def chance_variance(a: Float[Tensor, " n"], b: Float[Tensor, " m"], d_model: int) -> float:
    """Variance of the squared score under a random rotation; `a` and `b`: squared singular values that sum to 1."""
    d = d_model
    if d == 1:
        return 0.0
    first, second = float(a.square().sum()), float(b.square().sum())
    apart = (1 - first) * (1 - second) * (d + 1) / (d - 1)
    fourth = (3 * first * second + first * (1 - second) + (1 - first) * second + apart) / (d * (d + 2))
    return max(fourth - 1 / d**2, 0.0)


def _written(model: HookedTransformer, layer: int, head: int) -> Factors:
    """W_OV as it writes: of values that the reading norm has been folded into."""
    return _read(model, layer, head)["V"]


def _read(model: HookedTransformer, layer: int, head: int) -> dict[str, Factors]:
    """The reader's matrix for each kind, as [what is read] × [the rest]."""
    attention = model.blocks[layer].attn
    q, k, v = (
        _through_norm(model, layer, weights[head].double())
        for weights in (attention.W_Q, attention.W_K, attention.W_V)
    )
    return {"Q": (q, k.T), "K": (k, q.T), "V": (v, attention.W_O[head].double())}


def _through_norm(model: HookedTransformer, layer: int, weights: Float[Tensor, "d_model d_head"]) -> Tensor:
    """Reading weights with the centering and gain of the norm before them, which act on what is read."""
    kind = model.cfg.normalization_type
    gain = getattr(getattr(model.blocks[layer], "ln1", None), "w", None)
    folded = weights if gain is None else gain.double()[:, None] * weights
    return folded - folded.mean(dim=0) if kind in ("LN", "LNPre") else folded


def _squared_singular_values(factors: Factors) -> Float[Tensor, " rank"]:
    """Of the product, without building it: those of the product of the triangular factors."""
    left, right = factors
    return torch.linalg.svdvals(torch.linalg.qr(left).R @ torch.linalg.qr(right.T).R.T).square()
