"""The solved moving window sum as a study."""

from __future__ import annotations

from importlib import resources

from mechplateau.studies.recorded import Reading
from mechplateau.studies.solved.claims import CLAIMS
from mechplateau.studies.solved.figures import FIGURES
from mechplateau.studies.solved.numbers import columns_read, numbers, numbers_of_table
from mechplateau.studies.solved.recipes import RECIPES
from mechplateau.studies.study import Study

STUDY = Study(
    name="solved",
    title="The solved moving window sum, taken apart (ours)",
    recipes=RECIPES,
    figures=FIGURES,
    claims=CLAIMS,
    numbers=numbers,
    reading=Reading(columns_read, numbers_of_table),
    results=resources.files("mechplateau.studies.solved") / "results",
)
