"""Curves of the five regression models that the authors of arXiv 2402.02364 released.

Read off the analysis files of `timaeus-research/icl` (branch `submission`, commit 8a8b588), converted to CSV and not
smoothed. `step` is their index: the model has had step + 1 updates. `prediction_norm` and `icl_*` are of their second
validation set, whose noise has the variance σ⁴ (here: the columns `*_quiet`).
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

import pandas as pd

SEEDS = range(5)


@lru_cache(maxsize=1)
def released_regression() -> pd.DataFrame:
    """Columns seed, step, mse, prediction_norm, icl_1_4, icl_4_8, ridge_gap, weight_norm, llc, embed_share_min,
    ln_final_mean; 190 rows a seed."""
    file = resources.files("mechplateau.studies.stages") / "released" / "lr.csv"
    with file.open("r", encoding="utf-8") as opened:
        return pd.read_csv(opened)


def released_value(seed: int, step: int, column: str) -> float | None:
    """What the released model of this seed has at this index; None where there is none."""
    table = released_regression()
    found = table[(table["seed"] == seed) & (table["step"] == step)][column]
    return float(found.iloc[0]) if len(found) else None


__all__ = ["SEEDS", "released_regression", "released_value"]
