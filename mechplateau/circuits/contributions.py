"""What attention adds on average: by sets of entries, and by token and place.

The vector that a set S of entries adds at row i, in the mean over sequences, all heads together, is

    c_S(i) = mean_b Σ_h Σ_{j in S(b, i)} A_bhij v_bjh W_O[h]

Two sets whose vectors correlate with −1 at a ratio of 1 cancel: neither, taken away alone, shows what comes through
(zeroing one leaves a constant that was balanced before). A single key whose value is the same everywhere, such as a
separator, can cancel along that value only, and has one free number a row, its weight: `balance_over_rows` reports it.

Cost: one forward. Memory: the map, `[batch, head, query, key]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechplateau.circuits.patching import activations
from mechplateau.circuits.scoring import checked_rows, inputs_of
from mechplateau.circuits.sum_terms import Summands, summands
from mechplateau.errors import UserError
from mechplateau.schema import whole_number

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

    from mechplateau.tasks import Task

_ROUNDING = 1e-10
"""Of a mean square."""
Entries = Mapping[int, Bool[Tensor, "#batch query key"]]


@torch.no_grad()
def mean_contributions(
    model: HookedTransformer,
    tokens: Int[Tensor, "batch seq"],
    first: Entries,
    second: Entries,
    *,
    rows: Sequence[int] | None = None,
) -> pd.DataFrame:
    """Compare what two sets of entries add on average.

    Args:
        model: any HookedTransformer whose heads write straight to the residual stream.
        tokens: whole sequences.
        first, second: layer → bool `[batch or 1, query, key]`, as `target_entries` and `token_entries` make.
        rows: queries; None: all.

    Returns:
        one line a layer (of both sets) and row: layer, row, correlation (Pearson, over the coordinates of the two
        vectors), ratio (length of the second / of the first), cancelled (1 − length of their sum / of the first; 1:
        all of it). Null where a vector is 0, or constant.

    Raises:
        UserError: no layer in both, a mask of another shape than the map, or rows that are not there.
    """
    chosen, found = _means(model, tokens, first, second, rows)
    lines = []
    for layer, pair in found:
        for row, one, other in zip(chosen, *pair, strict=True):
            lines.append((layer, row, *_compared(one, other)))
    names = ["correlation", "ratio", "cancelled"]
    table = pd.DataFrame(lines, columns=["layer", "row", *names])
    return table.astype(dict.fromkeys(names, "Float64"))


@torch.no_grad()
def balance_over_rows(
    model: HookedTransformer,
    tokens: Int[Tensor, "batch seq"],
    first: Entries,
    second: Entries,
    *,
    rows: Sequence[int] | None = None,
) -> pd.DataFrame:
    """Does the second set make up, row by row, for what the first adds along the second's own direction?

    With u the direction that the second set adds along (the first right singular vector of its c(i) over the rows; of a
    key whose value is one vector, that value as the head writes it), x_i = ⟨c_first(i), u⟩ and y_i = ⟨c_second(i), u⟩:

        correlation = corr(x, y)      slope = cov(x, y) / var(x)      left = var(x + y) / var(x)      over rows

    −1, −1 and 0: their sum is the same in all rows. A constant that is left, a bias can take away.

    Args:
        model: any HookedTransformer whose heads write straight to the residual stream.
        tokens: whole sequences.
        first, second: as for `mean_contributions`.
        rows: queries, at least 3; None: all.

    Returns:
        one line a layer (of both sets): layer, correlation, slope, left, rows (how many). Null where x or y is the same
        in all rows, or not a number.

    Raises:
        UserError: what `mean_contributions` refuses, or fewer than 3 rows.
    """
    chosen, found = _means(model, tokens, first, second, rows)
    if len(chosen) < 3:
        raise UserError(f"rows: expected at least 3 to see how they differ, got {len(chosen)}")
    names = ["correlation", "slope", "left"]
    lines = [(layer, *_balance(*pair), len(chosen)) for layer, pair in found]
    table = pd.DataFrame(lines, columns=["layer", *names, "rows"])
    return table.astype(dict.fromkeys(names, "Float64"))


def _means(
    model: HookedTransformer, tokens: Tensor, first: Entries, second: Entries, rows: Sequence[int] | None
) -> tuple[tuple[int, ...], list[tuple[int, list[Float[Tensor, "row d_model"]]]]]:
    """The rows, and for each layer of both sets what each of them adds there, in the mean."""
    inputs = inputs_of(model, tokens)
    batch, length = inputs.shape
    chosen = checked_rows(rows, length)
    for entries in (first, second):
        if not isinstance(entries, Mapping) or not all(isinstance(mask, Tensor) for mask in entries.values()):
            raise UserError(f"entries: expected layer → bool tensor, got {type(entries).__name__}")
    layers = sorted(set(first) & set(second))
    if not layers or not all(0 <= layer < model.cfg.n_layers for layer in layers):
        raise UserError(
            f"entries: expected a layer below {model.cfg.n_layers} in both sets, got {sorted(first)} and "
            f"{sorted(second)}"
        )
    found = []
    for layer in layers:
        pattern, values = _read(model, inputs, layer)
        pair = []
        for mask in (first[layer], second[layer]):
            fits = mask.dim() == 3 and mask.shape[0] in (1, batch) and mask.shape[1:] == (length, length)
            if not fits or mask.dtype != torch.bool:
                raise UserError(
                    f"entries: expected a bool mask [1 or {batch}, {length}, {length}] in layer {layer}, got "
                    f"{mask.dtype} {list(mask.shape)}"
                )
            kept = torch.where(mask.to(pattern.device)[:, None], pattern, 0.0)
            read = (kept @ values).mean(dim=0)[:, list(chosen)]
            pair.append(torch.einsum("hqd,hdm->qm", read, model.blocks[layer].attn.W_O.double()))
        found.append((layer, pair))
    return tuple(chosen), found


def token_entries(
    model: HookedTransformer, tokens: Int[Tensor, "batch seq"], token: int
) -> dict[int, Bool[Tensor, "batch query key"]]:
    """Every entry whose key is this token (a separator, say), in all layers, for `mean_contributions`.

    Raises:
        UserError: the token is in none of what the model sees.
    """
    inputs = inputs_of(model, tokens)
    found = inputs == whole_number(token, "token")
    if not bool(found.any()):
        raise UserError(f"token: expected one that the model sees in these sequences, got {token}")
    mask = found[:, None].expand(-1, inputs.shape[1], -1)
    return dict.fromkeys(range(model.cfg.n_layers), mask)


@torch.no_grad()
def token_contributions(
    model: HookedTransformer, tokens: Int[Tensor, "batch seq"], task: Task, *, layer: int = 0
) -> Float[Tensor, "place residue d_model"]:
    """What each number adds, in the mean, at each place of the sums that it is a term of.

    Args:
        model: any HookedTransformer whose heads write straight to the residual stream.
        tokens: whole sequences, some hundred.
        task: one of sums modulo p (see `summands`).
        layer: whose attention.

    Returns:
        float64: over all sequences and outputs whose j-th term is the number, the mean of Σ_h A v W_O of that entry,
        minus the mean over numbers; NaN for a number that occurs nowhere.

    Raises:
        UserError: what `summands` refuses, or no such layer.
    """
    found = summands(task, tokens)
    if not 0 <= whole_number(layer, "layer") < model.cfg.n_layers:
        raise UserError(f"layer: expected one below {model.cfg.n_layers}, got {layer}")
    inputs = inputs_of(model, tokens)
    pattern, values = _read(model, inputs, layer)
    weights = pattern[:, :, list(found.rows)].cpu()
    written = torch.einsum("bhkd,hdm->bhkm", values, model.blocks[layer].attn.W_O.double()).cpu()
    return torch.stack([_of_place(weights, written, found, j) for j in range(found.terms.shape[2])])


def place_symmetry(contributions: Float[Tensor, "place residue d_model"]) -> float | None:
    """How alike tokens add at the places of a sum: over pairs of places, with F the table of a place (a row a number),

        mean of 2 ⟨F, G⟩ / (‖F‖² + ‖G‖²)

    1: a token adds the same everywhere; 0: in other directions; −1: the opposite. Numbers that are not known at both
    places are left out. None where nothing is added.
    """
    found = []
    for i in range(len(contributions)):
        for j in range(i):
            one, other = contributions[i], contributions[j]
            known = ~(one.isnan().any(dim=1) | other.isnan().any(dim=1))
            one, other = one[known], other[known]
            size = float(one.square().sum() + other.square().sum())
            if size > 0:
                found.append(2 * float((one * other).sum()) / size)
    return sum(found) / len(found) if found else None


def _read(model: HookedTransformer, inputs: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """The pattern `[batch, head, query, key]` and each head's values `[batch, head, key, d_head]`, float64."""
    prefix = f"blocks.{layer}.attn"
    kept = activations(model, inputs, [f"{prefix}.hook_pattern", f"{prefix}.hook_v"])
    pattern, values = (kept[f"{prefix}.{name}"].double() for name in ("hook_pattern", "hook_v"))
    values = values.transpose(1, 2)
    groups = pattern.shape[1] // values.shape[1]  # heads that share their values
    return pattern, values.repeat_interleave(groups, dim=1)


def _of_place(weights: Tensor, written: Tensor, found: Summands, place: int) -> Tensor:
    """`[p, d_model]`."""
    at = found.places[:, :, place]
    weight = weights.gather(3, at[:, None, :, None].expand(-1, weights.shape[1], -1, 1))
    total = torch.zeros(found.p, written.shape[3], dtype=torch.float64)
    for head in range(written.shape[1]):
        vectors = written[:, head].gather(1, at[..., None].expand(-1, -1, written.shape[3]))
        added = vectors * weight[:, head]
        total.index_add_(0, found.terms[:, :, place].flatten(), added.flatten(0, 1))
    counts = torch.bincount(found.terms[:, :, place].flatten(), minlength=found.p)
    means = total / torch.where(counts > 0, counts, torch.nan)[:, None]
    return means - means[counts > 0].mean(dim=0)


def _compared(one: Tensor, other: Tensor) -> tuple[float | None, float | None, float | None]:
    """Correlation, ratio of lengths and share that is cancelled."""
    a, b = one - one.mean(), other - other.mean()
    size, length = float(a.norm() * b.norm()), float(one.norm())
    correlation = float(a @ b) / size if size > 0 else None
    if not length > 0:
        return correlation, None, None
    return correlation, float(other.norm()) / length, 1 - float((one + other).norm()) / length


def _balance(
    first: Float[Tensor, "row d_model"], second: Float[Tensor, "row d_model"]
) -> tuple[float | None, float | None, float | None]:
    """See `balance_over_rows`."""
    if not bool(torch.isfinite(torch.cat([first, second])).all()):
        return None, None, None
    along = torch.linalg.svd(second, full_matrices=False).Vh[0]
    x, y = first @ along, second @ along
    of_x, of_y = (float(z.var()) for z in (x, y))
    # Below float32's rounding of what was added, rows do not differ.
    if not (of_x > _ROUNDING * float(x.square().mean()) and of_y > _ROUNDING * float(y.square().mean())):
        return None, None, None
    together = float(((x - x.mean()) * (y - y.mean())).sum()) / (len(x) - 1)
    return together / (of_x * of_y) ** 0.5, together / of_x, float((x + y).var()) / of_x


__all__ = [
    "balance_over_rows",
    "mean_contributions",
    "place_symmetry",
    "token_contributions",
    "token_entries",
]
