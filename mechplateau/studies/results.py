"""Results on record: one line for each seed of a recipe, with where it comes from and its numbers.

`results/runs.csv` in a study's folder holds the paper-size runs that its table of claims is made of. Columns: recipe,
seed, scale; config_hash and versions; machine; definition; then the study's numbers, empty where undefined. The numbers
of a run whose table is on record (`recorded`) are read off that table, again whenever a definition changes. A run
without one keeps the numbers that it was recorded with: its `definition` is "old definition" until it is trained
again.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import pandas as pd

from mechplateau.config import RunConfig
from mechplateau.errors import UserError
from mechplateau.files import write_text
from mechplateau.runs import Run, list_runs, unreadable_runs
from mechplateau.studies.numbers import Numbers, rounded
from mechplateau.studies.recipes import Recipes
from mechplateau.studies.recorded import read_recorded, recorded_table, table_name
from mechplateau.studies.study import Study
from mechplateau.studies.training import finished_runs

KEY = ("recipe", "seed", "scale")
_MADE_BY = ("config_hash", "mechplateau", "torch", "transformer-lens", "processor", "threads", "finished")
_FROM = (*KEY, *_MADE_BY, "definition")
OLD = "old definition"
"""Said of a line whose table is not on record: its numbers are as they were defined when it was written."""
_COMPARED = ("loss_start", "loss_end", "cos_peak", "cos_end", "repetition_peak", "apm_end")
"""Numbers that no two runs of different weights share to six digits, all of them."""
_TEXT = tuple(name for name in _FROM if name not in ("seed", "threads"))


def on_record(study: Study) -> pd.DataFrame:
    """The results that come with the study; no line where it has none."""
    text = None if study.results is None else study.results.joinpath("runs.csv")
    if text is None or not text.is_file():
        return pd.DataFrame(columns=list(KEY))
    with text.open("r", encoding="utf-8") as file:
        return read_results(file)


def read_results(file: IO[str] | Path) -> pd.DataFrame:
    """A table that `write_results` wrote; a hash or version of digits only stays text."""
    return pd.read_csv(file, dtype=dict.fromkeys(_TEXT, str))


def line_of(study: Study, recipe: str, seed: int, scale: str, run: Run) -> dict[str, Any]:
    """A finished run as a line of the table."""
    # Where the record was lost or damaged, only the numbers are known.
    last = run.sessions[-1] if run.sessions else {}
    packages = last.get("packages", {})
    origin = {
        "recipe": recipe,
        "seed": seed,
        "scale": scale,
        "config_hash": run.config.content_hash(),
        **{name: packages.get(name) for name in ("mechplateau", "torch", "transformer-lens")},
        "processor": last.get("processor"),
        "threads": last.get("threads"),
        "finished": last.get("finished"),
        "definition": OLD if study.reading is None else None,
    }
    numbers = study.numbers(run, scale)
    if study.reading is not None:
        # What can be read again is read off what is kept.
        numbers |= study.reading.numbers(recorded_table(study.reading, run.metrics, run.config), run.config)
    return origin | rounded(numbers)


def found_in(study: Study, runs_dir: Path, scale: str, seeds: Sequence[int] | None = None) -> pd.DataFrame:
    """The same table, of all finished runs of recipes in a folder, or of those with some seeds; without those that
    cannot be opened (`runs.unreadable_runs`)."""
    unreadable = unreadable_runs(runs_dir)
    if seeds is None:
        seeds = sorted({run.config.seed for run in list_runs(runs_dir)})
    lines = [
        line_of(study, name, seed, scale, run)
        for name in study.recipes
        for seed, run in finished_runs(study.recipes, name, seeds, scale, runs_dir, unreadable).items()
    ]
    return pd.DataFrame(lines, columns=None if lines else list(KEY))


def read_again(study: Study, table: pd.DataFrame, results: Path) -> pd.DataFrame:
    """The lines of a table of results with the numbers of the tables on record, as they are defined now.

    Raises:
        UserError: a table on record is another configuration's than its line.
    """
    lines: list[dict[str, Any]] = []
    for record in table.to_dict("records"):
        line = {str(name): value for name, value in record.items()}
        recipe, seed, scale = str(line["recipe"]), int(line["seed"]), str(line["scale"])
        found = read_recorded(results, table_name(recipe, seed, scale), str(line["config_hash"]))
        if found is None or study.reading is None:
            lines.append({**line, "definition": OLD})
            continue
        # Where a run starts from plays no part in how its table is read.
        config = RunConfig.parse(study.recipes[recipe].data(seed, scale))
        numbers = study.reading.numbers(found, config) | study.reading.beside(results, recipe, seed)
        lines.append({**line, **rounded(numbers), "definition": None})
    return pd.DataFrame(lines)


def merged(recipes: Recipes, old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """Both, the new line where both have one; in the order of the recipes."""
    if new.empty or old.empty:
        return old if new.empty else new
    both = pd.concat([old, new]).drop_duplicates(list(KEY), keep="last")
    order = {name: index for index, name in enumerate(recipes)}
    both = both.sort_values(
        list(KEY), key=lambda column: column.map(order) if column.name == "recipe" else column
    )
    columns = [name for name in _FROM if name in both.columns]
    columns += [name for name in both.columns if name not in _FROM]
    return both[columns].reset_index(drop=True)


def check_distinct(recipes: Recipes, table: pd.DataFrame) -> None:
    """Check that no two lines of a table are one run under two names, which would count it twice.

    Raises:
        UserError: two lines of one seed and scale have the same numbers, though neither recipe says that it is the same
            as the other (`Recipe.same_as`).
    """
    seen: dict[tuple[object, ...], str] = {}
    for line in table.to_dict("records"):
        name = str(line["recipe"])
        same = recipes[name].same_as or name
        numbers = (line.get(number) for number in _COMPARED)
        key = (line["seed"], line["scale"], *numbers)
        if any(value is None or value != value for value in key):
            continue
        other = seen.setdefault(key, same)
        if other != same:
            raise UserError(
                f"{name} and {other}, seed {line['seed']}: equal numbers from different configurations; if they are "
                "the same run, say so in the recipe (same_as)"
            )


def write_results(table: pd.DataFrame, path: Path) -> None:
    """Write a table of results as CSV; whole numbers stay whole."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    for record in table.to_dict("records"):
        writer.writerow([_cell(value) for value in record.values()])
    write_text(path, text.getvalue())


def _cell(value: Any) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else f"{value:.6g}"
    return str(value)


def summaries_of(table: pd.DataFrame, scale: str) -> dict[str, list[Numbers]]:
    """Recipe → the numbers of its runs at this scale."""
    if not set(KEY) <= set(table.columns):
        raise UserError(f"results: expected the columns {', '.join(KEY)}, got {', '.join(table.columns)}")
    chosen = table[table["scale"] == scale]
    numbers = [name for name in table.columns if name not in _FROM]
    summaries: dict[str, list[Numbers]] = {}
    for record in chosen.to_dict("records"):
        own = {name: _number(record[name]) for name in ("seed", *numbers)}
        if record.get("definition") == OLD:
            own["old_definition"] = 1.0
        summaries.setdefault(str(record["recipe"]), []).append(own)
    return summaries


def _number(value: Any) -> float | None:
    return None if value is None or value != value else float(value)
