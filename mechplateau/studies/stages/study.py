"""Stagewise development as a study."""

from __future__ import annotations

from importlib import resources

from mechplateau.studies.recorded import Reading
from mechplateau.studies.stages.claims import CLAIMS
from mechplateau.studies.stages.figures import ELSEWHERE, FIGURES
from mechplateau.studies.stages.recipes import RECIPES
from mechplateau.studies.stages.story import stage_sections
from mechplateau.studies.stages.summary import (
    coefficients_on_record,
    columns_read,
    numbers,
    numbers_of_table,
)
from mechplateau.studies.study import Study

STUDY = Study(
    name="stages",
    title="Stages of training: regression in context and attention-only language models (arXiv 2402.02364)",
    recipes=RECIPES,
    figures=FIGURES,
    claims=CLAIMS,
    numbers=numbers,
    sections=stage_sections,
    elsewhere=ELSEWHERE,
    reading=Reading(columns_read, numbers_of_table, coefficients_on_record),
    results=resources.files("mechplateau.studies.stages") / "results",
)
