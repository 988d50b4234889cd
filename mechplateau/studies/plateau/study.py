"""The plateau paper as a study."""

from __future__ import annotations

from importlib import resources

from mechplateau.runs import Run
from mechplateau.studies.numbers import Numbers
from mechplateau.studies.plateau.claims import CLAIMS
from mechplateau.studies.plateau.figures import FIGURES, LANGUAGE_MODELS
from mechplateau.studies.plateau.probes import probe_numbers
from mechplateau.studies.plateau.recipes import RECIPES
from mechplateau.studies.plateau.summary import summarize
from mechplateau.studies.study import Study
from mechplateau.tasks import sequence_task


def numbers(run: Run, scale: str) -> Numbers:
    """What `summary` reads off the table, and what was probed before."""
    return {**summarize(run.metrics, sequence_task(run.task, "a summary")), **probe_numbers(run, scale)}


STUDY = Study(
    name="plateau",
    title="What happens during the loss plateau (arXiv 2506.13688)",
    recipes=RECIPES,
    figures=FIGURES,
    claims=CLAIMS,
    numbers=numbers,
    elsewhere=LANGUAGE_MODELS,
    results=resources.files("mechplateau.studies.plateau") / "results",
)
