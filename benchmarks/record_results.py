"""Put the finished runs of a folder on record: `python benchmarks/record_results.py --runs-dir runs`.

Adds a line for each run of a recipe to `mechplateau/experiments/results/runs.csv`, which `mechplateau claims` reads; a
run that is on record already is replaced by the one found.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from mechplateau.experiments.results import KEY, found_in, merged, write_results

TABLE = Path(__file__).parents[1] / "mechplateau" / "experiments" / "results" / "runs.csv"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    parser.add_argument("--scale", choices=["paper", "small"], default="paper")
    arguments = parser.parse_args()
    if not arguments.runs_dir.is_dir():
        parser.error(f"--runs-dir {arguments.runs_dir}: no such folder")
    old = pd.read_csv(TABLE) if TABLE.is_file() else pd.DataFrame(columns=list(KEY))
    new = found_in(arguments.runs_dir, arguments.scale)
    write_results(merged(old, new), TABLE)
    print(f"{len(new)} runs of {arguments.runs_dir} are on record in {TABLE}")


if __name__ == "__main__":
    main()
