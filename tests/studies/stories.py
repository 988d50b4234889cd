"""Runs that never were, as tables: what claims say happens in them, happens late, or does not happen.

For every claim the tests look for a story that contradicts it. A claim of a number that is contrary in none of them
needs a story of its own here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

STEPS = np.arange(401)
ENTROPY, RHO = 2.25, 0.06
"""Of the data."""
PROBED = {
    "probe_plateau": 0.2,
    "probe_end": 0.95,
    "probe_shuffled": 0.06,
    "probe_selectivity": 0.02,
    "probe_linear_end": 0.12,
    "probe_linear_neurons_end": 1.0,
}
"""What `probes` adds to the numbers of a table."""


def _between(first: int, last: int) -> np.ndarray:
    return (first <= STEPS) & (last > STEPS)


def _loss(leaves: int, at: int) -> np.ndarray:
    """Falls to 2.6 by `leaves`, stays there, and falls to 1.3 at `at`."""
    return np.where(at > STEPS, np.maximum(2.6, 2.93 - 0.33 * STEPS / leaves), 1.3)


def told(
    loss: np.ndarray,
    solved: int,
    *,
    early: int = 50,
    rho: np.ndarray | float = RHO,
    cos: np.ndarray | float = 0.07,
    entropy: np.ndarray | float = ENTROPY,
    alpha: np.ndarray | float = 0.1,
    counted: int = 10**6,
    progress: np.ndarray | None = None,
) -> pd.DataFrame:
    """A table with these columns, and all others that a claim may look at."""
    accuracy = np.where(solved > STEPS, 0.1, 1.0)
    apm = np.where(solved > STEPS, 0.08, 0.75) if progress is None else progress
    columns: dict[str, np.ndarray | float] = {
        "step": STEPS,
        "loss": loss,
        "accuracy": accuracy,
        "repetition": rho,
        "repetition_data": RHO,
        "entropy": entropy,
        "entropy_data": ENTROPY,
        "alpha_1": alpha,
        "count_check": (counted <= STEPS) * 1.0,
        "count_check_all": (counted <= STEPS) * 1.0,
        "cos_final": cos,
        **{f"cos_L0_{place}": cos for place in ("resid_pre", "resid_mid", "resid_post")},
        "apm_window": apm,
    }
    for r in range(16):
        columns[f"loss_out_{r}"] = np.where(early > STEPS, 2.8, 0.1)
        columns[f"accuracy_out_{r}"] = accuracy
    return pd.DataFrame({name: np.broadcast_to(value, STEPS.shape) for name, value in columns.items()})


def as_claimed(
    stretch: float = 1.0, cos: float = 0.97, rho: float = 0.7, places: float | None = None
) -> pd.DataFrame:
    """A plateau with all its signs, from step 60 to 165, or a longer one."""
    drop = int(165 * stretch)
    on = _between(20, drop - 25)
    table = told(
        _loss(int(60 * min(stretch, 1)), drop),
        drop,
        rho=np.where(on, rho - 0.001 * STEPS / stretch, RHO),
        cos=np.where(_between(20, drop - 10), cos - 0.0001 * np.abs(STEPS - 80 * stretch), 0.06),
        entropy=np.where(on, 0.7, ENTROPY),
        alpha=np.where(STEPS > 20, 0.97, 0.1),
        counted=int(60 * stretch),
        progress=np.where(drop > STEPS, 0.08 + 0.4 * STEPS / drop, 0.75),
    )
    return table if places is None else table.assign(cos_L0_resid_pre=places)


def at_the_start() -> pd.DataFrame:
    """A plateau, and signs of it that are gone before it begins: an odd initialization, say."""
    odd = STEPS < 6
    return told(
        _loss(60, 165),
        165,
        rho=np.where(odd, 0.9, RHO),
        cos=np.where(odd, 0.98, 0.07),
        entropy=np.where(odd, 0.0, ENTROPY),
        alpha=np.where(STEPS >= 165, 0.99, 0.1),
        counted=163,
    )


def late() -> pd.DataFrame:
    """Everything that should come early comes with the drop, and attention loses half of what it had."""
    on = _between(140, 175)
    progress = np.where(STEPS < 40, 0.08 + 0.3 * STEPS / 40, np.where(STEPS < 165, 0.08, 0.75))
    return told(
        _loss(60, 165),
        165,
        early=160,
        rho=np.where(on, 0.7, RHO),
        cos=np.where(on, 0.97, 0.07),
        entropy=np.where(on, 0.7, ENTROPY),
        alpha=np.where(STEPS >= 165, 0.99, 0.1),
        counted=163,
        progress=progress,
    )


def gradual() -> pd.DataFrame:
    """The loss falls steadily and early, and nothing is repeated or collapses on its way."""
    return told(np.maximum(1.3, 2.93 - 1.63 * STEPS / 60), 45, early=44, progress=0.08 + 0.67 * STEPS / 400)


def stuck() -> pd.DataFrame:
    """A plateau that never ends, fully collapsed."""
    loss = np.maximum(2.6, 2.93 - 0.33 * STEPS / 60)
    signs = {"rho": 0.99, "cos": 0.995, "entropy": 0.1, "alpha": 0.99, "progress": 0.08 + 0 * STEPS}
    return told(loss, 10**6, **signs)  # type: ignore[arg-type]


def untouched() -> pd.DataFrame:
    """Nothing moves."""
    return told(np.full(401, 2.93), 10**6)


STORIES: dict[str, Callable[[], pd.DataFrame]] = {
    "as claimed": as_claimed,
    "as claimed, for longer": lambda: as_claimed(2.2),
    "as claimed, for shorter": lambda: as_claimed(0.78),
    "as claimed, for much shorter": lambda: as_claimed(0.45),
    "half as strong": lambda: as_claimed(cos=0.5, rho=0.5),
    "nearly as strong": lambda: as_claimed(cos=0.8, places=0.1),
    "at the start": at_the_start,
    "late": late,
    "gradual": gradual,
    "alike at first": lambda: gradual().assign(cos_final=np.where(STEPS < 45, 0.5, 0.95), alpha_1=0.97),
    "stuck": stuck,
    "untouched": untouched,
}
