"""Is attention a map fixed by position? How much of the pattern is its mean over sequences, and does that mean do?

For a head, over the rows i and the keys j that they may see, with Ā the mean over sequences and m that of all entries,

    r2 = 1 − Σ (A_bij − Ā_ij)² / Σ (A_bij − m)²

1: the same in every sequence; 0: nothing of it is fixed by position. A fixed map need not be needed: look at the loss
and accuracy with the pattern replaced by Ā, and at `ablate_heads` beside it. A map that depends on the input may still
be replaced without loss, where nothing comes through that dependence.

Cost: one forward, and one a head and one more. Memory: the map, `[batch, head, query, key]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from mechplateau.circuits._effects import ablation
from mechplateau.circuits.patching import activations
from mechplateau.circuits.pattern_ablation import run_with_patterns
from mechplateau.circuits.scoring import checked_rows, inputs_of, require_task_of, score, standard_error

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

    from mechplateau.tasks import Task


@torch.no_grad()
def fixed_map(
    model: HookedTransformer, tokens: Int[Tensor, "batch seq"], *, rows: Sequence[int] | None = None
) -> pd.DataFrame:
    """R² of each head's pattern, and the loss with its mean over sequences in its place.

    Args:
        model: any HookedTransformer.
        tokens: whole sequences, at least two different ones.
        rows: queries that count, and positions that are scored (a task's `output_rows`); None: all.

    Returns:
        one line a head, and one of all heads together, whose layer and head are null: layer, head, r2 (null where the
        pattern is one number everywhere, or none), loss and accuracy as they are and `_fixed`, with the standard error
        over sequences of the change (`_se`), and n. The mean is put in place at all positions.

    Raises:
        UserError: sequences that do not differ, rows that are not there, or a model that shows no pattern.
    """
    inputs = inputs_of(model, tokens)
    ablation("mean", 0, inputs)  # refuses sequences that do not differ
    chosen = checked_rows(rows, inputs.shape[1])
    n_layers, n_heads = model.cfg.n_layers, model.cfg.n_heads
    causal = getattr(model.cfg, "attention_dir", "causal") == "causal"
    plain = score(model(inputs), tokens, chosen)
    lines, sums = [], torch.zeros(2, dtype=torch.float64)
    heads = [(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    for layer in range(n_layers):
        hook = f"blocks.{layer}.attn.hook_pattern"
        pattern = activations(model, inputs, [hook])[hook][:, :, list(chosen)].double()
        for head in range(n_heads):
            own = _squares(pattern[:, head], chosen, causal)
            sums += own
            lines.append({"layer": layer, "head": head, "r2": _r2(own)})
    lines.append({"layer": None, "head": None, "r2": _r2(sums)})
    for line, group in zip(lines, [*([pair] for pair in heads), heads], strict=True):
        fixed = score(run_with_patterns(model, inputs, group, "mean"), tokens, chosen)
        errors = standard_error((fixed.each - plain.each).mean(axis=2), axis=1)
        for i, name in enumerate(("loss", "accuracy")):
            line[name], line[f"{name}_fixed"] = plain.mean()[name], fixed.mean()[name]
            line[f"{name}_se"] = errors[i]
        line["n"] = len(inputs)
    return pd.DataFrame(lines).astype({"layer": "Int64", "head": "Int64", "r2": "Float64"})


@torch.no_grad()
def window_weights(model: HookedTransformer, tokens: Int[Tensor, "batch seq"], task: Task) -> pd.DataFrame:
    """The mean weight of every entry on Ω, signed.

    Args:
        model: any HookedTransformer.
        tokens: whole sequences.
        task: whose Ω.

    Returns:
        one line a layer, head and entry: layer, head, target, row, key, weight (mean over the sequences whose Ω has the
        entry), sd (over these; null of a single one), n (how many), size (entries of Ω in that row).

    Raises:
        UserError: tokens that are not the task's, or a model that shows no pattern.
    """
    require_task_of(tokens, task)
    inputs = inputs_of(model, tokens)
    hooks = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.cfg.n_layers)]
    patterns = activations(model, inputs, hooks)
    parts = []
    for target in task.attention_targets(tokens):
        mask = target.mask.cpu().expand(len(tokens), -1, -1)
        counts = mask.sum(dim=0)
        row, key = counts.nonzero(as_tuple=True)
        sizes = mask.sum(dim=2).amax(dim=0)
        for layer, hook in enumerate(hooks):
            if target.layer not in (None, layer):
                continue
            seen = patterns[hook].cpu().double()[:, :, list(target.rows)]
            for head in range(seen.shape[1]):
                mean, deviation = _over_sequences(seen[:, head], mask, counts)
                parts.append(
                    pd.DataFrame(
                        {
                            "layer": layer,
                            "head": head,
                            "target": target.name,
                            "row": [target.rows[int(one)] for one in row],
                            "key": key.numpy(),
                            "weight": mean[row, key].numpy(),
                            "sd": deviation[row, key].numpy(),
                            "n": counts[row, key].numpy(),
                            "size": sizes[row].numpy(),
                        }
                    )
                )
    columns = ["layer", "head", "target", "row", "key", "weight", "sd", "n", "size"]
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)
    return table.astype({"weight": "Float64", "sd": "Float64"})


def evenness(weights: pd.DataFrame) -> float | None:
    """How alike the weights of a window are: smallest / largest, both signed, of the largest in size; median over rows.

    1: all equal; −1: as large with the other sign. Rows with a single entry are left out; None where no other is.

    Args:
        weights: of one layer and head, from `window_weights`.
    """
    ratios = []
    for _, window in weights[weights["size"] > 1].groupby("row"):
        of = window["weight"].to_numpy(float, na_value=np.nan)
        if np.isfinite(of).all() and of.any():
            ratios.append(float((of / of[np.abs(of).argmax()]).min()))
    return float(np.median(ratios)) if ratios else None


def same_sign(weights: pd.DataFrame) -> tuple[float | None, float | None]:
    """The share of windows (rows with several entries) whose weights all have the sign of the median of all windows'
    weights, and the share of single entries (copies) that have the other; each None where there is no such row, or no
    sign.

    Args:
        weights: of one layer and head, from `window_weights`.
    """
    windows, copies = weights[weights["size"] > 1], weights[weights["size"] == 1]
    middle = windows["weight"].astype(float).median()
    if not len(windows) or not abs(middle) > 0:
        return None, None
    sign = 1.0 if middle > 0 else -1.0
    alike = (sign * windows["weight"].astype(float) > 0).groupby(windows["row"]).all()
    other = sign * copies["weight"].astype(float) < 0
    return float(alike.mean()), float(other.mean()) if len(copies) else None


def _squares(pattern: Tensor, rows: Sequence[int], causal: bool) -> Tensor:
    """Around the mean over sequences, and around the mean of all entries: two sums of squares."""
    keys = torch.arange(pattern.shape[2], device=pattern.device)
    queries = torch.tensor(list(rows), device=pattern.device)
    allowed = (keys <= queries[:, None]) if causal else torch.ones_like(pattern[0], dtype=torch.bool)
    seen = pattern[:, allowed]
    around = (seen - seen.mean(dim=0)).square().sum(), (seen - seen.mean()).square().sum()
    return torch.stack(around).cpu()


def _r2(squares: Tensor) -> float | None:
    around, total = squares.tolist()
    return 1 - around / total if total > 0 else None


def _over_sequences(pattern: Tensor, mask: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation (n − 1) of each entry over the sequences in which it is on Ω; NaN where there are too few."""
    kept = torch.where(mask, pattern, 0.0)
    mean = kept.sum(dim=0) / torch.where(counts > 0, counts, torch.nan)
    squares = torch.where(mask, pattern - mean, 0.0).square().sum(dim=0)
    return mean, (squares / torch.where(counts > 1, counts - 1, torch.nan)).sqrt()


__all__ = ["evenness", "fixed_map", "same_sign", "window_weights"]
