"""Hold the finished runs of a folder against those on record: `python benchmarks/against_record.py --runs-dir runs`.

For runs trained again because the arithmetic changed: each recipe and seed that is in both, side by side, with
the lowest and highest value of all seeds on record.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from mechplateau.studies import study_named
from mechplateau.studies.results import KEY, found_in, on_record

PLATEAU_NUMBERS = (
    "onset", "drop", "solved_at", "partial_at", "plateau_level", "cos_peak", "cos_peak_at", "repetition_peak",
    "entropy_low", "alpha_peak", "apm_start", "apm_half", "apm_end", "loss_end", "accuracy_end",
)  # fmt: skip
"""Of `mechplateau.studies.plateau.summary`, whose docstring defines them."""


def numbers_of(study: str, record: pd.DataFrame, found: pd.DataFrame) -> list[str]:
    """The numbers to compare: of another study than the plateau's, every one that both tables have."""
    if study == "plateau":
        return list(PLATEAU_NUMBERS)
    return [
        name for name in record.select_dtypes("number").columns if name in found.columns and name not in KEY
    ]


def side_by_side(record: pd.DataFrame, found: pd.DataFrame, numbers: list[str]) -> list[str]:
    """Lines of a Markdown table: a line for each recipe, number and seed that is in both."""
    lines = [
        "| recipe | seed | number | on record | now | all seeds on record |",
        "|---|---|---|---|---|---|",
    ]
    both = record.merge(found, on=list(KEY), suffixes=("_then", "_now"))
    for row in both.to_dict("records"):
        seeds = record[(record["recipe"] == row["recipe"]) & (record["scale"] == row["scale"])]
        for name in numbers:
            then, now = row[f"{name}_then"], row[f"{name}_now"]
            if pd.isna(then) and pd.isna(now):
                continue
            span = f"{_shown(seeds[name].min())} to {_shown(seeds[name].max())}"
            lines.append(
                f"| {row['recipe']} | {row['seed']} | {name} | {_shown(then)} | {_shown(now)} | {span} |"
            )
    return lines


def _shown(value: float | None) -> str:
    return "undefined" if value is None or pd.isna(value) else f"{value:.6g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--study", default="plateau")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    parser.add_argument("--scale", choices=["paper", "small"], default="paper")
    parser.add_argument("--recipe", help="this one alone")
    parser.add_argument("--numbers", nargs="+", metavar="NAME", help="these alone")
    asked = parser.parse_args()
    if not asked.runs_dir.is_dir():
        parser.error(f"--runs-dir {asked.runs_dir}: no such folder")
    study = study_named(asked.study)
    found, record = found_in(study, asked.runs_dir, asked.scale), on_record(study)
    if asked.recipe is not None:
        found = found[found["recipe"] == asked.recipe]
    lines = side_by_side(record, found, asked.numbers or numbers_of(asked.study, record, found))
    if len(lines) == 2:
        parser.error(
            f"--runs-dir {asked.runs_dir}: no finished run that is on record at the {asked.scale} scale"
        )
    print("\n".join(lines))


if __name__ == "__main__":
    main()
