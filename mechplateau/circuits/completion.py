"""Look inside a model of matrix completion.

| question | tool |
|---|---|
| does it copy, whatever token is in masked cells? | `copy_check` |
| what does each head look at? | `heads` |
| is a cell filled in only where one other cell is observed? | `by_partner` |
| … and only where the observed cells determine it? | `by_identifiable` |
| which heads' outputs carry the observed values? | `patch_negated` |
| what can be read at which layer? | `probe_cells` |
| does it need to know where a cell is? | `permuted_positions` |

All need matrices with masked cells, and a model that gives a number for each cell: of another task or model, a GPT
that writes matrices among them, they raise a UserError. Heads' patterns: `ablate_patterns` with
`completion_losses(batch)`. Components between checkpoints: `switched`.

Source: arXiv 2410.22244, section 4; `by_partner` and `by_identifiable` are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechplateau.circuits.least_squares import least_squares, pooled
from mechplateau.circuits.patching import Patch, activations, run_patched
from mechplateau.errors import UserError
from mechplateau.metrics.cells import (
    MASSES,
    attention_masses,
    fixedness,
    head_class,
    mean_pattern,
    partners,
)
from mechplateau.metrics.completion import mean_where, squared_errors
from mechplateau.tasks.matrices import identifiable, same_column, same_row
from mechplateau.tasks.matrix_completion import Matrices, MatrixCompletion

if TYPE_CHECKING:
    from mechplateau.models.encoder import Encoder


def completion_losses(batch: Matrices) -> Callable[[Tensor], dict[str, float]]:
    """A measure of outputs: loss over all, observed and masked cells (loss, loss_obs, loss_mask); NaN without any."""
    _require_cells(batch)

    def measure(outputs: Float[Tensor, "batch cell"]) -> dict[str, float]:
        found = squared_errors(outputs.detach(), batch.targets, batch.observed)
        return dict(zip(("loss", "loss_obs", "loss_mask"), map(float, found), strict=True))

    return measure


@torch.no_grad()
def copy_check(
    model: Encoder,
    task: MatrixCompletion,
    batch: Matrices,
    values: Sequence[float | None] = (None, 0.44, -0.24),
) -> pd.DataFrame:
    """Put a value's token in the masked cells: a model that copies gives just that value back.

    Args:
        model: the model.
        task: its task.
        batch: matrices.
        values: what to put there; None: MASK, whose value is 0. Choose values that came up in training.

    Returns:
        one line a value: value (NaN for MASK), loss_obs, loss_repeated (mean of (ŷ − value)² over masked cells).
    """
    lines, losses = [], completion_losses(batch)
    for value in values:
        changed = batch if value is None else batch.with_masked_as(task.grid.token(value))
        outputs = model(changed.inputs)
        meant = 0.0 if value is None else round(value * task.grid.q) / task.grid.q
        lines.append(
            {
                "value": value,
                "loss_obs": losses(outputs)["loss_obs"],
                "loss_repeated": float(mean_where((outputs - meant).square(), batch.masked)),
            }
        )
    return pd.DataFrame(lines, columns=["value", "loss_obs", "loss_repeated"]).astype(float)


def full_rank(task: MatrixCompletion, n: int, *, seed: int) -> Matrices:
    """Matrices whose cells are independent, U[−1, 1], masked as the task's: nothing but copying is to be learned."""
    generator = torch.Generator().manual_seed(seed)
    cells = 2 * torch.rand(n, task.n_cells, generator=generator) - 1
    tokens, values = task.grid.rounded(cells, check=False)
    observed = torch.rand(n, task.n_cells, generator=generator) > task.p_mask
    return Matrices(tokens.masked_fill(~observed, 0), values, observed)


@torch.no_grad()
def heads(model: Encoder, task: MatrixCompletion, batch: Matrices) -> pd.DataFrame:
    """Where each head looks, from masked and from observed queries.

    Returns:
        one line a head and kind of query: layer, head, queries ("masked" or "observed"), the masses of
        `mechplateau.metrics.cells`, fixed, class.
    """
    _require_cells(batch)
    m, n = task.size_of(batch.inputs.shape[1])
    device = batch.observed.device
    rows, columns = same_row(m, n, device), same_column(m, n, device)
    lines = []
    for layer, pattern in enumerate(_patterns(model, batch)):
        for kind, chosen in (("masked", batch.masked), ("observed", batch.observed)):
            masses = attention_masses(pattern, chosen, batch.observed, rows, columns)
            fixed = fixedness(mean_pattern(pattern, chosen))
            for head in range(pattern.shape[1]):
                own = {name: float(masses[name][head]) for name in MASSES}
                lines.append(
                    {
                        "layer": layer,
                        "head": head,
                        "queries": kind,
                        **own,
                        "fixed": float(fixed[head]),
                        "class": head_class(own, m, n),
                    }
                )
    return pd.DataFrame(lines)


@torch.no_grad()
def by_partner(model: Encoder, task: MatrixCompletion, batch: Matrices) -> pd.DataFrame:
    """The masked loss where a head's partner cell is observed, and where it is not.

    A head's partner of a query is the key on which its mean pattern over the batch is largest; it counts as observed
    where it is given and not 0 (a 0 says nothing about the rest of its row).

    Returns:
        one line a head: layer, head, share_observed (of masked cells), error_observed, error_other (mean squared error
        over E x² of the batch's masked cells), same_row, same_column (share of the queries whose partner is there).
    """
    _require_cells(batch)
    m, n = task.size_of(batch.inputs.shape[1])
    device = batch.observed.device
    rows, columns = same_row(m, n, device), same_column(m, n, device)
    errors = (model(batch.inputs) - batch.targets).square()
    unit = mean_where(batch.targets.square(), batch.masked)
    informative = batch.observed & (batch.targets != 0)
    lines = []
    for layer, pattern in enumerate(_patterns(model, batch)):
        for head, partner in enumerate(partners(mean_pattern(pattern, batch.masked))):
            defined = partner >= 0
            at = partner.clamp(min=0)
            has = informative[:, at] & defined
            query = torch.arange(len(at), device=device)
            lines.append(
                {
                    "layer": layer,
                    "head": head,
                    "share_observed": float(mean_where(has.float(), batch.masked & defined)),
                    "error_observed": float(mean_where(errors, batch.masked & has) / unit),
                    "error_other": float(mean_where(errors, batch.masked & defined & ~has) / unit),
                    "same_row": float(mean_where(rows[query, at].float(), defined)),
                    "same_column": float(mean_where(columns[query, at].float(), defined)),
                }
            )
    return pd.DataFrame(lines)


@torch.no_grad()
def by_identifiable(model: Encoder, task: MatrixCompletion, batch: Matrices) -> dict[str, float | None]:
    """The masked loss where the observed cells determine the cell, and where they do not; rank 1 only.

    Returns:
        loss_mask_identifiable, loss_mask_other, share_identifiable (of masked cells); None for another rank, and where
        there is no such cell.
    """
    names = ("loss_mask_identifiable", "loss_mask_other", "share_identifiable")
    _require_cells(batch)
    if task.rank != 1:
        return dict.fromkeys(names)
    m, n = task.size_of(batch.inputs.shape[1])
    determined = identifiable(batch.targets, batch.observed, m, n)
    errors = (model(batch.inputs) - batch.targets).square()
    found = (
        mean_where(errors, batch.masked & determined),
        mean_where(errors, batch.masked & ~determined),
        mean_where(determined.float(), batch.masked),
    )
    return {
        name: None if bool(value.isnan()) else float(value) for name, value in zip(names, found, strict=True)
    }


def negated(task: MatrixCompletion, batch: Matrices) -> Matrices:
    """−X with the same cells masked."""
    _require_cells(batch)
    tokens = torch.where(batch.observed, task.grid.n_values + 1 - batch.inputs, batch.inputs)
    return Matrices(tokens, -batch.targets, batch.observed)


@torch.no_grad()
def patch_negated(
    model: Encoder,
    task: MatrixCompletion,
    batch: Matrices,
    places: Mapping[str, Sequence[tuple[int, int]]],
    cells: Sequence[int] | None = None,
) -> pd.DataFrame:
    """Run on −X with some heads' outputs taken from the run on X: who carries the observed values?

    Args:
        model: the model.
        task: its task.
        batch: matrices X; the corrupted run sees −X with the same mask.
        places: name → (layer, head) pairs whose `hook_z` is overwritten together.
        cells: only at these cells; None: all.

    Returns:
        one line a place and kind of cell: place, cells ("masked" or "observed"), error_clean (to X), error_corrupted
        (to −X), recovery = 1 − error_clean / error_clean of the corrupted run (NaN where that is 0).
    """
    corrupted = negated(task, batch)
    outputs = {"none": model(corrupted.inputs)}
    for name, pairs in places.items():
        if not pairs:
            raise UserError(f"places: {name}: expected at least one pair (layer, head), got none")
        hooks = sorted({f"blocks.{layer}.attn.hook_z" for layer, _ in pairs})
        kept = activations(model, batch.inputs, hooks)
        patches = []
        for layer, head in pairs:
            hook = f"blocks.{layer}.attn.hook_z"
            where = None if cells is None else tuple(cells)
            patches.append(Patch(hook, kept[hook], positions=where, head=head))
        outputs[name] = run_patched(model, corrupted.inputs, patches)
    lines = []
    for kind, chosen in (("masked", batch.masked), ("observed", batch.observed)):
        whole = mean_where((outputs["none"] - batch.targets).square(), chosen)
        for name, given in outputs.items():
            error = mean_where((given - batch.targets).square(), chosen)
            lines.append(
                {
                    "place": name,
                    "cells": kind,
                    "error_clean": float(error),
                    "error_corrupted": float(mean_where((given + batch.targets).square(), chosen)),
                    "recovery": float(torch.where(whole > 0, 1 - error / whole, torch.nan)),
                }
            )
    return pd.DataFrame(lines)


@torch.no_grad()
def permuted_positions(model: Encoder, batch: Matrices, *, seed: int = 0) -> dict[str, float]:
    """The three losses with the rows of the position table in another order; the model is left as it was."""
    _require_cells(batch)
    table = model.embed.pos_embed.W_pos
    n_cells = batch.inputs.shape[1]
    order = torch.randperm(n_cells, generator=torch.Generator().manual_seed(seed)).to(table.device)

    def permute(positions: Tensor, hook: object) -> Tensor:
        return positions[:, order]

    outputs = model.run_with_hooks(batch.inputs, fwd_hooks=[("embed.hook_pos_embed", permute)])
    return completion_losses(batch)(outputs)


@torch.no_grad()
def probe_cells(
    model: Encoder, task: MatrixCompletion, *, n_train: int = 2048, n_test: int = 256, seed: int = 0
) -> pd.DataFrame:
    """Linear probes at every layer's output: what of the matrix can be read at a cell?

    Targets: `element`, the cell's own value, at masked and at observed cells; `row`, its row with 0 in masked cells;
    `svd`, the first left singular vector of the matrix, its largest entry positive (a sign must be chosen);
    `svd_outer`, that vector's outer product with itself, which needs no sign.

    Args:
        model: the model.
        task: its task; with a mixture, its largest size.
        n_train, n_test: matrices.
        seed: of the matrices.

    Returns:
        one line a layer, target and kind of cell: layer, target, cells, error, baseline (that of giving 0), cosine (NaN
        for a single number). NaN where there is no such cell to fit, or none to test.
    """
    _require_cells(task)
    generator = torch.Generator().manual_seed(seed)
    parts = [task.matrices(size, generator, torch.device("cpu")) for size in (n_train, n_test)]
    places = [layer_hook(model, layer) for layer in range(model.cfg.n_layers)]
    states = [activations(model, part.inputs, places) for part in parts]
    targets = [_probe_targets(task, part) for part in parts]
    lines = []
    for layer, place in enumerate(places):
        for name in targets[0]:
            masks: dict[str, list[Bool[Tensor, "batch cell"] | None]] = {"all": [None, None]}
            if name == "element":
                masks = {
                    "masked": [part.masked for part in parts],
                    "observed": [part.observed for part in parts],
                }
            for cells, (train_mask, test_mask) in masks.items():
                given = (
                    pooled(states[0][place], train_mask),
                    pooled(targets[0][name], train_mask),
                    pooled(states[1][place], test_mask),
                    pooled(targets[1][name], test_mask),
                )
                line: dict[str, object] = {"layer": layer, "target": name, "cells": cells}
                if all(map(len, given)):
                    fit = least_squares(*given)
                    line |= {"error": fit.error, "baseline": fit.baseline, "cosine": fit.cosine}
                lines.append(line)
    numbers = ("error", "baseline", "cosine")
    table = pd.DataFrame(lines, columns=["layer", "target", "cells", *numbers])
    return table.astype(dict.fromkeys(numbers, float))


def _require_cells(given: Matrices | MatrixCompletion) -> None:
    """Raise UserError for the batch, or the task, of something else."""
    if not isinstance(given, Matrices | MatrixCompletion):
        got = getattr(given, "name", type(given).__name__)
        raise UserError(
            f"completion: expected the task matrix_completion, and its batches, got {got}; for a GPT that writes "
            "matrices use the tools for tokens (mechplateau.circuits)"
        )


def layer_hook(model: Encoder, layer: int) -> str:
    """The hook on what a layer hands on."""
    from mechplateau.models.encoder import layer_output

    return layer_output(model.model_config, layer)


def _probe_targets(task: MatrixCompletion, batch: Matrices) -> dict[str, Float[Tensor, "batch cell out"]]:
    m, n = task.m, task.n
    matrices = batch.targets.view(-1, m, n)
    seen = (batch.targets * batch.observed).view(-1, m, n)
    left = torch.linalg.svd(matrices.double(), full_matrices=False).U[:, :, 0].float()
    largest = left.gather(1, left.abs().argmax(dim=1, keepdim=True))
    left = left * torch.where(largest < 0, -1.0, 1.0)
    outer = (left[:, :, None] * left[:, None, :]).flatten(1)
    return {
        "element": batch.targets[..., None],
        "row": seen.repeat_interleave(n, dim=1),
        "svd": left[:, None, :].expand(-1, m * n, -1),
        "svd_outer": outer[:, None, :].expand(-1, m * n, -1),
    }


def _patterns(model: Encoder, batch: Matrices) -> list[Float[Tensor, "batch head query key"]]:
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.cfg.n_layers)]
    kept = activations(model, batch.inputs, names)
    return [kept[name] for name in names]


__all__ = [
    "by_identifiable",
    "by_partner",
    "completion_losses",
    "copy_check",
    "full_rank",
    "heads",
    "negated",
    "patch_negated",
    "permuted_positions",
    "probe_cells",
]
