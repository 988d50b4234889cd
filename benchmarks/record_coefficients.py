"""Sample learning coefficients of a run on record: `python benchmarks/record_coefficients.py lr-true:1 --runs-dir D`.

Eight checkpoints of the run, with the settings that its task gives as the paper's. Each is kept beside the run, so that
`--checkpoints 4` does the first four, and the same command goes on. What there is so far goes into the study's
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
from mechplateau.studies.training import finished_runs

KEY = ["recipe", "seed", "step"]
LEFT_OUT = ["reason", "n", "first_half", "second_half", "lost"]


def sampled(run: Run, end: int, most: int | None) -> pd.DataFrame:
    """The coefficients of the first so many of the chosen checkpoints up to a step; None: of all eight."""
    steps = chosen_steps([step for step in run.steps if step <= end])[:most]
    return llc_over_run(run, steps, **run.task.llc_settings["published"]).table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", metavar="RECIPE:SEED")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    parser.add_argument("--checkpoints", type=int, help="the first so many; all if left out")
    asked = parser.parse_args()
    study = study_named("stages")
    recipe, _, seed = asked.run.partition(":")
    runs = finished_runs(study.recipes, recipe, [int(seed)], PAPER, asked.runs_dir)
    if not runs:
        sys.exit(f"{asked.run}: no finished run of it in {asked.runs_dir}")
    (run,) = runs.values()
    try:
        table = sampled(run, study.recipes[recipe].steps(PAPER), asked.checkpoints)
    except UserError as error:
        sys.exit(str(error))
    results = STUDIES / study.name / "results"
    lines = table.drop(columns=LEFT_OUT).assign(recipe=recipe, seed=int(seed))
    lines = lines[KEY + [name for name in lines if name not in KEY]]
    path = results / "coefficients.csv"
    old = pd.read_csv(path) if path.is_file() else lines.iloc[:0]
    both = pd.concat([old, lines]) if len(old) else lines
    both = both.drop_duplicates(KEY, keep="last").sort_values(KEY)
    write_text(path, both.to_csv(index=False, float_format="%.6g"))
    line = pd.DataFrame([line_of(study, recipe, int(seed), PAPER, run)])
    put_on_record(study, results / "runs.csv", read_results(results / "runs.csv"), line, asked.runs_dir)
    print(f"{asked.run}: {len(table)} of 8 checkpoints in {path}")


if __name__ == "__main__":
    main()
