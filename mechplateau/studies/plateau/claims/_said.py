"""What the paper's claims have in common: where they are from, how many seeds decide, and what was changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mechplateau.studies.claims import Change, Claim
from mechplateau.studies.plateau.recipes import RECIPES

THE_PAPER = "the paper"
THEIR_CODE = "a run of the authors' code"
"""One run of it, without a seed, on a CPU; its numbers are read off its curves as ours are."""
WHAT = {recipe.name: recipe.what for recipe in RECIPES}

_FIVE = (
    *("mws", "mws-c0.2", "mws-c0.5", "mws-c2.5", "mws-c10"),
    *("mws-init-KQ", "mws-init-KQOV", "mws-init-MLP", "mws-init-embeddings", "mws-init-embeddings-own"),
    *("prefix", "repeat-1", "repeat-2", "repeat-4", "copy", "reverse", "mws-softmax"),
)
_THREE = (
    *("permutation", "histogram"),
    *("mws-n8", "mws-n24", "mws-p19", "mws-p23", "mws-p19-sep17", "mws-p23-sep17"),
    *("mws-width64", "mws-width128", "mws-heads2", "mws-heads4", "mws-layers2", "mws-layers3"),
    *("mws-sgd-lr0.03", "mws-sgd-lr0.1", "mws-sgd-authors", "mws-warmup", "mws-warmup-cosine"),
    *("mws-reward0.1", "mws-reward1"),
)
SEEDS: Mapping[str, int] = {**dict.fromkeys(_FIVE, 5), **dict.fromkeys(_THREE, 3)}
"""How many seeds of a recipe decide; of the others one."""

_PARTIAL = (
    Change(
        after=60,
        was="partial_at: the step at which those outputs are right 95 % of the time in generation",
        because="a lucky batch made it, and a known final carry is generated wrong while the digits before it are",
    ),
    Change(
        after=63,
        was="partial_at: their loss at most a tenth of its first value",
        because="a tenth of it says different things in different tasks; half of their entropy does not",
    ),
)
_TOOK = Change(
    after=22,
    was="took: the step at which the loss is half-way from its first to its last value",
    because="a high first loss moves that step, as where parts of another run are put in",
)
_PROGRESS = (
    Change(
        after=22,
        was="attention progress of a task's first target at the last layer",
        because="the solution may use another one",
    ),
    Change(
        after=83,
        was="of several targets and layers, the one that is highest at the end",
        because="a large Ω is high before anything is learned; now the one that rises most",
    ),
)
_NUMBERS: Mapping[str, tuple[Change, ...]] = {
    "partial_at": _PARTIAL,
    "partial_lead": _PARTIAL,
    "took": (_TOOK,),
    "apm_gain": _PROGRESS,
    "apm_plateau_gain": (
        Change(
            after=28,
            was="apm_gain, attention progress half-way to the drop, at least 1.2",
            because="half-way to the drop is before the plateau where its onset is late; now its middle",
        ),
        *_PROGRESS,
    ),
    "repetition_excess": (
        Change(
            after=83,
            was="largest ρ / the data's, at least 2",
            because="data without repetition have no ratio; the difference is the report's, and so is its bound",
        ),
    ),
}
"""Number → how its definition was changed."""


def missing(after: int) -> Change:
    """A row that was written after so many runs of its recipe: its number may have been known by then."""
    return Change(after=after, was="no such row", because="it was missing")


def claim_of(*, recipe: str, number: str, changes: tuple[Change, ...] = (), **fields: Any) -> Claim:
    """A claim of this study: with as many seeds as its recipe has, and what was changed in its number."""
    return Claim(
        study="plateau",
        recipe=recipe,
        number=number,
        changes=(*_NUMBERS.get(number, ()), *changes),
        **{"seeds": SEEDS.get(recipe, 1), **fields},
    )
