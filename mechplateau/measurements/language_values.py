"""What a language model does and how its heads behave, in numbers; on the fixed sequences of `language_probes`.

Every value is a 0-d tensor on the model's device. Positions count tokens that are predicted, from 1: position p is the
p-th token after the end of text in front. Heads are L{layer}H{head}.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechplateau.measurements.language_probes import LanguageProbes
from mechplateau.metrics import attending, cosine_matrix, language, mean_cosine, repetition_frequency
from mechplateau.metrics.composing import composition_of
from mechplateau.objectives import Batch, NextToken, TokenBatch

POSITIONS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Positions whose loss with and without position embeddings has columns of its own."""
SHORTEST_RANDOM = 16
"""Least length of the sequences that previous-token scores are about."""


@torch.no_grad()
def behavior(
    model: Any, probes: LanguageProbes, bigrams: Float[Tensor, "vocab vocab"], floor: Float[Tensor, ""]
) -> dict[str, Tensor | None]:
    """Losses on text, on common n-grams and on repeated tokens.

    Args:
        model: called with tokens; its position embedding goes through `hook_pos_embed`.
        probes: where to look.
        bigrams: q(next | token) of the training text.
        floor: what `floor_of` gives.
    """
    values: dict[str, Tensor | None] = {}
    text = TokenBatch(probes.text)
    logits = model(text.inputs)
    losses = _losses(logits, text)
    along = losses.mean(0)
    values["test_loss"] = losses.mean()
    score = language.bigram_score(logits[:, 1:].flatten(0, 1), bigrams, _looked_up(probes))
    values |= {"bigram_score": score, "bigram_excess": score - floor}
    values["icl"] = language.in_context_score(along)
    without = _losses(_without_positions(model, text.inputs), text).mean(0)
    values["position_delta"] = (without - along).mean()
    for p in POSITIONS:
        if p <= len(along):
            values |= {f"loss_{p}": along[p - 1], f"position_delta_{p}": without[p - 1] - along[p - 1]}
    values |= _grams(model, probes, values["test_loss"])
    return values | _repeats(model, probes)


def floor_of(probes: LanguageProbes, bigrams: Float[Tensor, "vocab vocab"]) -> Float[Tensor, ""]:
    """The lowest bigram score on the probes' text."""
    return language.bigram_floor(bigrams, _looked_up(probes))


@torch.no_grad()
def heads(model: Any, probes: LanguageProbes) -> dict[str, Tensor | None]:
    """Previous-token and prefix-matching scores of all heads, and how heads of different layers compose."""
    values: dict[str, Tensor | None] = {}
    for layer, pattern in enumerate(_patterns(model, probes.random)):
        # Attention is causal: each row is the last row of the sequence that ends there.
        first = min(SHORTEST_RANDOM, pattern.shape[2]) - 1
        queries = torch.arange(max(first, 1), pattern.shape[2], device=pattern.device)
        scores = pattern[:, :, queries, queries - 1].mean(dim=(0, 2))
        values |= {f"previous_token_L{layer}H{head}": score for head, score in enumerate(scores)}
    sequences = torch.arange(len(probes.prefix), device=probes.prefix.device)
    for layer, pattern in enumerate(_patterns(model, probes.prefix)):
        rows = pattern[sequences, :, probes.second]
        for target, key in (("B", probes.first + 1), ("A", probes.first)):
            scores = attending.prefix_matching_score(rows, key)
            values |= {f"prefix_{target}_L{layer}H{head}": score for head, score in enumerate(scores)}
    return values | _compositions(model)


@torch.no_grad()
def position_weights(model: Any) -> dict[str, Tensor | None]:
    """Shares of the first principal components of the position embedding, and the norm of all weights."""
    shares = language.position_shares(model.pos_embed.W_pos)
    values: dict[str, Tensor | None] = {f"position_share_{i + 1}": s for i, s in enumerate(shares[:3])}
    values["weight_norm"] = weight_norm(model)
    return values


def weight_norm(model: Any) -> Float[Tensor, ""]:
    """Norm of all weights that are trained, together."""
    squares = [p.detach().double().square().sum() for p in model.parameters() if p.requires_grad]
    return torch.stack(squares).sum().sqrt()


def _looked_up(probes: LanguageProbes) -> Int[Tensor, " positions"]:
    """The tokens of the text whose bigrams count: the end of text in front is followed by the middle of a text, which
    the table's row of it is not about."""
    return probes.text[:, 1:-1].flatten()


def _losses(logits: Tensor, batch: Batch) -> Float[Tensor, "row pos"]:
    return NextToken().losses(logits.float(), batch)


def _without_positions(model: Any, inputs: Tensor) -> Tensor:
    return model.run_with_hooks(
        inputs, fwd_hooks=[("hook_pos_embed", lambda embedding, hook: torch.zeros_like(embedding))]
    )


def _repeats(model: Any, probes: LanguageProbes) -> dict[str, Tensor | None]:
    """On repeated tokens: the gain, and in the second half how alike hidden states are, how often predictions repeat.

    These two are what marks a plateau in the tasks of tokens: collapse and repetition.
    """
    repeats = TokenBatch(probes.repeats)
    half = repeats.targets.shape[1] // 2
    logits, cache = model.run_with_cache(repeats.inputs, names_filter="unembed.hook_in")
    hidden = cache["unembed.hook_in"][:, half:]
    pairs = torch.ones(hidden.shape[1], hidden.shape[1], dtype=torch.bool, device=hidden.device).tril(-1)
    return {
        "repeat_gain": language.repeat_gain(_losses(logits, repeats), half),
        "repeat_cos": mean_cosine(cosine_matrix(hidden), pairs),
        "repeat_repetition": repetition_frequency(logits[:, half:].argmax(-1)),
    }


def _grams(model: Any, probes: LanguageProbes, test_loss: Tensor | None) -> Mapping[str, Tensor | None]:
    """The loss on common n-grams, and how many times lower it is than on text: at the same position, and overall."""
    begun = TokenBatch(probes.starts)
    starts = _losses(model(begun.inputs), begun).mean(0)
    values: dict[str, Tensor | None] = {}
    for n, sequences in probes.grams.items():
        whole = TokenBatch(sequences)
        # Only its last token is what makes an n-gram.
        loss = NextToken().loss(model(whole.inputs)[:, -1:], Batch(whole.inputs, whole.targets[:, -1:]))
        values[f"gram_loss_{n}"] = loss
        values[f"gram_score_{n}"] = starts[n - 1] / loss
        values[f"gram_score_overall_{n}"] = None if test_loss is None else test_loss / loss
    return values


def _patterns(model: Any, tokens: Tensor) -> list[Float[Tensor, "batch head query key"]]:
    layers = range(model.cfg.n_layers)
    _, cache = model.run_with_cache(
        tokens,
        names_filter=lambda name: name.endswith("hook_pattern"),
        stop_at_layer=len(layers),  # no logits
    )
    return [cache[f"blocks.{layer}.attn.hook_pattern"] for layer in layers]


def _compositions(model: Any) -> dict[str, Tensor | None]:
    layers = [
        {name: getattr(block.attn, name) for name in ("W_Q", "W_K", "W_V", "W_O")} for block in model.blocks
    ]
    values: dict[str, Tensor | None] = {}
    for kind in ("Q", "K", "V"):
        scores = {
            (writer, reader): composition_of(kind, layers[writer], layers[reader])
            for reader in range(len(layers))
            for writer in range(reader)
        }
        if scores:
            every = torch.cat([score.flatten() for score in scores.values()])
            values |= {f"composition_{kind}_mean": every.mean(), f"composition_{kind}_max": every.max()}
        for (writer, reader), score in scores.items():
            for a, row in enumerate(score):
                for b, value in enumerate(row):
                    values[f"composition_{kind}_L{writer}H{a}_L{reader}H{b}"] = value
    return values


__all__ = ["POSITIONS", "behavior", "floor_of", "heads", "position_weights", "weight_norm"]
