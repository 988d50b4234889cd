"""The page that tells what is on record of learning coefficients on plateaus."""

from __future__ import annotations

from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import pandas as pd

from mechplateau.studies.claims import Outcome, check_all
from mechplateau.studies.development.claims import CLAIMS
from mechplateau.studies.results import KEY, read_results, summaries_of

_BEGIN = """# Learning coefficients on plateaus

Is there a setting at which the local learning coefficient λ̂ can be estimated on a loss plateau? Does it move before the
loss does, as attention does? Does it say more than the loss? These are questions of ours; the ranges of the claims were
written down before the runs. The numbers are those of `mechplateau/studies/development/results/`, and
`python benchmarks/record_development.py --tell` writes this page from them.

Chains are short (2 chains of 40 draws, and 30 at the paper's size), nβ and γ are 1000. So read each λ̂ with its verdict:
[what verdicts mean](ideas/learning-coefficient.md). `local` says that the chains stayed near the model, not that λ̂ is
well known: the chains' sd may be more than half of λ̂.

`mechplateau figure development/1 --scale small` draws λ̂ over training, `development/2` by component, `development/3`
the scan of settings; 4 and 5 are matrix completion (`--scale tiny`).
"""
_SCALES = (("mws", "small"), ("mws", "paper"), ("mc", "tiny"))
_WHAT = {"mws": "moving window sum", "mc": "matrix completion"}
_COLUMNS = ("step", "attention_progress", "loss", "mean_loss", "paired", "chain_sd", "elasticity", "verdict")
_HEADS = ("step", "attention", "L(w*)", "E[L]", "λ̂", "chain sd", "elasticity", "verdict")


def page(results: Traversable | Path) -> str:
    """The page, in Markdown, from `runs.csv`, `coefficients.csv` and `scan.csv` in a folder."""
    runs, coefficients, scan = (_read(results, name) for name in ("runs", "coefficients", "scan"))
    parts = [_BEGIN]
    for recipe, scale in _SCALES:
        summaries = summaries_of(runs, scale)
        outcomes = [one for one in check_all(CLAIMS, summaries, scale) if one.claim.recipe == recipe]
        if recipe in summaries:
            outcomes = [one for one in outcomes if one.verdict != "undefined"]
        parts.append(f"## {_WHAT[recipe].capitalize()}, {scale}: {_seeds(len(summaries.get(recipe, ())))}\n")
        heads = ("claim", "median", "range", "seeds inside", "verdict")
        parts.append(_table(heads, [_outcome(one, scale) for one in outcomes]))
        own, mine = (
            table[(table["recipe"] == recipe) & (table["scale"] == scale)] for table in (scan, coefficients)
        )
        if len(own):
            parts.append(_scan(own))
        if len(mine):
            parts.append(_over_training(mine))
    return "\n".join(parts)


def _scan(scan: pd.DataFrame) -> str:
    """How many settings have which verdict, by nβ."""
    counts = pd.crosstab(scan["n_beta"], scan["verdict"])
    rows = [
        (f"{beta:g}", *(str(count) for count in line))
        for beta, line in zip(counts.index, counts.to_numpy(), strict=True)
    ]
    where = f"at the checkpoint in the middle of the plateau, {_seeds(scan['seed'].nunique())}"
    text = f"Scan of (ε, γ, nβ) {where}: settings with each verdict.\n"
    return f"{text}\n{_table(('nβ', *counts.columns), rows)}"


def _over_training(table: pd.DataFrame) -> str:
    """λ̂ over the checkpoints of the first seed, and of its components."""
    first = table[table["seed"] == table["seed"].min()]
    whole = first[first["part"] == "whole"]
    others = [name for name in dict.fromkeys(first["part"]) if name != "whole"]
    rows = []
    for line in whole.to_dict("records"):
        same = first[first["step"] == line["step"]].set_index("part")["paired"]
        rows.append((*(_cell(line[name]) for name in _COLUMNS), *(_cell(same.get(name)) for name in others)))
    heads = (*_HEADS, *(f"λ̂ {name}" for name in others))
    return f"Over training, seed {int(first['seed'].iloc[0])}:\n\n{_table(heads, rows)}"


def _outcome(outcome: Outcome, scale: str) -> tuple[str, ...]:
    low, high = outcome.claim.range(scale)
    bounds = " ".join(
        filter(None, (None if low is None else f"≥ {low:g}", None if high is None else f"≤ {high:g}"))
    )
    return (
        outcome.claim.text,
        _cell(outcome.value),
        bounds,
        f"{outcome.inside} of {outcome.runs}",
        outcome.verdict,
    )


def _table(heads: tuple[str, ...], rows: Any) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "–" if value is None or pd.isna(value) else f"{value:.4g}"


def _seeds(count: int) -> str:
    return f"{count} seed{'s' * (count != 1)}"


def _read(results: Traversable | Path, name: str) -> pd.DataFrame:
    """A table of results; without lines where nothing is on record yet."""
    file = results / f"{name}.csv"
    if not file.is_file():
        return pd.DataFrame(columns=list(KEY))
    with file.open("r", encoding="utf-8") as opened:
        return read_results(opened)


__all__ = ["page"]
