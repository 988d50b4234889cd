"""Put a run's learning coefficients on record: `python benchmarks/record_development.py mws --seed 0 --runs-dir runs`.

Trains the run where it is not there, estimates what the study of learning coefficients is about, and writes
`mechplateau/studies/development/results/`: a line in `runs.csv` (which the claims are judged by), a line for each
checkpoint and component in `coefficients.csv`, and one for each setting in `scan.csv`. It can be stopped at any time:
the same command goes on. With `--tell`, no run: `docs/plateau-coefficients.md` is told anew from what is on record.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from record_results import STUDIES, put_on_record

from mechplateau.studies import study_named
from mechplateau.studies.development.coefficients import ORDER, estimated, scanned
from mechplateau.studies.development.told import page
from mechplateau.studies.recipes import PAPER
from mechplateau.studies.results import KEY, line_of, read_results, write_results
from mechplateau.studies.training import ensure

STUDY = study_named("development")
RESULTS = STUDIES / STUDY.name / "results"
DOCS = Path(__file__).parents[1] / "docs" / "plateau-coefficients.md"


def replaced(path: Path, new: pd.DataFrame) -> pd.DataFrame:
    """The lines of a file with those of the same run taken out, and the new ones below."""
    if not path.is_file():
        return new
    old = read_results(path)
    line = new.iloc[0]
    same = (old["recipe"] == line["recipe"]) & (old["seed"] == line["seed"]) & (old["scale"] == line["scale"])
    both = pd.concat([old[~same].astype(object), new.astype(object)])
    return both.sort_values(list(KEY), kind="stable").reset_index(drop=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", nargs="?", choices=list(STUDY.recipes))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", default="small")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    parser.add_argument("--tell", action="store_true", help="only write the page")
    arguments = parser.parse_args()
    if arguments.tell:
        DOCS.write_text(page(RESULTS), encoding="utf-8")
        print(f"wrote {DOCS}")
        return
    if arguments.recipe is None:
        parser.error(f"expected a recipe: {', '.join(STUDY.recipes)}")
    name, seed, scale = arguments.recipe, arguments.seed, arguments.scale
    ((run,),) = ensure(STUDY.recipes, [name], [seed], scale, runs_dir=arguments.runs_dir).values()
    of = {"recipe": name, "seed": seed, "scale": scale}
    tables = {"coefficients": estimated(run, scale, progress="stderr").assign(**of)[list(ORDER)]}
    scan = scanned(run, progress="stderr") if scale != PAPER else None
    if scan is not None:
        scan = scan.assign(**of, step=run.phases.during)
        first = [*of, "step"]
        tables["scan"] = scan[[*first, *(column for column in scan if column not in first)]]
    RESULTS.mkdir(exist_ok=True)
    for table, lines in tables.items():
        write_results(replaced(RESULTS / f"{table}.csv", lines), RESULTS / f"{table}.csv")
    path = RESULTS / "runs.csv"
    old = read_results(path) if path.is_file() else pd.DataFrame(columns=list(KEY))
    line = pd.DataFrame([line_of(STUDY, name, seed, scale, run)])
    put_on_record(STUDY, path, old, line, arguments.runs_dir)
    print(line.to_string())


if __name__ == "__main__":
    main()
