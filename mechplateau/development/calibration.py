"""A scan of ε, γ and nβ at one set of weights: which settings give an estimate that means something, if any do.

Source: the grid of the paper's figure A.4 (arXiv 2402.02364); the verdicts are ours.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import closing
from itertools import product
from typing import Any

import pandas as pd

from mechplateau.development.curvature import hessian
from mechplateau.development.data import Batches
from mechplateau.development.learning_coefficient import StepSizeWarning, llc
from mechplateau.development.traces import AllChainsLost
from mechplateau.development.weights import Losses, Model, Parts
from mechplateau.errors import UserError
from mechplateau.progress import Progress, bars


def calibrate(
    model: Model,
    losses: Losses,
    data: Batches | Sequence[Any] | None,
    *,
    step_sizes: Sequence[float],
    localizations: Sequence[float],
    n_betas: Sequence[float],
    parts: Parts | None = None,
    progress: Progress | str | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Estimate at every combination of settings. All see the same batches and noise.

    Args:
        model, losses, data, parts: as for `llc`.
        step_sizes, localizations, n_betas: the values of ε, γ and nβ.
        progress: makes a bar of combinations, as tqdm does (`mechplateau.progress`); "stderr": tqdm's own;
            None: silent.
        settings: what else `llc` takes.

    Returns:
        One line a combination, in the order nβ, γ, ε: the columns of `Estimate.row()`. Where all chains were lost the
        verdict is "chain lost" and the numbers are null.

    Raises:
        UserError: an empty list, or settings that make no sense.
    """
    grid = list(product(n_betas, localizations, step_sizes))
    if not grid:
        raise UserError("step_sizes, localizations and n_betas: expected at least one value each")
    if settings.get("step_check", True) and settings.get("h_max") is None:
        # Curvature at w* depends on none of the three, so it is measured once.
        settings["h_max"] = hessian(
            model, losses, data, top=1, probes=0, parts=parts, tolerance=1e-2
        ).eigenvalues[0]
    lines: list[dict[str, Any]] = []
    with closing(bars(progress)(total=len(grid), desc="settings")) as bar:
        for n_beta, localization, step_size in grid:
            chosen: dict[str, Any] = {"step_size": step_size, "localization": localization, "n_beta": n_beta}
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", StepSizeWarning)  # it is in the table
                    lines.append(llc(model, losses, data, parts=parts, **chosen, **settings).row())
            except AllChainsLost as error:
                lines.append({**chosen, "verdict": "chain lost", "reason": str(error)})
            bar.update(1)
    table = pd.DataFrame(lines)
    first = ["n_beta", "localization", "step_size", "verdict"]
    return table[[*first, *(column for column in table.columns if column not in first)]]
