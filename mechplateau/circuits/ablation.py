"""Knock out heads, or single entries of the attention map (on Ω, off Ω, or any mask), and see what is lost.

What takes the place of an activation: zero, its mean over the batch (at the same position), or that of another sequence
(resample: every statistic is kept but the dependence on the input). Softmax rows are not renormalized afterwards: a row
of which an entry was zeroed sums to less than 1, as rows of linear attention may anyway.

Where attention is fixed by position (moving window sum, once it is solved), mean and resample of pattern entries put
back what is there: they do nothing by construction, and `pattern_varies` near 0 says so. Zeroing entries then removes a
constant from the stream, which may matter though nothing came through. Use `of="values"` to see what comes through: the
pattern stays, and the values read at those entries are replaced.

Cost: one forward a head (or a mask), plus one. Ablation shows what the rest of the model cannot do without; for what a
component is enough for, use `patch_sweep`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mechplateau.circuits._effects import ablation, effect_table
from mechplateau.circuits.editing import Edit, run_edited
from mechplateau.circuits.scoring import inputs_of, require_task_of, score
from mechplateau.errors import UserError

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

    from mechplateau.tasks import Task


@torch.no_grad()
def ablate_heads(
    model: HookedTransformer,
    tokens: Int[Tensor, "batch seq"],
    *,
    method: str = "mean",
    rows: Sequence[int] | None = None,
    heads: Sequence[tuple[int, int]] | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Ablate each head's output z by itself, at all positions.

    Args:
        model: any HookedTransformer.
        tokens: whole sequences.
        method: "zero", "mean" or "resample".
        rows: positions that are shown (a task's `output_rows`); None: all.
        heads: (layer, head) pairs; None: all.
        seed: of resample.

    Returns:
        one line a head and position: layer, head, method, and the columns of `effect_table`.

    Raises:
        UserError: no such head or method; mean or resample with sequences that do not differ.
    """
    inputs = inputs_of(model, tokens)
    replacement = ablation(method, seed, inputs)
    n_layers, n_heads = model.cfg.n_layers, model.cfg.n_heads
    every = [(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    chosen = every if heads is None else _numbers(heads, "pairs (layer, head)")
    if not chosen:
        raise UserError("heads: expected at least one pair (layer, head), got none")
    plain = score(model(inputs), tokens, rows)
    tables = []
    for layer, head in chosen:
        if not (0 <= layer < n_layers and 0 <= head < n_heads):
            raise UserError(
                f"heads: expected layers below {n_layers} and heads below {n_heads}, got {(layer, head)}"
            )

        def without(z: Tensor, head: int = head) -> Tensor:
            edited = z.clone()
            edited[:, :, head] = replacement(z[:, :, head])
            return edited

        logits = run_edited(model, inputs, [(f"blocks.{layer}.attn.hook_z", without)])
        labels = {"layer": layer, "head": head, "method": method}
        tables.append(effect_table(labels, plain, score(logits, tokens, rows)))
    return pd.concat(tables, ignore_index=True)


@torch.no_grad()
def ablate_attention(
    model: HookedTransformer,
    tokens: Int[Tensor, "batch seq"],
    entries: Mapping[int, Bool[Tensor, "#batch query key"]],
    *,
    method: str = "zero",
    of: str = "pattern",
    rows: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    seed: int = 0,
    label: str = "entries",
) -> pd.DataFrame:
    """Ablate entries of the attention pattern, in all layers named at once.

    Args:
        model: any HookedTransformer.
        tokens: whole sequences.
        entries: layer → where the pattern is ablated, bool `[batch or 1, query, key]` over what the model sees; see
            `target_entries` for Ω.
        method: "zero", "mean" or "resample".
        of: "pattern", or "values": the values read at these entries, the pattern being left alone.
        rows: positions that are shown; None: all.
        heads: in these heads only; None: all.
        seed: of resample.
        label: what the table calls these entries.

    Returns:
        one line a position: entries, method, of, pattern_varies, and the columns of `effect_table`. pattern_varies: the
        share of the entries' mean square that is variance over sequences, 0 (the same in all) to 1; null where they
        are all zero.

    Raises:
        UserError: no such layer or head, a mask of another shape than the map (both are named), no entry, or mean or
            resample with sequences that do not differ.
    """
    inputs = inputs_of(model, tokens)
    replacement = ablation(method, seed, inputs)
    cfg, (batch, length) = model.cfg, inputs.shape
    if not isinstance(entries, Mapping) or not all(isinstance(mask, Tensor) for mask in entries.values()):
        raise UserError(f"entries: expected layer → bool tensor, got {type(entries).__name__}")
    chosen = list(range(cfg.n_heads)) if heads is None else _numbers(heads, "heads")
    if not all(0 <= head < cfg.n_heads for head in chosen):
        raise UserError(f"heads: expected heads below {cfg.n_heads}, got {chosen}")
    if of not in ("pattern", "values"):
        raise UserError(f"of: expected pattern or values, got {of!r}")
    watched: list[_Entries] = []
    for layer, mask in entries.items():
        if not 0 <= layer < cfg.n_layers:
            raise UserError(f"entries: expected layers below {cfg.n_layers}, got {layer}")
        fits = mask.dim() == 3 and mask.shape[0] in (1, batch) and tuple(mask.shape[1:]) == (length, length)
        if not fits or mask.dtype != torch.bool:
            raise UserError(
                f"entries: expected bool masks [{batch} or 1, {length}, {length}] (query, key), got {mask.dtype} "
                f"{list(mask.shape)}"
            )
        per_head = torch.zeros(cfg.n_heads, 1, 1, dtype=torch.bool)
        per_head[chosen] = True
        where = (mask[:, None].cpu() & per_head).to(inputs.device)
        watched.append(_Entries(layer, where, replacement, of))
    # Above the diagonal a causal map is zero, and stays so.
    seen = [mask.tril() if cfg.attention_dir == "causal" else mask for mask in entries.values()]
    if not chosen or not any(bool(mask.any()) for mask in seen):
        raise UserError(
            "entries: nothing to ablate; expected a head, and a mask with at least one entry that attention can reach"
        )
    plain = model(inputs)
    edited = run_edited(model, inputs, [edit for one in watched for edit in one.edits()])
    labels = {"entries": label, "method": method, "of": of, "pattern_varies": _variation(watched)}
    table = effect_table(labels, score(plain, tokens, rows), score(edited, tokens, rows))
    return table.astype({"pattern_varies": "Float64"})


class _Entries:
    """Some entries of one layer's attention while they are ablated."""

    def __init__(self, layer: int, where: Tensor, replacement: Callable[[Tensor], Tensor], of: str):
        self.layer, self.where, self.replacement, self.of = layer, where, replacement, of
        self.pattern = self.values = torch.empty(0)

    def edits(self) -> list[Edit]:
        prefix = f"blocks.{self.layer}.attn"
        if self.of == "pattern":
            return [(f"{prefix}.hook_pattern", self._ablated)]
        return [
            (f"{prefix}.hook_v", self._keep_values),
            (f"{prefix}.hook_pattern", self._keep_pattern),
            (f"{prefix}.hook_z", self._other_values),
        ]

    def squares(self) -> tuple[float, float]:
        """Sum over these entries of the variance over sequences, and of the mean square."""
        kept = torch.where(self.where, self.pattern, 0.0).double()
        square, mean = kept.square().mean(dim=0).sum(), kept.mean(dim=0).square().sum()
        return max(float(square - mean), 0.0), float(square)

    def _ablated(self, pattern: Tensor) -> Tensor:
        self.pattern = pattern
        return torch.where(self.where, self.replacement(pattern), pattern)

    def _keep_values(self, values: Tensor) -> Tensor:
        self.values = values
        return values

    def _keep_pattern(self, pattern: Tensor) -> Tensor:
        self.pattern = pattern
        return pattern

    def _other_values(self, z: Tensor) -> Tensor:
        change = (self.replacement(self.values) - self.values).transpose(1, 2)
        groups = self.pattern.shape[1] // change.shape[1]  # heads that share their keys and values
        read = torch.where(self.where, self.pattern, 0.0) @ change.repeat_interleave(groups, dim=1)
        return z + read.transpose(1, 2)


def _variation(watched: Iterable[_Entries]) -> float | None:
    """See `ablate_attention`: over all layers together."""
    variances, squares = zip(*(one.squares() for one in watched), strict=True)
    return sum(variances) / sum(squares) if sum(squares) else None


def target_entries(
    task: Task, tokens: Int[Tensor, "batch seq"], n_layers: int, which: str = "on"
) -> dict[int, Bool[Tensor, "#batch query key"]]:
    """Where attention belongs (on Ω), or everything else in the same rows (off Ω), for `ablate_attention`.

    Args:
        task: whose Ω.
        tokens: whole sequences (Ω may differ between them).
        n_layers: depth of the model; an Ω without a layer is taken in all of them.
        which: "on" or "off" Ω.

    Returns:
        layer → bool `[batch or 1, query, key]`; layers without an Ω are left out.

    Raises:
        UserError: tokens that are not of this task's length and vocabulary.
    """
    if which not in ("on", "off"):
        raise UserError(f'which: expected "on" or "off", got {which!r}')
    require_task_of(tokens, task)
    on: dict[int, Tensor] = {}
    concerned: dict[int, Tensor] = {}
    for target in task.attention_targets(tokens):
        mask = torch.zeros(target.mask.shape[0], task.n_input, task.n_input, dtype=torch.bool)
        row = torch.zeros(task.n_input, 1, dtype=torch.bool)
        mask[:, list(target.rows)] = target.mask.cpu()
        row[list(target.rows)] = True
        for layer in range(n_layers) if target.layer is None else [target.layer]:
            if layer < n_layers:
                on[layer] = on[layer] | mask if layer in on else mask
                concerned[layer] = concerned[layer] | row if layer in concerned else row
    causal = torch.ones(task.n_input, task.n_input, dtype=torch.bool).tril()
    return {layer: mask if which == "on" else concerned[layer] & causal & ~mask for layer, mask in on.items()}


def _numbers(given: Iterable[Any], what: str) -> list[Any]:
    """Heads, or pairs (layer, head), as Python's numbers."""
    try:
        if what == "heads":
            return [operator.index(head) for head in given]
        return [(operator.index(layer), operator.index(head)) for layer, head in given]
    except (TypeError, ValueError):
        raise UserError(f"heads: expected {what}, got {given!r}") from None
