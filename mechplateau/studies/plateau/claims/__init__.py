"""The paper's claims: which number of which runs, and the range in which the sentence is true.

Numbers are those of `summary` and of `probes`. Figures from 101 on are ours, and so is what they are held against.
"""

from mechplateau.studies.claims import Claim
from mechplateau.studies.plateau.claims.moving_windows import moving_windows
from mechplateau.studies.plateau.claims.other_settings import other_settings
from mechplateau.studies.plateau.claims.other_tasks import other_tasks

CLAIMS: tuple[Claim, ...] = (*moving_windows(), *other_tasks(), *other_settings())
