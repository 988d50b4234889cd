"""Learning coefficients over checkpoints as a table, with their chains and what they say beside the loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from mechplateau.development.affine import AffineCheck, affine_check
from mechplateau.development.estimator import COLUMNS
from mechplateau.errors import UserError

_WHOLE = ("lost", "n", "draws", "burn_in", "chains", "seed")

Found = tuple[dict[str, Any], dict[str, np.ndarray]]
"""Numbers and arrays of one checkpoint."""


class LlcTable:
    """Learning coefficients over checkpoints.

    Attributes:
        table: one line a checkpoint: step, and the columns of `Estimate.row`; verdict "chain lost" with null numbers
            where every chain went to infinity.
        traces: step → losses `[chain, draw]`, burn-in included; distances likewise.
        n_beta: nβ.
        parts: the weights that moved, as they were asked for; None: all.
        affine: whether λ̂ is nothing but the loss, see `affine_check`.
    """

    def __init__(
        self,
        table: pd.DataFrame,
        traces: dict[int, dict[str, np.ndarray]],
        n_beta: float,
        parts: list[Any] | None = None,
    ):
        self.table, self.traces, self.n_beta, self.parts = table, traces, n_beta, parts

    @property
    def affine(self) -> AffineCheck:
        # λ̂ as published, not the paired one: it is what the check is about.
        return affine_check(
            self.table["llc"].to_numpy(float, na_value=np.nan).tolist(),
            self.table["loss"].to_numpy(float, na_value=np.nan).tolist(),
            self.n_beta,
        )

    @property
    def beside_the_loss(self) -> str:
        """What the check against the loss says, in a sentence."""
        check = self.affine
        if check.r is None or check.saturated is None:
            return "Too few checkpoints to hold λ̂ against the loss."
        number = f"r = {check.r:.4f}, slope {check.slope:.4g} against −nβ = {-self.n_beta:.4g}"
        if check.saturated:
            return (
                f"Over these checkpoints λ̂ is a straight line in the loss ({number}): it says nothing more."
            )
        return f"Over these checkpoints λ̂ is not just the loss ({number})."

    def running(self, step: int) -> np.ndarray:
        """λ̂ of each chain over its draws so far, `[chain, draw]`, as the paper plots it.

        Raises:
            UserError: no such step, or every chain was lost there.
        """
        line = self.table[self.table["step"] == step]
        if line.empty or "losses" not in self.traces.get(step, {}):
            raise UserError(f"step {step}: no chains here; there are {sorted(self.traces)}")
        kept = self.traces[step]["losses"][:, int(line["burn_in"].iloc[0]) :]
        means = np.cumsum(kept, axis=1) / np.arange(1, kept.shape[1] + 1)
        return self.n_beta * (means - float(line["loss"].iloc[0]))


def table_of(found: Mapping[int, Found], settings: Mapping[str, Any]) -> LlcTable:
    """A table of notes by step, which were made with these settings."""
    lines = [{"step": step, **_numbers(numbers)} for step, (numbers, _) in found.items()]
    traces = {step: dict(arrays) for step, (_, arrays) in found.items()}
    return LlcTable(_frame(lines), traces, float(settings["n_beta"]), settings["parts"])


def _numbers(numbers: dict[str, Any]) -> dict[str, Any]:
    texts = ("verdict", "reason")
    return {
        name: float(value) if isinstance(value, str) and name not in texts else value
        for name, value in numbers.items()
    }


def _frame(lines: list[dict[str, Any]]) -> pd.DataFrame:
    table = pd.DataFrame(lines).reindex(columns=["step", *COLUMNS])
    kinds = {
        column: "string" if column in ("verdict", "reason") else "Int64" if column in _WHOLE else "Float64"
        for column in table.columns
        if column != "step"
    }
    return table.astype(kinds)


__all__ = ["Found", "LlcTable", "table_of"]
