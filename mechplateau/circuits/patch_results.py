"""Results of a sweep of patches: the table, and how much of the donor's difference each patch recovers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechplateau.circuits.gradients import LINEARIZED
from mechplateau.circuits.scoring import MEASURES, standard_error
from mechplateau.errors import UserError

Key = tuple[str, int | None, int | None]
"""Hook, head, position."""

Each = np.ndarray
"""Loss, accuracy and logit difference of each sequence, `[3, batch]`, summed over the scored rows."""

SAME = 1e-6
"""Donor and recipient that differ by no more than this in a measure have no difference to recover in it; nor have those
whose mean difference is within two of its standard errors."""


@dataclass(frozen=True)
class PatchResult:
    """Outcome of a sweep.

    Attributes:
        table: one line a patch: hook, head (null: all), position (null: all), the three measures of the patched model
            (means over sequences and scored positions), `recovered_…` of each: (patched − recipient) /
            (donor − recipient), so 0 where the patch does nothing and 1 where it does all that the donor does; null
            where donor and recipient do not differ by more than two standard errors; `…_se` of each: the standard error
            over sequences of patched − recipient; n: how many sequences.
        recipient, donor: the measures without any patch.
        rank_correlation: with method "both", Spearman's ρ over the lines of the table between exact and estimated
            `loss` and `logit_difference`; None where one of them is constant, or without "both".
    """

    table: pd.DataFrame
    recipient: dict[str, float]
    donor: dict[str, float]
    rank_correlation: dict[str, float | None] = field(default_factory=dict)

    def grid(self, measure: str = "recovered_loss") -> pd.DataFrame:
        """One measure as hook (and head) × position.

        Raises:
            UserError: no such measure.
        """
        known = list(self.table.columns[3:])
        if measure not in known:
            raise UserError(f"measure: expected one of {', '.join(known)}, got {measure!r}")
        labels = [
            hook if head is None or head is pd.NA else f"{hook} head {head}"
            for hook, head in zip(self.table["hook"], self.table["head"], strict=True)
        ]
        columns = self.table["position"].astype(object).where(self.table["position"].notna(), "all")
        frame = pd.DataFrame({"hook": labels, "position": columns, measure: self.table[measure]})
        ordered = frame.pivot(index="hook", columns="position", values=measure)
        return ordered.loc[list(dict.fromkeys(labels)), list(dict.fromkeys(columns))]


def means_over_rows(parts: Sequence[Each], n_rows: int) -> Each:
    """Means over the rows, all sequences behind one another."""
    return np.concatenate(parts, axis=1) / n_rows


def result_of(
    totals: Mapping[Key, Sequence[Each]],
    estimates: Mapping[Key, Sequence[Each]],
    base: Each,
    best: Each,
    n_rows: int,
) -> PatchResult:
    """The table of a sweep.

    Args:
        totals: what was measured of each patch, in parts of some sequences, summed over rows.
        estimates: the estimated changes, means over rows; none where nothing was estimated.
        base, best: recipient's and donor's measures, means over rows, `[3, batch]`.
        n_rows: scored rows.
    """
    keys = list(totals or estimates)
    estimated = np.full((len(keys), *base.shape), np.nan)
    if estimates:
        changes = np.stack([np.concatenate(estimates[key], axis=1) for key in keys])
        estimated[:, [MEASURES.index(name) for name in LINEARIZED]] = changes
        estimated += base
    patched = np.stack([means_over_rows(totals[key], n_rows) for key in keys]) if totals else estimated
    means, errors = patched.mean(axis=-1), standard_error(patched - base, axis=-1)
    columns: dict[str, object] = {
        "hook": [hook for hook, _, _ in keys],
        "head": pd.array([head for _, head, _ in keys], dtype="Int64"),
        "position": pd.array([position for _, _, position in keys], dtype="Int64"),
        **{name: means[:, i] for i, name in enumerate(MEASURES)},
    }
    for i, name in enumerate(MEASURES):
        columns[f"recovered_{name}"] = recovered(means[:, i], base[i], best[i])
    columns |= {f"{name}_se": errors[:, i] for i, name in enumerate(MEASURES)}
    correlations: dict[str, float | None] = {}
    if totals and estimates:
        for name in LINEARIZED:
            exact, estimate = means[:, MEASURES.index(name)], estimated.mean(axis=-1)[:, MEASURES.index(name)]
            columns[f"{name}_gradient"] = estimate
            correlation = pd.Series(exact).rank().corr(pd.Series(estimate).rank())
            correlations[name] = None if np.isnan(correlation) else float(correlation)
    return PatchResult(
        pd.DataFrame({**columns, "n": base.shape[1]}),
        dict(zip(MEASURES, base.mean(axis=1).tolist(), strict=True)),
        dict(zip(MEASURES, best.mean(axis=1).tolist(), strict=True)),
        correlations,
    )


def recovered(
    patched: Float[np.ndarray, " patches"],
    recipient: Float[np.ndarray, " batch"],
    donor: Float[np.ndarray, " batch"],
) -> pd.api.extensions.ExtensionArray:
    """(patched − recipient) / (donor − recipient), means over sequences.

    Null where recipient and donor do not differ: their mean difference is within two of its standard errors, or within
    `SAME`. Otherwise the ratio would be noise divided by noise.
    """
    difference = donor - recipient
    noise = np.nan_to_num(2 * float(standard_error(difference)))
    if not abs(difference.mean()) > max(SAME, noise):
        return pd.array([None] * len(patched), dtype="Float64")
    own = recipient.mean()
    return pd.array((patched - own) / (donor.mean() - own), dtype="Float64")


__all__ = ["SAME", "Each", "Key", "PatchResult", "means_over_rows", "recovered", "result_of"]
