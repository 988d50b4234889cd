"""What the plateau paper's claims still wait for, and the next of it: `python benchmarks/next_record.py`.

    python benchmarks/next_record.py                      lists the runs that are not on record, most worth first
    python benchmarks/next_record.py --run --runs-dir D   trains the first of them, and puts it on record
    python benchmarks/next_record.py --run mws-c10:1      trains this one
    python benchmarks/next_record.py --minutes 20 --run   stops after so long; rerun to resume

A run is trained on one thread, in this process; Ctrl-C and `--minutes` save it, and rerunning the command
resumes it. What it starts from is trained first. Once finished, its line and its table are in the study's `results/`,
and `docs/claims.md` and the README tell it; nothing is committed. A run that is stopped leaves nothing there.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import pandas as pd
from record_results import STUDIES, put_on_record

from mechplateau.errors import UserError
from mechplateau.studies import study_named
from mechplateau.studies.missing import Missing, missing_runs
from mechplateau.studies.recipes import PAPER, config_of, waves
from mechplateau.studies.results import line_of, read_results
from mechplateau.studies.study import Study
from mechplateau.studies.training import finished_runs
from mechplateau.training import train


def told(runs: list[Missing]) -> str:
    """The list: run, hours, claims that wait for it."""
    lines = [
        f"{f'{run.recipe}:{run.seed}':<32}{run.hours:6.2f} h  {'old definition' if run.old else 'not yet run':<15}"
        f"{len(run.claims):3} claims"
        for run in runs
    ]
    hours = sum(run.hours for run in runs)
    return "\n".join([*lines, f"{len(runs)} runs, about {hours:.1f} hours of one thread"])


def chosen(runs: list[Missing], name: str | None) -> tuple[str, int]:
    """Recipe and seed of the first, or of the one that is named as in the list.

    Raises:
        UserError: there is no such run in the list.
    """
    for run in runs:
        if name in (None, f"{run.recipe}:{run.seed}"):
            return run.recipe, run.seed
    raise UserError(f"--run {name}: expected one of the list, as mws-c10:1" if name else "nothing is missing")


def record(study: Study, recipe: str, seed: int, runs_dir: Path, path: Path) -> None:
    """Train a run, after what it starts from, and put it on record."""
    first, second = waves(study.recipes, [recipe], [seed])
    source = study.recipes[recipe].source(seed)
    wanted = [run for run in (*first, *second) if run in ((recipe, seed), source)]
    for name, number in wanted:
        print(f"{name}:{number}", flush=True)
        train(config_of(study.recipes, name, number, PAPER, runs_dir), runs_dir=runs_dir, threads=1)
    signal.alarm(0)  # what is trained is put on record, and not half of it
    (run,) = finished_runs(study.recipes, recipe, [seed], PAPER, runs_dir).values()
    new = pd.DataFrame([line_of(study, recipe, seed, PAPER, run)])
    put_on_record(study, path, read_results(path), new, runs_dir)
    print(f"{recipe}:{seed} is on record in {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--run", nargs="?", const="", metavar="RECIPE:SEED", help="train it, or the first of the list"
    )
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    parser.add_argument("--minutes", type=int, help="stop after so long; the same command resumes")
    asked = parser.parse_args()
    study = study_named("plateau")
    path = STUDIES / study.name / "results" / "runs.csv"
    runs = missing_runs(study, read_results(path))
    if asked.run is None:
        print(told(runs))
        return
    try:
        recipe, seed = chosen(runs, asked.run or None)
        if asked.minutes:
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
            signal.alarm(60 * asked.minutes)
        record(study, recipe, seed, asked.runs_dir, path)
    except KeyboardInterrupt:
        sys.exit("saved; rerun the same command to resume")
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
