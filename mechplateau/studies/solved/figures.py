"""The study's two figures: the solved model, and when its parts are learned."""

from __future__ import annotations

from mechplateau.studies.figures import Figure
from mechplateau.studies.solved.inside import TakenApart
from mechplateau.studies.solved.pictures import neurons_table, over_training, taken_apart

FIGURES = (
    Figure(
        "1",
        "The solved model, taken apart",
        ("mws",),
        checkpoints=TakenApart(),
        picture=taken_apart,
        data=neurons_table,
        ours="not in the paper",
    ),
    Figure(
        "2",
        "When each part is learned",
        ("mws",),
        checkpoints=TakenApart(),
        picture=over_training,
        ours="not in the paper",
    ),
)
