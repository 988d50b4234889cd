"""What the study of stages trains: the presets of its two tasks, stopped where the numbers are read off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mechplateau.schema import laid_over
from mechplateau.studies.recipes import OURS_BECAUSE, Recipe
from mechplateau.tasks.in_context_regression import InContextRegression
from mechplateau.tasks.text import Text

LR_END = 12_221
"""The released index at which the longest recipe of the paper's schedule stops; the schedule counts on 500,000."""


def _stopped(settings: Mapping[str, Any], step: int) -> dict[str, Any]:
    return laid_over(settings, {"training": {"stop_at": step}})


_TEXT = (
    f"{OURS_BECAUSE}the paper's text and sizes need a GPU; the text is the source of Python's standard library, of the "
    "runs on record that of Python 3.11.7"
)

RECIPES = (
    Recipe(
        "lr-true",
        "in_context_regression",
        "the paper's schedule, up to index 12,221",
        _stopped(InContextRegression.presets["lr-true"], LR_END),
    ),
    *(
        Recipe(
            f"lr-{step}",
            "in_context_regression",
            f"the paper's schedule, up to index {step:,}",
            _stopped(InContextRegression.presets["lr-true"], step),
        )
        for step in (5050, 7192, 40_292)
    ),
    Recipe(
        "lm-bigram", "text", "the source of Python's standard library", Text.presets["lm-bigram"], setup=_TEXT
    ),
    Recipe(
        "lm-induction",
        "text",
        "half of the rows repeat a random segment",
        Text.presets["lm-induction"],
        setup=_TEXT,
    ),
    Recipe(
        "lm-induction-fine",
        "text",
        "the same runs, measured every 10 steps",
        laid_over(Text.presets["lm-induction"], {"evaluation": {"every": 10}}),
        setup=_TEXT,
    ),
)

__all__ = ["LR_END", "RECIPES"]
