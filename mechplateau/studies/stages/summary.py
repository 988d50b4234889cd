"""The numbers of a run that claims are about, from its table. Undefined is None.

| number | of | what |
|---|---|---|
| {column}_{step} | regression | ridge_gap, weight_norm, mse_above_zero, prediction_norm(_quiet), icl_4_8(_quiet) at |
| | | an index of the released curves |
| {column}_off_{step} | regression | distance of ridge_gap or weight_norm from the released model of the same seed |
| llc_r, llc_slope | both | of λ̂ on the loss over checkpoints: correlation, and slope as a multiple of −nβ |
| llc_over_trivial | both | smallest over checkpoints of E[L] along the chains minus the trivial loss |
| llc_off | regression | largest distance of λ̂ from the released one of the same seed and index |
| bigram_at, bigram_low | text | step of the smallest bigram excess, and that excess |
| bigram_rise | text | bigram excess at the end minus bigram_low |
| delta_then, delta_end | text | loss that leaving positions out costs, at bigram_at and at the end |
| gram_gain_{n} | text | how many times larger gram_score_n is at the end than at bigram_at |
| previous_token, prefix_B | text | the best head's score at the end |
| prefix_A_of_best | text | prefix A of the head with the best prefix B, at the end |
| composition_K, composition_K_before | text | largest K-composition at the end, and at bigram_at |
| repeat_gain, icl | text | at the end |
| induction_at | text | first measured step at which the repeat gain is above half of its largest, if that is > 2 |
| induction_took | text | from a tenth of that to nine tenths of it, steps |
| prefix_lead | text | induction_at minus the step at which the best prefix B is above half of its largest value |
| cos_drop, repetition_drop | text | repeat_cos and repeat_repetition at half of induction_at, minus the end's |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np
import pandas as pd

from mechplateau.config import RunConfig
from mechplateau.development.affine import affine_check
from mechplateau.development.of_runs import kept_llcs
from mechplateau.runs import Run
from mechplateau.studies.numbers import Numbers
from mechplateau.studies.stages.released import released_value
from mechplateau.tasks.in_context_regression import InContextRegression

INDICES = (984, 1465, 2843, 5050, 7192, 12221, 40292)
"""Indices of the released curves at which numbers are read off."""
_READ = (
    "ridge_gap",
    "weight_norm",
    "mse_above_zero",
    "prediction_norm",
    "prediction_norm_quiet",
    "icl_4_8",
    "icl_4_8_quiet",
)
COMPARED = ("ridge_gap", "weight_norm")
"""What is held against the released model of the same seed."""
_READ_OF_TEXT = (
    "bigram_excess",
    "position_delta",
    "gram_score_3",
    "gram_score_4",
    "composition_K_max",
    "repeat_gain",
    "repeat_cos",
    "repeat_repetition",
    "icl",
)
_OF_COEFFICIENTS = ("llc_r", "llc_slope", "llc_over_trivial", "llc_off")
_LEARNED = 2.0
"""Repeat gain, in nats, from which on a model copies from the first half."""


def numbers(run: Run, scale: str) -> Numbers:
    """What is read off a finished run of this study, and off the learning coefficients that were sampled on it."""
    return numbers_of_table(run.metrics, run.config) | coefficient_numbers(run)


def coefficient_numbers(run: Run) -> Numbers:
    """Of λ̂ at the run's checkpoints with the paper's settings; all None where fewer than three were sampled."""
    wanted = run.task.llc_settings["published"]
    found = next((kept.table for kept in kept_llcs(run) if _sampled_so(kept.table, wanted)), None)
    if found is None:
        return dict.fromkeys(_OF_COEFFICIENTS)
    released = run.config.seed if isinstance(run.task, InContextRegression) else None
    return _of_coefficients(found, wanted["n_beta"], released)


def coefficients_on_record(results: Traversable | Path, recipe: str, seed: int) -> Numbers:
    """The same, of the coefficients that are on record for a run (`coefficients.csv`); nothing where none are."""
    file = results / "coefficients.csv"
    if not file.is_file():
        return {}
    with file.open("r", encoding="utf-8") as opened:
        table = pd.read_csv(opened)
    table = table[(table["recipe"] == recipe) & (table["seed"] == seed)]
    if table.empty:
        return {}
    return _of_coefficients(table, float(table["n_beta"].iloc[0]), seed if recipe.startswith("lr-") else None)


def _of_coefficients(table: pd.DataFrame, n_beta: float, released: int | None) -> Numbers:
    """Of one run's table; compared with the released model of a seed, if there is one."""
    llcs, losses = (table[name].to_numpy(float, na_value=np.nan).tolist() for name in ("llc", "loss"))
    affine = affine_check(llcs, losses, n_beta)
    if affine.slope is None:
        return dict.fromkeys(_OF_COEFFICIENTS)
    others = [
        None if released is None else released_value(released, int(step), "llc") for step in table["step"]
    ]
    off = [
        abs(float(own) - other)
        for own, other in zip(table["paired"], others, strict=True)
        if other is not None and not pd.isna(own)
    ]
    return {
        "llc_r": affine.r,
        "llc_slope": affine.slope / -n_beta,
        "llc_over_trivial": float((table["mean_loss"] - table["trivial_loss"]).min()),
        "llc_off": max(off, default=None),
    }


def _sampled_so(table: pd.DataFrame, settings: Mapping[str, float]) -> bool:
    return all(bool((table[name] == settings[name]).all()) for name in settings if name in table)


def numbers_of_table(table: pd.DataFrame, config: RunConfig) -> Numbers:
    """The same, of a run's table alone."""
    if isinstance(config.task, InContextRegression):
        return regression_numbers(table, config.seed)
    return language_numbers(table)


def columns_read(config: RunConfig, names: Sequence[str]) -> list[str]:
    """The columns that these numbers look at."""
    wanted = _READ if isinstance(config.task, InContextRegression) else _READ_OF_TEXT
    return [name for name in names if name in wanted or name.startswith(("previous_token_", "prefix_"))]


def regression_numbers(table: pd.DataFrame, seed: int) -> Numbers:
    """Of a run of regression in context on the paper's schedule."""
    found: Numbers = {}
    for step in INDICES:
        for column in _READ:
            found[f"{column}_{step}"] = at(table, step, column)
        for column in COMPARED:
            own, other = at(table, step, column), released_value(seed, step, column)
            found[f"{column}_off_{step}"] = None if own is None or other is None else abs(own - other)
    return found


def language_numbers(table: pd.DataFrame) -> Numbers:
    """Of a run of text with an attention-only model."""
    end = int(table["step"].iloc[-1])
    excess = table["bigram_excess"].to_numpy(dtype=float) if "bigram_excess" in table else np.array([])
    low = int(table["step"].iloc[int(np.nanargmin(excess))]) if np.isfinite(excess).any() else None
    best = best_heads(table, "prefix_B")
    found: Numbers = {
        "bigram_at": low,
        "bigram_low": at(table, low, "bigram_excess"),
        "bigram_rise": _minus(at(table, end, "bigram_excess"), at(table, low, "bigram_excess")),
        "delta_then": at(table, low, "position_delta"),
        "delta_end": at(table, end, "position_delta"),
        "previous_token": largest(table, end, "previous_token_"),
        "prefix_B": largest(table, end, "prefix_B_"),
        "prefix_A_of_best": None if best is None else at(table, end, best.replace("prefix_B", "prefix_A")),
        "composition_K": at(table, end, "composition_K_max"),
        "composition_K_before": at(table, low, "composition_K_max"),
        "repeat_gain": at(table, end, "repeat_gain"),
        "icl": at(table, end, "icl"),
    }
    for n in (3, 4):
        after, before = at(table, end, f"gram_score_{n}"), at(table, low, f"gram_score_{n}")
        found[f"gram_gain_{n}"] = after / before if after is not None and before else None
    return found | _induction(table, end)


def _induction(table: pd.DataFrame, end: int) -> Numbers:
    """When the model begins to copy, and what its heads and hidden states do around it."""
    gain = _curve(table, ["repeat_gain"])
    learned = gain is not None and float(np.nanmax(gain)) > _LEARNED
    if gain is None or not learned:
        return dict.fromkeys(("induction_at", "induction_took", "prefix_lead", "cos_drop", "repetition_drop"))
    prefix = _curve(table, [name for name in table.columns if name.startswith("prefix_B_")])
    steps = table["step"].to_numpy()
    when = first_above(steps, gain, 0.5)
    prefix_when = None if prefix is None else first_above(steps, prefix, 0.5)
    begin, done = first_above(steps, gain, 0.1), first_above(steps, gain, 0.9)
    before = None if when is None else int(steps[np.argmin(np.abs(steps - when / 2))])
    return {
        "induction_at": when,
        "induction_took": _minus(done, begin),
        "prefix_lead": _minus(when, prefix_when),
        "cos_drop": _minus(at(table, before, "repeat_cos"), at(table, end, "repeat_cos")),
        "repetition_drop": _minus(
            at(table, before, "repeat_repetition"), at(table, end, "repeat_repetition")
        ),
    }


def at(table: pd.DataFrame, step: int | None, column: str) -> float | None:
    """The column's value in the row of this step; None where there is no such row, column or value."""
    if step is None or column not in table.columns:
        return None
    found = table[table["step"] == step][column].dropna()
    return float(found.iloc[0]) if len(found) else None


def largest(table: pd.DataFrame, step: int, prefix: str) -> float | None:
    """The largest value in the row of this step, of the columns whose names begin so."""
    values = [at(table, step, name) for name in table.columns if name.startswith(prefix)]
    defined = [value for value in values if value is not None]
    return max(defined) if defined else None


def best_heads(table: pd.DataFrame, kind: str) -> str | None:
    """The column of the head with the largest score at the end."""
    names = [name for name in table.columns if name.startswith(f"{kind}_")]
    ends = {name: at(table, int(table["step"].iloc[-1]), name) for name in names}
    defined = {name: value for name, value in ends.items() if value is not None}
    return max(defined, key=lambda name: defined[name]) if defined else None


def first_above(steps: np.ndarray, values: np.ndarray, share: float) -> int | None:
    """The first step at which the values are above this share of their largest; None where they never are."""
    above = np.flatnonzero(values > share * np.nanmax(values))
    return int(steps[above[0]]) if len(above) else None


def _curve(table: pd.DataFrame, columns: Sequence[str]) -> np.ndarray | None:
    """The largest of these columns at each step; None where nothing is defined."""
    there = [name for name in columns if name in table.columns]
    if not there or not table[there].notna().any().any():
        return None
    return table[there].max(axis=1).to_numpy(dtype=float)


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


__all__ = [
    "COMPARED",
    "INDICES",
    "at",
    "best_heads",
    "coefficient_numbers",
    "coefficients_on_record",
    "columns_read",
    "first_above",
    "language_numbers",
    "largest",
    "numbers",
    "numbers_of_table",
    "regression_numbers",
]
