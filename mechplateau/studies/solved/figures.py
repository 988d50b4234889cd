"""The study's two figures: the solved model, and when its parts are learned."""

from __future__ import annotations

from mechplateau.studies.figures import Figure
from mechplateau.studies.panels import Panel

_LOSS = Panel("Loss", "nats", lambda table: ["loss"])

FIGURES = (
    Figure("1", "The solved model, taken apart", ("mws",), (_LOSS,)),
    Figure("2", "When each part is learned", ("mws",), (_LOSS,)),
)
