"""Whose learning coefficients are estimated: the window sum, and matrix completion (at `tiny`)."""

from __future__ import annotations

from mechplateau.studies.recipes import Recipe

RECIPES = (
    Recipe("mws", "mws", "moving window sum", {"checkpoints": {"every": 10}}),
    Recipe("mc", "matrix_completion", "matrix completion", {"checkpoints": {"every": 1000}}),
)
