"""Positional ablation: what is left of the model without its positional embeddings, at each position?

zero: none is added; mean: every position gets their mean; permuted: positions get each other's, drawn anew for each of
`permutations` repeats (the numbers are their mean). The embedding is edited where it enters (`hook_pos_embed`).

Cost: one forward a method (and repeat), plus one. Over checkpoints: `over_run(run, ablate_positions, tokens)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from mechplateau.circuits._effects import effect_table
from mechplateau.circuits.editing import run_edited
from mechplateau.circuits.scoring import MEASURES, Scores, inputs_of, score
from mechplateau.errors import UserError
from mechplateau.schema import whole_number

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

WAYS = ("zero", "mean", "permuted")


@torch.no_grad()
def ablate_positions(
    model: HookedTransformer,
    tokens: Int[Tensor, "batch seq"],
    *,
    rows: Sequence[int] | None = None,
    methods: Sequence[str] = WAYS,
    permutations: int = 4,
    seed: int = 0,
) -> pd.DataFrame:
    """Loss and accuracy at each position with and without positional embeddings.

    Args:
        model: with learned or other added positional embeddings.
        tokens: whole sequences.
        rows: positions that are shown (a task's `output_rows`); None: all.
        methods: some of "zero", "mean", "permuted".
        permutations: repeats of permuted.
        seed: of permuted.

    Returns:
        one line a method and position: method, and the columns of `effect_table`.

    Raises:
        UserError: the model adds no positional embedding (rotary, say, or none); no such method; mean or permuted
            with a single position.
    """
    kind = model.cfg.positional_embedding_type
    if "hook_pos_embed" not in model.hook_dict:
        raise UserError(
            f"this model adds no positional embedding (its kind is {kind!r}), so there is none to ablate"
        )
    if isinstance(methods, str) or not methods or not set(methods) <= set(WAYS):
        raise UserError(f"methods: expected a list of some of {', '.join(WAYS)}, got {methods!r}")
    if whole_number(permutations, "permutations") < 1:
        raise UserError(f"permutations: expected at least 1, got {permutations}")
    inputs = inputs_of(model, tokens)
    if inputs.shape[1] == 1 and (blind := [method for method in methods if method != "zero"]):
        raise UserError(f"{blind[0]}: expected sequences of at least 3 tokens (2 positions), got 2")
    plain = score(model(inputs), tokens, rows)
    generator = torch.Generator().manual_seed(whole_number(seed, "seed"))

    def scored(edit) -> Scores:
        return score(run_edited(model, inputs, [("hook_pos_embed", edit)]), tokens, rows)

    tables = []
    for method in methods:
        if method == "zero":
            edited = scored(torch.zeros_like)
        elif method == "mean":
            edited = scored(lambda embedding: embedding.mean(dim=1, keepdim=True).expand_as(embedding))
        else:
            orders = [torch.randperm(inputs.shape[1], generator=generator) for _ in range(permutations)]
            repeats = [scored(lambda embedding, order=order: embedding[:, order]) for order in orders]
            means = {name: np.mean([getattr(one, name) for one in repeats], axis=0) for name in MEASURES}
            edited = Scores(plain.rows, **means, each=np.mean([one.each for one in repeats], axis=0))
        tables.append(effect_table({"method": method}, plain, edited))
    return pd.concat(tables, ignore_index=True)
