"""What one head's write does where one other head reads it: the causal side of a composition score.

A score compares two weight matrices. It can be large where nothing flows: the reader may attend elsewhere, or do
nothing with what it reads. Here the source's write is replaced, in that one input (Q, K or V) of that one reader, by
its write on another sequence; all else stays as it is. The effect is how much the loss rises. Near 0: this edge carries
nothing that differs between sequences.

Cost: for each layer of readers, a forward for every edge, many edges stacked along the batch. Memory: a forward of at
most `at_once` sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechplateau.circuits._effects import ablation
from mechplateau.circuits.patching import activations
from mechplateau.circuits.scoring import checked_rows, inputs_of, measures_of
from mechplateau.errors import UserError
from mechplateau.objectives import TokenBatch

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

Edge = tuple[str, tuple[int, int], tuple[int, int]]
"""Kind (Q, K or V), source (layer, head), reader (layer, head)."""


@torch.no_grad()
def edge_effects(
    model: HookedTransformer,
    tokens: Int[Tensor, "batch seq"],
    edges: Sequence[Edge],
    *,
    rows: Sequence[int] | None = None,
    seed: int = 0,
    at_once: int = 512,
) -> Float[np.ndarray, "edge 2"]:
    """The rise of the loss when an edge carries another sequence's write, and its standard error over sequences.

    Args:
        model: any HookedTransformer whose heads write straight to the residual stream.
        tokens: whole sequences, of which at least two differ.
        edges: which; the reader's layer is after the source's.
        rows: positions whose loss is averaged (a task's `output_rows`); None: all.
        seed: of the resampling.
        at_once: sequences in a forward, about.

    Returns:
        nats, one line an edge; the standard error is that of the mean of paired differences.

    Raises:
        UserError: sequences that do not differ, or a model that norms or shares what heads write or read.
    """
    cfg = model.cfg
    if getattr(cfg, "use_normalization_before_and_after", False) or cfg.n_key_value_heads not in (
        None,
        cfg.n_heads,
    ):
        raise UserError(
            "effects of composition need heads that write straight to the residual stream and have keys and values of "
            "their own; this model norms what heads write, or groups their keys and values"
        )
    inputs = inputs_of(model, tokens)
    resampled = ablation("resample", seed, inputs)
    scored = list(checked_rows(rows, inputs.shape[1]))
    right = TokenBatch(tokens.to(inputs.device)).targets[:, scored]
    plain = measures_of(model(inputs)[:, scored], right)[0].mean(dim=1)
    sources = sorted({source for _, source, _ in edges})
    hooks = {f"blocks.{layer}.attn.hook_z" for layer, _ in sources}
    z = activations(model, inputs, sorted(hooks)) if hooks else {}
    changes = {}
    for layer, head in sources:
        written = z[f"blocks.{layer}.attn.hook_z"][:, :, head]
        changes[layer, head] = (resampled(written) - written) @ model.blocks[layer].attn.W_O[head]
    effects = np.full((len(edges), 2), np.nan)
    per_forward = max(1, at_once // len(inputs))
    with _split_inputs(model):
        for layer in sorted({reader[0] for _, _, reader in edges}):
            of_layer = [i for i, (_, _, reader) in enumerate(edges) if reader[0] == layer]
            for first in range(0, len(of_layer), per_forward):
                chunk = of_layer[first : first + per_forward]
                logits = _with_edges(model, inputs, layer, [edges[i] for i in chunk], changes)
                losses = measures_of(logits[:, scored], right.repeat(len(chunk), 1))[0].mean(dim=1)
                rises = losses.unflatten(0, (len(chunk), -1)) - plain
                effects[chunk, 0] = rises.mean(dim=1).cpu()
                effects[chunk, 1] = (rises.std(dim=1) / len(inputs) ** 0.5).cpu()
    return effects


def _with_edges(
    model: HookedTransformer,
    inputs: Int[Tensor, "batch pos"],
    layer: int,
    edges: Sequence[Edge],
    changes: dict[tuple[int, int], Float[Tensor, "batch pos d_model"]],
) -> Float[Tensor, "variants_batch pos vocab"]:
    """Logits of the inputs repeated for each edge, whose reader gets the changed write."""

    def hook_for(kind: str):
        def hook(stream: Float[Tensor, "variants_batch pos head d_model"], hook) -> Tensor:
            edited = stream.clone()
            for variant, (its_kind, source, (_, head)) in enumerate(edges):
                if its_kind == kind:
                    part = slice(variant * len(inputs), (variant + 1) * len(inputs))
                    edited[part, :, head] += changes[source]
            return edited

        return hook

    kinds = {kind for kind, _, _ in edges}
    hooks = [(f"blocks.{layer}.hook_{kind.lower()}_input", hook_for(kind)) for kind in sorted(kinds)]
    with model.hooks(fwd_hooks=hooks):
        return model(inputs.repeat(len(edges), 1))


@contextmanager
def _split_inputs(model: HookedTransformer):
    """The inputs of Q, K and V as hook points of their own, and as before afterwards."""
    before = model.cfg.use_split_qkv_input
    model.set_use_split_qkv_input(True)
    try:
        yield
    finally:
        model.set_use_split_qkv_input(before)
