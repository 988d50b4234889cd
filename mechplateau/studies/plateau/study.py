"""The plateau paper as a study."""

from __future__ import annotations

from importlib import resources

import pandas as pd

from mechplateau.config import RunConfig
from mechplateau.runs import Run
from mechplateau.studies.numbers import Numbers
from mechplateau.studies.plateau.claims import CLAIMS, RETIRED
from mechplateau.studies.plateau.figures import FIGURES, LANGUAGE_MODELS
from mechplateau.studies.plateau.probes import probe_numbers
from mechplateau.studies.plateau.recipes import RECIPES, SETUP
from mechplateau.studies.plateau.summary import columns_read, summarize
from mechplateau.studies.recorded import Reading
from mechplateau.studies.study import Study
from mechplateau.tasks import sequence_task


def numbers(run: Run, scale: str) -> Numbers:
    """What `summary` reads off the table, and what was probed before."""
    return {**numbers_of_table(run.metrics, run.config), **probe_numbers(run, scale)}


def numbers_of_table(metrics: pd.DataFrame, config: RunConfig) -> Numbers:
    """What `summary` reads off the table of a run of this configuration."""
    return summarize(metrics, sequence_task(config.task, "a summary"))


STUDY = Study(
    name="plateau",
    title="What happens during the loss plateau (arXiv 2506.13688)",
    recipes=RECIPES,
    figures=FIGURES,
    claims=CLAIMS,
    numbers=numbers,
    elsewhere=LANGUAGE_MODELS,
    reading=Reading(columns_read, numbers_of_table),
    retired=RETIRED,
    setup=SETUP,
    results=resources.files("mechplateau.studies.plateau") / "results",
)
