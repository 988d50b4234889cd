"""A study's figures: which runs each shows, and what of them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from mechplateau.progress import Progress
from mechplateau.runs import Run
from mechplateau.studies.panels import Panel

if TYPE_CHECKING:
    from mechplateau.views.figure import PaperFigure

Tables = Mapping[str, Sequence[pd.DataFrame]]
"""Recipe → the tables of its runs, one a seed."""


@dataclass(frozen=True)
class Material:
    """What a figure is made from.

    Attributes:
        scale: `paper`, or the preset that the runs were trained with.
        tables: the metrics of the runs.
        measured: what the figure's `checkpoints` measured, in tables of the same kind.
        runs: recipe → the runs themselves, one a seed.
    """

    scale: str
    tables: Tables
    measured: Tables = field(default_factory=dict)
    runs: Mapping[str, Sequence[Run]] = field(default_factory=dict)


class CheckpointMeasure(ABC):
    """What a figure wants to know about the kept checkpoints of finished runs, beside what training measured.

    It keeps what it found beside the run, so that nothing is measured twice.
    """

    @abstractmethod
    def measure(
        self, run: Run, scale: str, *, jobs: int = 1, progress: Progress | str | None = None
    ) -> pd.DataFrame:
        """One row a checkpoint: `step`, and columns whose names no metric has.

        Args:
            run: a finished run.
            scale: the size that it was trained at.
            jobs: checkpoints at a time.
            progress: makes a bar of checkpoints, as tqdm does (`mechplateau.progress`).
        """

    def settings(self, scale: str) -> Mapping[str, Any]:
        """How it measures at this scale: printed where that differs from the paper's."""
        return {}


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        id: text, unique in the study: the number in the paper, say. Its files are named STUDY-ID.
        title: what it shows.
        recipes: the runs, in the order of the legend.
        panels: one measure each, over steps.
        checkpoints: what is measured on its runs' checkpoints, for panels that show it.
        ours: what in it is our choice, where the paper gives no value.
        picture: draws it all, instead of panels over steps.
        data: makes the table that is written beside it; None: the runs' tables, one below the other.
    """

    id: str
    title: str
    recipes: tuple[str, ...]
    panels: tuple[Panel, ...] = ()
    checkpoints: CheckpointMeasure | None = None
    ours: str = ""
    picture: Callable[[Material], PaperFigure] | None = None
    data: Callable[[Material], pd.DataFrame] | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w[\w.-]*", self.id):
            raise ValueError(f"figure {self.id!r}: expected letters, digits, '.', '-' and '_' as its id")
        if bool(self.panels) == (self.picture is not None):
            raise ValueError(f"figure {self.id}: expected either panels or a picture")


@dataclass(frozen=True)
class Elsewhere:
    """A figure of the paper that is not made from runs trained here.

    Attributes:
        what: what it shows, in a word or two.
        commands: those that make it, or its like.
        why: why it is not made here, and what else there is, as the rest of a sentence: "figure 8: shows …".
    """

    what: str
    commands: tuple[str, ...]
    why: str
