"""Matrix completion as a study."""

from __future__ import annotations

from importlib import resources

from mechplateau.studies.matrix.claims import CLAIMS
from mechplateau.studies.matrix.figures import FIGURES
from mechplateau.studies.matrix.numbers import columns_read, numbers, numbers_of_table
from mechplateau.studies.matrix.recipes import RECIPES
from mechplateau.studies.matrix.story import matrix_sections
from mechplateau.studies.recorded import Reading
from mechplateau.studies.study import Study

STUDY = Study(
    name="matrix",
    title="Matrix completion: abrupt learning in an encoder (arXiv 2410.22244)",
    recipes=RECIPES,
    figures=FIGURES,
    claims=CLAIMS,
    numbers=numbers,
    reading=Reading(columns_read, numbers_of_table),
    sections=matrix_sections,
    results=resources.files("mechplateau.studies.matrix") / "results",
)
