"""Moving window sums in other settings: figures 26 to 43, and ours from 101 on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mechplateau.studies.claims import Claim
from mechplateau.studies.plateau.claims._said import WHAT, claim_of


def _signs(figure: str, recipe: str, cos: float = 0.8) -> Iterable[Claim]:
    """The plateau's signs, as the paper finds them in every set-up of moving window sum."""
    what = WHAT[recipe]
    yield claim_of(
        id=f"{figure}/{recipe}/plateau",
        figure=figure,
        text=f"{what}: there is a plateau that ends in a drop",
        recipe=recipe,
        number="plateau",
        low=1,
    )
    yield claim_of(
        id=f"{figure}/{recipe}/cos_peak",
        figure=figure,
        text=f"{what}: hidden states collapse on it",
        recipe=recipe,
        number="cos_peak",
        low=cos,
    )
    yield claim_of(
        id=f"{figure}/{recipe}/repetition_excess",
        figure=figure,
        text=f"{what}: outputs repeat tokens",
        recipe=recipe,
        number="repetition_excess",
        low=0.2,
        changed="was: ρ / the data's ≥ 2; a difference since, as in the report, with the report's bound",
    )
    text = f"{what}: attention progresses on the plateau, before the loss does"
    yield claim_of(
        id=f"{figure}/{recipe}/apm_plateau_gain",
        figure=figure,
        text=text,
        recipe=recipe,
        number="apm_plateau_gain",
        low=1.2,
    )


def other_settings() -> Iterable[Claim]:
    for figure, recipes in (
        ("26", ("mws-n8", "mws-n24", "mws-k3", "mws-k4")),
        ("27", ("mws-p19", "mws-p23")),
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
    ):
        for recipe in recipes:
            yield from _signs(figure, recipe)

    for claim in _signs("32", "mws-muon"):
        # Its attention and hidden states are figure 33.
        later = claim.number in ("cos_peak", "apm_plateau_gain")
        yield replace(claim, figure="33", id=f"33/{claim.recipe}/{claim.number}") if later else claim

    yield claim_of(
        id="41/mws-locations/cos_peak_L0_resid_mid",
        figure="41",
        text="the collapse is in what the block writes: after attention",
        recipe="mws-locations",
        number="cos_peak_L0_resid_mid",
        low=0.6,
    )
    yield claim_of(
        id="41/mws-locations/cos_peak_L0_resid_post",
        figure="41",
        text="… and after the MLP",
        recipe="mws-locations",
        number="cos_peak_L0_resid_post",
        low=0.8,
    )
    yield claim_of(
        id="42/mws-locations-2/cos_peak",
        figure="42",
        text="two layers: the collapse is at the end",
        recipe="mws-locations-2",
        number="cos_peak",
        low=0.8,
    )
    yield claim_of(
        id="42/mws-locations-2/cos_peak_L0_resid_post",
        figure="42",
        text="… and at the first layer's end",
        recipe="mws-locations-2",
        number="cos_peak_L0_resid_post",
        low=0.6,
    )

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
        changed="was: it is not solved at all; written anew after the first runs",
    )
    for name, how in (("mws-reward0.1", "a small"), ("mws-reward1", "a large")):
        yield claim_of(
            id=f"102/{name}/apm_gain",
            figure="102",
            text=f"{how} reward for attention progress: attention progress has more than tripled half-way to the drop",
            recipe=name,
            number="apm_gain",
            low=3,
            seeds=3,
            changed="the factor of three was written after the first runs",
        )
        yield claim_of(
            id=f"102/{name}/plateau",
            figure="102",
            text=f"{how} reward: there is a plateau all the same",
            recipe=name,
            number="plateau",
            low=1,
            seeds=3,
            changed="written after the first runs",
        )
        yield claim_of(
            id=f"102/{name}/learned_at",
            figure="102",
            text=f"{how} reward: the drop comes sooner",
            recipe=name,
            number="learned_at",
            over="mws-reward0",
            high=0.9,
            seeds=3,
        )
        yield claim_of(
            id=f"102/{name}/took",
            figure="102",
            text=f"{how} reward: solved sooner",
            recipe=name,
            number="took",
            over="mws-reward0",
            high=0.9,
            seeds=3,
        )
        yield claim_of(
            id=f"102/{name}/cos_peak",
            figure="102",
            text=f"{how} reward: the collapse is weaker",
            recipe=name,
            number="cos_peak",
            over="mws-reward0",
            high=0.95,
            seeds=3,
            changed="what counts as weaker was written after the first runs",
        )
