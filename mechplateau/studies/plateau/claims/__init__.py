"""The paper's claims: which number of which runs, and the range in which the sentence is true.

Numbers are those of `summary` and of `probes`. Figures from 101 on are ours, and so are their ranges.
"""

from collections.abc import Mapping

from mechplateau.studies.claims import Change, Claim
from mechplateau.studies.plateau.claims import moving_windows as _windows
from mechplateau.studies.plateau.claims import optimal_parts as _parts
from mechplateau.studies.plateau.claims import other_settings as _settings
from mechplateau.studies.plateau.claims import other_tasks as _tasks

CLAIMS: tuple[Claim, ...] = (
    *_windows.moving_windows(),
    *_parts.optimal_parts(),
    *_tasks.other_tasks(),
    *_settings.other_settings(),
)
RETIRED: Mapping[str, Change] = {
    **_windows.RETIRED,
    **_parts.RETIRED,
    **_tasks.RETIRED,
    **_settings.RETIRED,
}
"""Claims that stood there once: id → why they do not any more."""
