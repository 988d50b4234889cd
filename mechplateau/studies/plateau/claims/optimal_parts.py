"""Optimal initialization: figure 5. Parts of a finished run in a new model, and in the one that they grew from.

That the two differ is a finding of ours: initial weights and what grew from them belong together.
"""

from __future__ import annotations

from collections.abc import Iterable

from mechplateau.studies.claims import Change, Claim
from mechplateau.studies.plateau.claims._said import THE_PAPER, claim_of, missing

_NEW_MODEL = Change(
    after=1,
    was="parts put back into the run's own initialization, which is now …-own",
    because="the authors put them into a new model",
)


def optimal_parts() -> Iterable[Claim]:
    yield from _attention()
    yield from _others()
    yield from _own()


def _attention() -> Iterable[Claim]:
    yield _of("KQ", "took", "KQ optimal: the plateau is shorter", over="mws", high=0.6, changes=(_NEW_MODEL,))
    yield _of(
        "KQ",
        "cos_peak",
        "KQ optimal: the collapse is weaker",
        low=0.25,
        high=0.65,
        at={"small": (None, 0.8)},
        paper="about 0.45",
        source=THE_PAPER,
        changes=(_NEW_MODEL,),
    )
    yield _of(
        "KQ",
        "repetition_peak",
        "KQ optimal: outputs repeat less",
        over="mws",
        high=0.8,
        changes=(missing(1),),
    )
    yield _of(
        "KQOV",
        "plateau",
        "KQOV optimal: no plateau",
        high=0,
        paper="no plateau",
        source=THE_PAPER,
        changes=(
            Change(
                after=1,
                was="no plateau: took over mws at most 0.4",
                because="that says sooner, not without a plateau; it is the next row",
            ),
        ),
    )
    yield _of("KQOV", "took", "… solved much sooner", over="mws", high=0.4, changes=(_NEW_MODEL,))
    yield _of(
        "KQOV",
        "cos_peak",
        "KQOV optimal: hardly any collapse",
        high=0.3,
        at={"small": (None, 0.5)},
        paper="about 0.15",
        source=THE_PAPER,
        changes=(_NEW_MODEL,),
    )
    yield _of(
        "KQOV",
        "repetition_peak",
        "KQOV optimal: outputs repeat less",
        over="mws",
        high=0.8,
        changes=(missing(1),),
    )


def _others() -> Iterable[Claim]:
    yield _of(
        "MLP",
        "took",
        "MLP optimal: solved as late as without",
        over="mws",
        low=0.7,
        high=1.4,
        paper="like the baseline",
        source=THE_PAPER,
        changes=(
            Change(
                after=2,
                was="its own initialization in this range; another seed's MLP in a row of its own, at least 0.7",
                because="the authors put parts into a new model; both bounds hold for it now (its one run gave 1.53)",
            ),
        ),
    )
    yield _of(
        "MLP",
        "cos_peak",
        "MLP optimal: the collapse stays",
        low=0.85,
        paper="like the baseline",
        source=THE_PAPER,
        changes=(_NEW_MODEL,),
    )
    yield _of(
        "MLP",
        "repetition_peak",
        "MLP optimal: outputs repeat as much as without",
        over="mws",
        low=0.75,
        high=1.33,
        paper="like the baseline",
        source=THE_PAPER,
        changes=(missing(1),),
    )
    yield _of(
        "embeddings",
        "plateau",
        "embeddings optimal: the plateau stays",
        low=1,
        paper="the plateau stays",
        source=THE_PAPER,
        changes=(missing(1),),
    )
    yield _of(
        "embeddings",
        "took",
        "… at least four fifths as long as without",
        over="mws",
        low=0.8,
        changes=(missing(1),),
    )
    yield _of(
        "embeddings",
        "cos_peak",
        "embeddings optimal: the collapse stays",
        low=0.85,
        paper="the collapse stays",
        source=THE_PAPER,
        changes=(missing(1),),
    )


def _own() -> Iterable[Claim]:
    """The rows that were there before the others: parts put into the initialization that they grew from."""
    moved = Change(after=1, was="the row of the new model", because="the authors put parts into a new model")
    yield _of(
        "KQ-own", "took", "KQ back in its own initialization: shorter", over="mws", high=0.6, changes=(moved,)
    )
    yield _of(
        "KQ-own",
        "cos_peak",
        "… the collapse is weaker",
        low=0.25,
        high=0.65,
        at={"small": (None, 0.8)},
        changes=(moved,),
    )
    yield _of(
        "KQOV-own", "took", "KQOV back in its own: much shorter", over="mws", high=0.4, changes=(moved,)
    )
    yield _of(
        "KQOV-own", "cos_peak", "… hardly any collapse", high=0.3, at={"small": (None, 0.5)}, changes=(moved,)
    )
    yield _of(
        "MLP-own",
        "took",
        "MLP back in its own: solved as late as without",
        over="mws",
        low=0.7,
        high=1.4,
        at={"small": (0.7, None)},
        changes=(moved,),
    )
    yield _of("MLP-own", "cos_peak", "… the collapse stays", low=0.85, changes=(moved,))
    yield _of(
        "embeddings-own",
        "plateau",
        "embeddings back in their own: no plateau",
        high=0,
        changes=(missing(1),),
    )
    yield _of(
        "embeddings-own",
        "took",
        "… solved sooner than with another seed's embeddings",
        over="mws-init-embeddings",
        high=0.7,
        changes=(missing(1),),
    )


def _of(parts: str, number: str, text: str, **fields: object) -> Claim:
    recipe = f"mws-init-{parts}"
    return claim_of(id=f"5/{recipe}/{number}", figure="5", text=text, recipe=recipe, number=number, **fields)  # type: ignore[arg-type]


RETIRED = {
    "5/mws-init-MLP-other/took": Change(
        after=1,
        was="another seed's MLP: the plateau stays too (took over mws at least 0.7)",
        because="that is mws-init-MLP now, whose one row has both bounds",
    ),
}
