"""What is taken apart: the plateau paper's moving window sum, with a checkpoint every 10 steps."""

from __future__ import annotations

from mechplateau.studies.recipes import Recipe

RECIPES = (Recipe("mws", "mws", "moving window sum", {"checkpoints": {"every": 10}}),)
