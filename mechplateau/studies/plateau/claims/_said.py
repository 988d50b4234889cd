"""What the paper's claims have in common."""

from __future__ import annotations

from functools import partial

from mechplateau.studies.claims import Claim
from mechplateau.studies.plateau.recipes import RECIPES

STATED = "the paper, or a run of the authors' code"
"""The source of what "the paper says"."""
WHAT = {recipe.name: recipe.what for recipe in RECIPES}
claim_of = partial(Claim, study="plateau")
