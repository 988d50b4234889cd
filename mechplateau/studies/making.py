"""Make a figure: train what is missing, draw, write the data beside it, and say which claims hold."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from mechplateau.config import RunConfig
from mechplateau.errors import UserError
from mechplateau.files import explained, local_path, write_atomic, write_text
from mechplateau.progress import Progress
from mechplateau.runs import Run, load_run
from mechplateau.studies.claims import Outcome, check_all
from mechplateau.studies.drawing import draw
from mechplateau.studies.figures import Figure, Material
from mechplateau.studies.recipes import PAPER, checked_scale, needed, waves
from mechplateau.studies.study import Study
from mechplateau.studies.training import ensure, finished_runs
from mechplateau.training.executor import Executor, Job, job_function, submit
from mechplateau.training.loop import torch_threads
from mechplateau.views.configs import differing_settings


@dataclass(frozen=True)
class FigureResult:
    """A figure that was made.

    Attributes:
        figure: which.
        files: png, pdf, parquet (the data) and json (the verdict).
        outcomes: its claims.
    """

    figure: Figure
    files: tuple[Path, ...]
    outcomes: tuple[Outcome, ...]


def make_figure(
    study: Study,
    figure: Figure,
    *,
    scale: str = PAPER,
    seeds: Sequence[int] = (0,),
    runs_dir: str | Path = Path("runs"),
    out: str | Path = Path("figures"),
    jobs: int | None = 1,
    threads: int = 1,
    device: str = "cpu",
    executor: Executor | None = None,
    progress: Progress | str | None = None,
) -> FigureResult:
    """Train what is missing, then write `STUDY-ID.png`, `.pdf`, `.parquet` and `.json` into `out`.

    `progress` makes bars, as tqdm does (`mechplateau.progress`). An `executor`, as for `sweep`, also measures what the
    figure wants to know of its runs' checkpoints, a job a run.

    The claims also look at the runs that the figure's own are compared to.

    Raises:
        UserError: a run failed, a file cannot be written, the scale is unknown, or there are no seeds.
    """
    runs_dir, out = local_path(runs_dir), local_path(out)
    wanted = tuple(dict.fromkeys([*figure.recipes, *compared_to(study, figure)]))
    checked_scale(scale, [study.recipes[name] for name in wanted])
    seeds = tuple(dict.fromkeys(seeds))
    if not seeds:
        raise UserError("seeds: expected at least one")
    with explained(out):
        out.mkdir(parents=True, exist_ok=True)
    options = {"runs_dir": runs_dir, "jobs": jobs, "threads": threads, "device": device, "executor": executor}
    runs = ensure(study.recipes, wanted, seeds, scale, **options, progress=progress)  # type: ignore[arg-type]
    own = {name: runs[name] for name in figure.recipes}
    measured = {}
    if figure.checkpoints is not None:
        measure = figure.checkpoints.measure
        # A study or a measure of a notebook's is not known elsewhere.
        if executor is not None and type(figure.checkpoints).__module__.startswith("mechplateau."):
            _measure_ahead(study, figure, scale, own, jobs, threads, executor)
        measured = {
            name: [measure(run, scale, jobs=jobs or 1, progress=progress) for run in several]
            for name, several in own.items()
        }
    tables = {name: [run.metrics for run in several] for name, several in own.items()}
    material = Material(scale, tables, measured, own)
    stem = out / f"{study.name}-{figure.id}"
    png, pdf, parquet, verdict = (Path(f"{stem}.{kind}") for kind in ("png", "pdf", "parquet", "json"))
    sheet = draw(figure, study.recipes, material, study.claims)
    sheet.save(png)
    sheet.save(pdf)
    data = figure.data(material) if figure.data is not None else _data(study, material)
    # As bytes: pyarrow takes some names (a:b, s3:x) for addresses.
    write_atomic(parquet, lambda path: path.write_bytes(data.to_parquet(index=False)))
    numbers = {
        name: [{"seed": run.config.seed, **study.numbers(run, scale)} for run in several]
        for name, several in runs.items()
    }
    outcomes = tuple(check_all(study.claims, numbers, scale, [figure.id]))
    found = _verdict(study, figure, scale, seeds, runs, outcomes)
    write_text(verdict, json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    return FigureResult(figure, (png, pdf, parquet, verdict), outcomes)


def _measure_ahead(
    study: Study,
    figure: Figure,
    scale: str,
    runs: Mapping[str, Sequence[Run]],
    jobs: int | None,
    threads: int,
    executor: Executor,
) -> None:
    """Have an executor measure each run's checkpoints: what it finds is kept beside the run, and read there."""
    folders = dict.fromkeys(run.path for several in runs.values() for run in several)
    given = {"study": study.name, "figure": figure.id, "scale": scale}
    results = submit(
        [Job("measure_checkpoints", given, folder, threads) for folder in folders],
        workers=jobs,
        executor=executor,
    )
    for result in results:
        if result.outcome == "failed":
            raise UserError(f"{result.job.folder}: {result.message}; rerun the same command to resume")


@job_function("measure_checkpoints")
def _measure_checkpoints(folder: Path, threads: int, *, study: str, figure: str, scale: str) -> None:
    """Measure the kept checkpoints of a folder's run, for a figure."""
    from mechplateau.studies import study_named

    wanted = study_named(study).figure(figure).checkpoints
    if wanted is not None:
        with torch_threads(threads):
            wanted.measure(load_run(folder), scale, jobs=1)


def compared_to(study: Study, figure: Figure) -> tuple[str, ...]:
    """The recipes that the figure's claims look at, besides its own."""
    own = [claim for claim in study.claims if claim.figure == figure.id]
    names = [name for claim in own for name in (claim.recipe, claim.over) if name is not None]
    return tuple(dict.fromkeys(name for name in names if name not in figure.recipes))


def state(study: Study, figure: Figure, scale: str, seeds: Sequence[int], runs_dir: Path) -> tuple[int, int]:
    """How many of the figure's runs are finished, and how many it needs."""
    first, second = waves(study.recipes, [*figure.recipes, *compared_to(study, figure)], seeds)
    runs = [*first, *second]
    finished = sum(bool(finished_runs(study.recipes, name, [seed], scale, runs_dir)) for name, seed in runs)
    return finished, len(runs)


def cost(study: Study, figure: Figure, scale: str, seeds: Sequence[int]) -> int:
    """Updates of all runs that the figure shows, at most."""
    both = waves(study.recipes, figure.recipes, seeds)
    return sum(study.recipes[name].steps(scale) for wave in both for name, _ in wave)


def all_recipes(study: Study) -> tuple[str, ...]:
    """Every recipe that some figure shows or compares with, sources first."""
    names = [
        name for figure in study.figures.values() for name in (*figure.recipes, *compared_to(study, figure))
    ]
    return needed(study.recipes, tuple(dict.fromkeys(names)))


def reduced(study: Study, figures: Iterable[Figure], scale: str) -> dict[str, dict[str, tuple[str, str]]]:
    """What a scale changes in the runs of these figures, and in how their checkpoints are measured: recipe → setting →
    its values at the paper's scale and at this one, "–" where there is none."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for figure in figures:
        for name in figure.recipes:
            texts = [RunConfig.parse(study.recipes[name].data(0, one)).yaml() for one in (PAPER, scale)]
            if figure.checkpoints is not None:
                settings = [figure.checkpoints.settings(one) for one in (PAPER, scale)]
                texts = [
                    text + (yaml.safe_dump(_plain(own)) if own else "")
                    for text, own in zip(texts, settings, strict=True)
                ]
            changes = {setting: (paper, other) for setting, (paper, other) in differing_settings(texts)}
            found[name] = found.get(name, {}) | changes
    return found


def _plain(settings: Any) -> Any:
    """Mappings as dictionaries, which YAML can write."""
    return json.loads(json.dumps(settings, default=dict))


def _data(study: Study, material: Material) -> pd.DataFrame:
    """All tables of the figure's runs, one below the other, with columns recipe, label and seed."""
    parts = []
    for name, tables in material.tables.items():
        for index, (run, table) in enumerate(zip(material.runs[name], tables, strict=True)):
            if name in material.measured:
                table = table.merge(material.measured[name][index], on="step", how="left")
            labels = {"recipe": name, "label": study.recipes[name].what, "seed": run.config.seed}
            parts.append(pd.concat([pd.DataFrame(labels, index=table.index), table], axis=1))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _verdict(
    study: Study,
    figure: Figure,
    scale: str,
    seeds: Sequence[int],
    runs: dict[str, list[Run]],
    outcomes: Sequence[Outcome],
) -> dict[str, Any]:
    return {
        "study": study.name,
        "figure": figure.id,
        "title": figure.title,
        "scale": scale,
        "reduced": None if scale == PAPER else reduced(study, [figure], scale),
        "seeds": list(seeds),
        "ours": figure.ours,
        "runs": {name: [run.name for run in several] for name, several in runs.items()},
        "claims": [claim_data(outcome, scale) for outcome in outcomes],
    }


def claim_data(outcome: Outcome, scale: str) -> dict[str, Any]:
    """A claim and what was found, as plain data."""
    claim = outcome.claim
    low, high = claim.range(scale)
    return {
        "id": claim.id,
        "figure": claim.figure,
        "claim": claim.text,
        "measured": claim.measured,
        "paper": claim.paper or None,
        "source": claim.source,
        "low": low,
        "high": high,
        "values": list(outcome.values),
        "value": outcome.value,
        "verdict": outcome.verdict,
        "runs": outcome.runs,
        "inside": outcome.inside,
        "seeds": claim.seeds,
        "unsolved": outcome.unsolved,
        "changed": [str(change) for change in claim.changes],
    }
