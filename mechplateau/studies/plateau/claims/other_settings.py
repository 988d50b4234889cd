"""Moving window sums in other settings: figures 26 to 43, and ours from 101 on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mechplateau.studies.claims import Change, Claim
from mechplateau.studies.plateau.claims._said import WHAT, claim_of, missing

_ON_IT = Change(
    after=1,
    was="the largest COS anywhere before the drop",
    because="the sentence is about the plateau; now onset to drop",
)
_HALF = Change(
    after=3,
    was="holds where the median of the seeds that have the number lies in the range",
    because="one of three seeds did, one had no number, and the row held; now half of the seeds must, in every row",
)
_SETTINGS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("26", ("mws-n8", "mws-n24", "mws-k3", "mws-k4")),
    ("27", ("mws-p19", "mws-p19-sep17", "mws-p23", "mws-p23-sep17")),
    ("28", ("mws-width64", "mws-width128", "mws-heads2", "mws-heads4")),
    ("29", ("mws-layers2", "mws-layers3")),
    ("30", ("mws-softmax",)),
    ("31", ("mws-sgd-lr0.03", "mws-sgd-lr0.1")),
    ("34", ("mws-warmup",)),
    ("35", ("mws-warmup-cosine",)),
    ("36", ("mws-batch64",)),
    ("37", ("mws-batch512",)),
    ("38", ("mws-lr3e-05",)),
    ("39", ("mws-lr0.0003",)),
    ("40", ("mws-adamw",)),
)
_SET_UPS = {
    **dict.fromkeys(
        ("mws-k3", "mws-k4"),
        Change(
            after=1, was="at most 2,000 steps", because="not solved in 2,000 steps says little of the task"
        ),
    ),
    "mws-warmup": Change(
        after=1, was="at most 1,000 steps, ended a fifth past being solved", because="the authors train 400"
    ),
    "mws-warmup-cosine": Change(
        after=1,
        was="a cosine over 1,000 steps, so that the run ended before its rate fell and was figure 34's",
        because="the authors' rate is 0 at step 400",
    ),
    "mws-muon": Change(
        after=1,
        was="AdamW part with betas (0.9, 0.999) and eps 1e-8, final LayerNorm trained",
        because="the authors' Muon package and groups have others",
    ),
}


def _signs(figure: str, recipe: str) -> Iterable[Claim]:
    """The plateau's signs, as the paper finds them in every set-up of moving window sum."""
    what = WHAT[recipe]
    changes = (_SET_UPS[recipe],) if recipe in _SET_UPS else ()
    new = recipe.endswith("-sep17")
    yield claim_of(
        id=f"{figure}/{recipe}/plateau",
        figure=figure,
        text=f"{what}: there is a plateau that ends in a drop",
        recipe=recipe,
        number="plateau",
        low=1,
        changes=changes,
    )
    yield claim_of(
        id=f"{figure}/{recipe}/cos_plateau",
        figure=figure,
        text=f"{what}: hidden states collapse on it",
        recipe=recipe,
        number="cos_plateau",
        low=0.8,
        changes=changes if new else (*changes, _ON_IT),
    )
    yield claim_of(
        id=f"{figure}/{recipe}/repetition_excess",
        figure=figure,
        text=f"{what}: outputs repeat tokens",
        recipe=recipe,
        number="repetition_excess",
        low=0.2,
        changes=changes,
    )
    yield claim_of(
        id=f"{figure}/{recipe}/apm_plateau_gain",
        figure=figure,
        text=f"{what}: attention progresses on the plateau, before the loss does",
        recipe=recipe,
        number="apm_plateau_gain",
        low=1.2,
        changes=(*changes, _HALF) if recipe == "mws-p19" else changes,
    )


def other_settings() -> Iterable[Claim]:
    for figure, recipes in _SETTINGS:
        for recipe in recipes:
            yield from _signs(figure, recipe)
        if figure == "31":
            yield claim_of(
                id="31/mws-sgd-authors/loss_end",
                figure="31",
                text="SGD as the authors' command has it (rate 1e-4, 400 steps) leaves the loss where it begins",
                recipe="mws-sgd-authors",
                number="loss_end",
                low=2.85,
                # Twelve tokens, and not eighteen: it begins at 2.51 there.
                at={"small": (2.45, None)},
            )
    for claim in _signs("32", "mws-muon"):
        # Its attention and hidden states are figure 33.
        later = claim.number in ("cos_plateau", "apm_plateau_gain")
        yield replace(claim, figure="33", id=f"33/{claim.recipe}/{claim.number}") if later else claim
    yield from _places()
    for start in (25, 50, 75, 100):
        yield claim_of(
            id=f"43/mws-c10-from{start}/took",
            figure="43",
            text=f"c = 10 from step {start} on shortens the plateau",
            recipe=f"mws-c10-from{start}",
            number="took",
            over="mws",
            high=0.9,
            at={"small": (None, 1.0)},
        )
    yield claim_of(
        id="101/mws-frozen-attention/took",
        figure="101",
        text="attention frozen at random: solved later",
        recipe="mws-frozen-attention",
        number="took",
        over="mws",
        low=1.2,
        changes=(
            Change(
                after=1, was="it is not solved at all (accuracy_end at most 0.5)", because="it was solved"
            ),
        ),
    )
    yield from _rewarded()
    yield from _muons_cause()


def _places() -> Iterable[Claim]:
    """Where the collapse is: figures 41 and 42."""
    for figure, recipe, place, text, bound, changes in (
        ("41", "mws-locations", "resid_pre", "before attention hidden states are apart", -0.3, (missing(1),)),
        (
            "41",
            "mws-locations",
            "resid_mid",
            "the collapse is in what the block writes: after attention",
            0.6,
            (),
        ),
        ("41", "mws-locations", "resid_post", "… and after the MLP", 0.8, ()),
        (
            "42",
            "mws-locations-2",
            "resid_pre",
            "two layers: before attention they are apart",
            -0.3,
            (missing(1),),
        ),
        ("42", "mws-locations-2", "resid_post", "… and collapsed at the first layer's end", 0.6, ()),
    ):
        number = f"cos_peak_L0_{place}"
        yield claim_of(
            id=f"{figure}/{recipe}/{number}",
            figure=figure,
            text=text,
            recipe=recipe,
            number=number,
            **({"low": bound} if bound > 0 else {"high": -bound}),
            changes=changes,
        )
    yield claim_of(
        id="42/mws-locations-2/cos_peak",
        figure="42",
        text="… and at the end",
        recipe="mws-locations-2",
        number="cos_peak",
        low=0.8,
    )


def _rewarded() -> Iterable[Claim]:
    """Figure 102: attention progress as a training signal."""
    for name, how, seen in (("mws-reward0.1", "a small", 2), ("mws-reward1", "a large", 1)):
        yield claim_of(
            id=f"102/{name}/apm_gain",
            figure="102",
            text=f"{how} reward for attention progress: attention progress has more than tripled half-way to the drop",
            recipe=name,
            number="apm_gain",
            low=3,
            changes=(missing(seen),),
        )
        yield claim_of(
            id=f"102/{name}/plateau",
            figure="102",
            text=f"{how} reward: there is a plateau all the same",
            recipe=name,
            number="plateau",
            low=1,
            changes=(missing(3),),
        )
        yield claim_of(
            id=f"102/{name}/learned_at",
            figure="102",
            text=f"{how} reward: the drop comes sooner",
            recipe=name,
            number="learned_at",
            over="mws-reward0",
            high=0.9,
            changes=(
                Change(
                    after=1,
                    was="took over mws, for both",
                    because="the drop and the end of learning come apart",
                ),
            ),
        )
        yield claim_of(
            id=f"102/{name}/took",
            figure="102",
            text=f"{how} reward: solved sooner",
            recipe=name,
            number="took",
            over="mws-reward0",
            high=0.9,
            changes=(missing(seen),),
        )
        yield claim_of(
            id=f"102/{name}/cos_peak",
            figure="102",
            text=f"{how} reward: the collapse is weaker",
            recipe=name,
            number="cos_peak",
            over="mws-reward0",
            high=0.95,
            changes=(
                Change(
                    after=3, was="COS at most 0.9", because="so it might be without a reward; now the ratio"
                ),
            ),
        )


def _muons_cause() -> Iterable[Claim]:
    """Figure 104: why hidden states hardly collapse under Muon: its update, or weights ten times as large at first?"""
    yield claim_of(
        id="104/mws-adam-scale10/cos_peak",
        figure="104",
        text="large initial weights keep hidden states apart under Adam, too",
        recipe="mws-adam-scale10",
        number="cos_peak",
        high=0.8,
    )
    yield claim_of(
        id="104/mws-muon-scale1/cos_peak",
        figure="104",
        text="from usual initial weights hidden states collapse under Muon, too",
        recipe="mws-muon-scale1",
        number="cos_peak",
        low=0.8,
    )


RETIRED = {
    f"{figure}/{recipe}/cos_peak": _ON_IT
    for figure, recipes in (*_SETTINGS, ("33", ("mws-muon",)))
    for recipe in recipes
    if not recipe.endswith("-sep17")
}
