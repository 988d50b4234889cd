"""Sample learning coefficients of runs on record: `python benchmarks/record_coefficients.py lr-true:1 --runs-dir D`.

Eight checkpoints of each run, with the settings that its task gives as the paper's. Each is kept beside the run, so
that `--checkpoints 4` does the first four, and the same command goes on. What there is so far goes into the study's
`results/coefficients.csv`, one line a checkpoint, each with its verdict; the run's line in `runs.csv` gets the numbers
that claims read off them. Nothing is committed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd
from record_results import STUDIES, put_on_record

from mechplateau.development import llc_over_run
from mechplateau.errors import UserError
from mechplateau.files import write_text
from mechplateau.runs import Run
from mechplateau.studies import study_named
from mechplateau.studies.recipes import PAPER
from mechplateau.studies.results import line_of, read_results
from mechplateau.studies.stages.checkpoints import chosen_steps
from mechplateau.studies.study import Study
from mechplateau.studies.training import finished_runs

KEY = ["recipe", "seed", "step"]
LEFT_OUT = ["reason", "n", "first_half", "second_half", "lost"]


def sampled(run: Run, end: int, most: int | None) -> pd.DataFrame:
    """The coefficients of the first so many of the chosen checkpoints up to a step; None: of all eight."""
    steps = chosen_steps([step for step in run.steps if step <= end])[:most]
    return llc_over_run(run, steps, **run.task.llc_settings["published"]).table


def put(study: Study, recipe: str, seed: int, runs_dir: Path, most: int | None) -> str:
    """Put the coefficients of one run on record; returns what there is now."""
    runs = finished_runs(study.recipes, recipe, [seed], PAPER, runs_dir)
    if not runs:
        raise UserError(f"{recipe}:{seed}: no finished run of it in {runs_dir}")
    (run,) = runs.values()
    table = sampled(run, study.recipes[recipe].steps(PAPER), most)
    results = STUDIES / study.name / "results"
    lines = table.drop(columns=LEFT_OUT).assign(recipe=recipe, seed=seed)
    lines = lines[KEY + [name for name in lines if name not in KEY]]
    path = results / "coefficients.csv"
    old = pd.read_csv(path) if path.is_file() else lines.iloc[:0]
    both = pd.concat([old, lines]) if len(old) else lines
    both = both.drop_duplicates(KEY, keep="last").sort_values(KEY)
    write_text(path, both.to_csv(index=False, float_format="%.6g"))
    line = pd.DataFrame([line_of(study, recipe, seed, PAPER, run)])
    put_on_record(study, results / "runs.csv", read_results(results / "runs.csv"), line, runs_dir)
    return f"{recipe}:{seed}: {len(table)} of 8 checkpoints in {path}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", metavar="RECIPE:SEED", nargs="+")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    parser.add_argument("--checkpoints", type=int, help="the first so many; all if left out")
    asked = parser.parse_args()
    study = study_named("stages")
    for name in asked.runs:
        recipe, _, seed = name.partition(":")
        try:
            print(put(study, recipe, int(seed), asked.runs_dir, asked.checkpoints), flush=True)
        except UserError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
