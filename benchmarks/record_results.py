"""Put the finished runs of a folder on record: `python benchmarks/record_results.py --runs-dir runs`.

Adds a line for each recipe and seed to `mechplateau/studies/STUDY/results/runs.csv`, which `mechplateau claims` reads;
a run that is on record already is replaced by the one found; seeds that no claim asks for are left out. The plateau
paper's claims are told anew in `docs/claims.md`, and counted in the README. Beside a line, the run's table is kept
(`results/tables/`), where the study says how to read one: `--again`
reads the numbers off the tables once more, as they are defined now, and needs no runs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from mechplateau.files import write_text
from mechplateau.studies import study_named
from mechplateau.studies.claims import check_all
from mechplateau.studies.claims_told import claims_page, counts
from mechplateau.studies.missing import asked_for
from mechplateau.studies.recorded import packed, recorded_table, table_name, write_recorded
from mechplateau.studies.results import (
    KEY,
    check_distinct,
    found_in,
    merged,
    read_again,
    read_results,
    summaries_of,
    write_results,
)
from mechplateau.studies.study import Study
from mechplateau.studies.training import finished_runs

README = Path(__file__).parents[1] / "README.md"
PAGE = Path(__file__).parents[1] / "docs" / "claims.md"
BEGIN, END = "<!-- claims -->\n", "<!-- /claims -->"
STUDIES = Path(__file__).parents[1] / "mechplateau" / "studies"


def keep_tables(study: Study, lines: pd.DataFrame, runs_dir: Path, results: Path) -> None:
    """Put the tables of these lines' runs on record."""
    if study.reading is None:
        return
    for line in lines.to_dict("records"):
        recipe, seed, scale = line["recipe"], line["seed"], line["scale"]
        (run,) = finished_runs(study.recipes, recipe, [seed], scale, runs_dir).values()
        table = recorded_table(study.reading, run.metrics, run.config)
        write_recorded(results, table_name(recipe, seed, scale), packed(table, line["config_hash"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    parser.add_argument("--study", default="plateau")
    parser.add_argument("--scale", default="paper")
    parser.add_argument("--again", action="store_true", help="no new runs: read the tables on record again")
    arguments = parser.parse_args()
    if not arguments.again and not arguments.runs_dir.is_dir():
        parser.error(f"--runs-dir {arguments.runs_dir}: no such folder")
    study = study_named(arguments.study)
    path = STUDIES / study.name / "results" / "runs.csv"
    path.parent.mkdir(exist_ok=True)
    old = read_results(path) if path.is_file() else pd.DataFrame(columns=list(KEY))
    new = old.iloc[:0] if arguments.again else found_in(study, arguments.runs_dir, arguments.scale)
    put_on_record(study, path, old, new, arguments.runs_dir)
    print(f"{len(new)} lines from runs of {arguments.runs_dir} are on record in {path}")


def put_on_record(study: Study, path: Path, old: pd.DataFrame, new: pd.DataFrame, runs_dir: Path) -> None:
    """Write lines and tables of new runs beside those that are there, and tell the claims anew.

    Raises:
        UserError: two lines of different configurations have the same numbers, and no recipe says that it is the same.
    """
    asked = asked_for(study)
    new = new[[seed < asked[recipe] for recipe, seed in zip(new["recipe"], new["seed"], strict=True)]]
    keep_tables(study, new, runs_dir, path.parent)
    both = read_again(study, merged(study.recipes, old, new), path.parent)
    check_distinct(study.recipes, both)
    write_results(both, path)
    if study.name == "plateau":
        outcomes = check_all(study.claims, summaries_of(both, "paper"))
        write_between(PAGE, claims_page(study, outcomes))
        write_between(README, f"{counts(outcomes)} [Each with its set-up, range and seeds](docs/claims.md).")


def write_between(file: Path, text: str) -> None:
    """Put a text between the marks of a file."""
    before, _, rest = file.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    write_text(file, f"{before}{BEGIN}{text}\n{END}{after}")


if __name__ == "__main__":
    main()
