"""Learning coefficients on plateaus as a study."""

from __future__ import annotations

from importlib import resources

from mechplateau.studies.development.claims import CLAIMS
from mechplateau.studies.development.figures import FIGURES
from mechplateau.studies.development.numbers import columns_read, numbers, numbers_of_table
from mechplateau.studies.development.recipes import RECIPES
from mechplateau.studies.recorded import Reading
from mechplateau.studies.study import Study

STUDY = Study(
    name="development",
    title="Learning coefficients on loss plateaus (ours)",
    recipes=RECIPES,
    figures=FIGURES,
    claims=CLAIMS,
    numbers=numbers,
    reading=Reading(columns_read, numbers_of_table),
    results=resources.files("mechplateau.studies.development") / "results",
)
