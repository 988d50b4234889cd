"""Make a figure: train what is missing, draw, write the data beside it, and say which claims hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from mechplateau.config import RunConfig
from mechplateau.errors import UserError
from mechplateau.paths import local_path
from mechplateau.runs import Run
from mechplateau.runs.files import explained, write_atomic, write_text
from mechplateau.studies.drawing import draw
from mechplateau.studies.plateau.claims import Outcome, check_all
from mechplateau.studies.plateau.figures import FIGURES, FigureSpec, needed, waves
from mechplateau.studies.plateau.probes import ACCURACIES, SPLITS, probe_curve, probe_numbers
from mechplateau.studies.plateau.recipes import RECIPES, SCALES, Scale, checked_scale
from mechplateau.studies.plateau.summary import Numbers, summarize
from mechplateau.studies.training import Announce, ensure, finished_runs
from mechplateau.tasks import sequence_task
from mechplateau.views.configs import differing_settings


@dataclass(frozen=True)
class Made:
    """A figure that was made.

    Attributes:
        spec: which.
        files: png, pdf, parquet (the data) and json (the verdict).
        outcomes: its claims.
    """

    spec: FigureSpec
    files: tuple[Path, ...]
    outcomes: tuple[Outcome, ...]


def make_figure(
    spec: FigureSpec,
    *,
    scale: Scale = "paper",
    seeds: Sequence[int] = (0,),
    runs_dir: str | Path = Path("runs"),
    out: str | Path = Path("figures"),
    jobs: int = 1,
    threads: int = 1,
    device: str = "cpu",
    announce: Announce = lambda number: lambda result: None,
    on_probe: Callable[[int], None] = lambda step: None,
) -> Made:
    """Train what is missing, then write `figNN.png`, `.pdf`, `.parquet` and `.json` into `out`.

    The claims also look at the runs that the figure's own are compared to.

    Raises:
        UserError: a run failed, a file cannot be written, the scale is unknown, or there are no seeds.
    """
    runs_dir, out = local_path(runs_dir), local_path(out)
    checked_scale(scale)
    seeds = tuple(dict.fromkeys(seeds))
    if not seeds:
        raise UserError("seeds: expected at least one")
    with explained(out):
        out.mkdir(parents=True, exist_ok=True)
    wanted = tuple(dict.fromkeys([*spec.recipes, *compared_to(spec)]))
    options = {"runs_dir": runs_dir, "jobs": jobs, "threads": threads, "device": device}
    runs = ensure(wanted, seeds, scale, **options, announce=announce)  # type: ignore[arg-type]
    probes = None
    if "probe" in spec.panels:
        probes = [probe_curve(run, scale, jobs=jobs, on_step=on_probe) for run in runs[spec.recipes[0]]]
    stem = out / f"fig{spec.number:02d}"
    tables = {name: [run.metrics for run in runs[name]] for name in spec.recipes}
    figure = draw(spec, tables, scale, probes)
    files = (figure.save(stem.with_suffix(".png")), figure.save(stem.with_suffix(".pdf")))
    data = _data(spec, runs, probes)
    # As bytes: pyarrow takes some names (a:b, s3:x) for addresses.
    write_atomic(stem.with_suffix(".parquet"), lambda path: path.write_bytes(data.to_parquet(index=False)))
    numbers = {name: [_numbers(run, scale) for run in several] for name, several in runs.items()}
    outcomes = tuple(check_all(numbers, scale, [spec.number]))
    verdict = _verdict(spec, scale, seeds, runs, outcomes)
    write_text(stem.with_suffix(".json"), json.dumps(verdict, indent=2, ensure_ascii=False) + "\n")
    return Made(spec, (*files, stem.with_suffix(".parquet"), stem.with_suffix(".json")), outcomes)


def compared_to(spec: FigureSpec) -> tuple[str, ...]:
    """The recipes that the figure's claims look at, besides its own."""
    from mechplateau.studies.plateau.claims import CLAIMS

    own = [claim for claim in CLAIMS if claim.figure == spec.number]
    names = [name for claim in own for name in (claim.recipe, claim.over) if name is not None]
    return tuple(dict.fromkeys(name for name in names if name not in spec.recipes))


def state(spec: FigureSpec, scale: Scale, seeds: Sequence[int], runs_dir: Path) -> tuple[int, int]:
    """How many of the figure's runs are finished, and how many it needs."""
    first, second = waves([*spec.recipes, *compared_to(spec)], seeds)
    runs = [*first, *second]
    return sum(bool(finished_runs(name, [seed], scale, runs_dir)) for name, seed in runs), len(runs)


def all_recipes() -> tuple[str, ...]:
    """Every recipe that some figure shows or compares with, sources first."""
    names = [name for spec in FIGURES.values() for name in (*spec.recipes, *compared_to(spec))]
    return needed(tuple(dict.fromkeys(names)))


def reduced(specs: Iterable[FigureSpec]) -> dict[str, dict[str, tuple[str, str]]]:
    """What the small scale changes in the runs of these figures, and in how they are probed: recipe → setting → its
    values at the paper's size and at the small one, "–" where there is none."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for spec in specs:
        for name in spec.recipes:
            texts = [RunConfig.parse(RECIPES[name].data(0, scale)).yaml() for scale in SCALES]
            if "probe" in spec.panels:
                texts = [
                    text + yaml.safe_dump({"probe": SPLITS[scale]})
                    for text, scale in zip(texts, SCALES, strict=True)
                ]
            changes = {setting: (paper, small) for setting, (paper, small) in differing_settings(texts)}
            found[name] = found.get(name, {}) | changes
    return found


def _numbers(run: Run, scale: Scale) -> Numbers:
    return {
        "seed": run.config.seed,
        **summarize(run.metrics, sequence_task(run.task, "a summary")),
        **probe_numbers(run, scale),
    }


def _data(
    spec: FigureSpec, runs: dict[str, list[Run]], probes: Sequence[pd.DataFrame] | None
) -> pd.DataFrame:
    """All tables of the figure's runs, one below the other, with columns recipe, label and seed."""
    parts = []
    for name in spec.recipes:
        for index, run in enumerate(runs[name]):
            table = run.metrics
            if probes is not None:
                named = probes[index].rename(columns={kind: f"probe_{kind}" for kind in ACCURACIES})
                table = table.merge(named, on="step", how="left")
            labels = {"recipe": name, "label": RECIPES[name].what, "seed": run.config.seed}
            parts.append(pd.concat([pd.DataFrame(labels, index=table.index), table], axis=1))
    return pd.concat(parts, ignore_index=True)


def _verdict(
    spec: FigureSpec,
    scale: Scale,
    seeds: Sequence[int],
    runs: dict[str, list[Run]],
    outcomes: Sequence[Outcome],
) -> dict[str, Any]:
    return {
        "figure": spec.number,
        "title": spec.title,
        "scale": scale,
        "reduced": reduced([spec]) if scale == "small" else None,
        "seeds": list(seeds),
        "ours": spec.ours,
        "runs": {name: [run.name for run in several] for name, several in runs.items()},
        "claims": [claim_data(outcome, scale) for outcome in outcomes],
    }


def claim_data(outcome: Outcome, scale: Scale) -> dict[str, Any]:
    """A claim and what was found, as plain data."""
    low, high = outcome.claim.range(scale)
    return {
        "figure": outcome.claim.figure,
        "claim": outcome.claim.text,
        "measured": outcome.claim.measured,
        "paper": outcome.claim.paper or None,
        "low": low,
        "high": high,
        "values": list(outcome.values),
        "value": outcome.value,
        "verdict": outcome.verdict,
        "runs": outcome.runs,
        "unsolved": outcome.unsolved,
    }
