"""Which runs a study's claims still wait for, and which of them is worth most.

A claim needs as many seeds of its recipe, and of the one it is compared to, as decide it. A run is worth the claims
that wait for it, each the less the more seeds it has, for an hour of its time.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from mechplateau.config import RunConfig
from mechplateau.models.config import ModelConfig
from mechplateau.studies.recipes import PAPER, Recipe
from mechplateau.studies.results import OLD
from mechplateau.studies.study import Study
from mechplateau.tasks import SequenceTask

_STEP_SECONDS = 0.45
"""Of a step of the paper's moving window sum, everything measured, on one thread of a quiet machine."""
_ITS_SIZE = 256 * 32 * 256**2
"""Sequences, times tokens, times the width squared, of that step."""


@dataclass(frozen=True)
class Missing:
    """A run that is not on record.

    Attributes:
        recipe, seed: which.
        claims: ids of the claims that wait for it.
        hours: of one thread that it takes, estimated; with a recipe that starts from another's run, without that one.
        worth: see the module; larger is better.
        old: whether it is on record with numbers of an old definition.
    """

    recipe: str
    seed: int
    claims: tuple[str, ...]
    hours: float
    worth: float
    old: bool


def asked_for(study: Study) -> dict[str, int]:
    """Recipe → how many seeds its claims need; one where none does."""
    asked = dict.fromkeys(study.recipes, 1)
    for claim in study.claims:
        for name in filter(None, (claim.recipe, claim.over)):
            asked[name] = max(asked[name], claim.seeds)
    return asked


def missing_runs(study: Study, table: pd.DataFrame) -> list[Missing]:
    """What is not on record at the paper's size, or only with old definitions; most worth first."""
    there = table[table["scale"] == PAPER]
    lines = {(str(line["recipe"]), int(line["seed"])): line for line in there.to_dict("records")}
    found = []
    for name, seeds in asked_for(study).items():
        own = [line for (other, _), line in lines.items() if other == name]
        took = [int(line["steps"]) for line in own if "steps" in line]
        hours = hours_of(study.recipes[name], max(took, default=study.recipes[name].steps(PAPER)))
        done = sum(line.get("definition") != OLD for line in own)
        for seed in range(seeds):
            old = (name, seed) in lines
            if old and lines[name, seed].get("definition") != OLD:
                continue
            ids = tuple(c.id for c in study.claims if name in (c.recipe, c.over) and seed < c.seeds)
            # What an old definition gave is known, if not well; what no claim needs is worth little.
            worth = max(len(ids), 0.1) * (0.5 if old else 1.0) / (1 + done) / hours
            found.append(Missing(name, seed, ids, hours, worth, old))
    return sorted(found, key=lambda run: (-run.worth, run.recipe, run.seed))


def hours_of(recipe: Recipe, steps: int) -> float:
    """Hours of one thread that so many steps of a recipe take at the paper's size, by the size of its products."""
    config = RunConfig.parse(recipe.data(0, PAPER))
    task, model = config.task, config.model
    if not isinstance(task, SequenceTask) or not isinstance(model, ModelConfig):
        return steps * _STEP_SECONDS / 3600
    size = config.training.batch_size * task.n_input * model.n_layers * model.d_model**2
    return steps * _STEP_SECONDS * size / _ITS_SIZE / 3600
