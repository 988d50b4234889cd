"""The paper's claims: which number of which runs, and the range in which the sentence is true.

Numbers are those of `summary` and of `probes`. Figures from 101 on are ours, and so is what they are held against.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from mechplateau.studies.claims import Claim
from mechplateau.studies.plateau.recipes import RECIPES

_STATED = "the paper, or a run of the authors' code"
_WHAT = {recipe.name: recipe.what for recipe in RECIPES}
_claim = partial(Claim, study="plateau")


def _signs(figure: str, recipe: str, cos: float = 0.8) -> Iterable[Claim]:
    """The plateau's signs, as the paper finds them in every set-up of moving window sum."""
    what = _WHAT[recipe]
    yield _claim(
        id=f"{figure}/{recipe}/plateau",
        figure=figure,
        text=f"{what}: there is a plateau that ends in a drop",
        recipe=recipe,
        number="plateau",
        low=1,
    )
    yield _claim(
        id=f"{figure}/{recipe}/cos_peak",
        figure=figure,
        text=f"{what}: hidden states collapse on it",
        recipe=recipe,
        number="cos_peak",
        low=cos,
    )
    yield _claim(
        id=f"{figure}/{recipe}/repetition_excess",
        figure=figure,
        text=f"{what}: outputs repeat tokens",
        recipe=recipe,
        number="repetition_excess",
        low=0.2,
    )
    text = f"{what}: attention progresses on the plateau, before the loss does"
    yield _claim(
        id=f"{figure}/{recipe}/apm_plateau_gain",
        figure=figure,
        text=text,
        recipe=recipe,
        number="apm_plateau_gain",
        low=1.2,
    )


def _same_three(figure: str, recipe: str, early: bool) -> Iterable[Claim]:
    """What the paper finds in every task: partial solution, repetition or low entropy, collapse."""
    what = _WHAT[recipe]
    if early:
        yield _claim(
            id=f"{figure}/{recipe}/partial_lead",
            figure=figure,
            text=f"{what}: the partial solution comes first",
            recipe=recipe,
            number="partial_lead",
            low=0.1,
        )
    yield _claim(
        id=f"{figure}/{recipe}/entropy_share",
        figure=figure,
        text=f"{what}: outputs have a low entropy on the plateau",
        recipe=recipe,
        number="entropy_share",
        high=0.8,
    )
    yield _claim(
        id=f"{figure}/{recipe}/cos_peak",
        figure=figure,
        text=f"{what}: hidden states collapse",
        recipe=recipe,
        number="cos_peak",
        low=0.6,
    )


def _all_claims() -> Iterable[Claim]:
    yield _claim(
        id="2/mws/drop",
        figure="2",
        text="the loss stays on a plateau, then drops",
        recipe="mws",
        number="drop",
        low=150,
        high=210,
        at={"small": (80, 300)},
        paper="step 170-190, in four runs 155-205",
        source=_STATED,
        seeds=5,
    )
    yield _claim(
        id="2/mws/accuracy_end",
        figure="2",
        text="the model ends right",
        recipe="mws",
        number="accuracy_end",
        low=0.99,
        paper="1.0",
        source=_STATED,
        seeds=5,
    )
    yield _claim(
        id="2/mws/partial_at",
        figure="2",
        text="the partial solution (y0) comes first",
        recipe="mws",
        number="partial_at",
        high=90,
        paper="right after about 70 steps",
        source=_STATED,
        seeds=5,
    )
    yield _claim(
        id="2/mws/partial_lead",
        figure="2",
        text="… long before the drop",
        recipe="mws",
        number="partial_lead",
        low=0.3,
        seeds=5,
    )
    yield _claim(
        id="2/mws/repetition_peak",
        figure="2",
        text="outputs repeat tokens early on",
        recipe="mws",
        number="repetition_peak",
        low=0.3,
        high=0.85,
        at={"small": (0.3, None)},
        paper="0.3-0.8, seed dependent",
        source=_STATED,
        seeds=5,
    )
    yield _claim(
        id="2/mws/cos_peak",
        figure="2",
        text="hidden states collapse to nearly parallel",
        recipe="mws",
        number="cos_peak",
        low=0.93,
        high=1,
        paper="0.95-0.97",
        source=_STATED,
        seeds=5,
    )
    yield _claim(
        id="2/mws/cos_peak_at",
        figure="2",
        text="… before step 120",
        recipe="mws",
        number="cos_peak_at",
        high=120,
        paper="before step 120",
        source=_STATED,
        seeds=5,
    )
    yield _claim(
        id="2/mws/cos_learned",
        figure="2",
        text="… and spread again before the drop",
        recipe="mws",
        number="cos_learned",
        high=0.5,
        seeds=5,
    )
    yield _claim(
        id="2/mws/apm_gain",
        figure="2",
        text="attention progress rises on the plateau, ahead of the loss",
        recipe="mws",
        number="apm_gain",
        low=1.3,
        paper="0.08 to 0.12 at step 80",
        source=_STATED,
        seeds=5,
    )
    yield _claim(
        id="2/mws/apm_end",
        figure="2",
        text="attention ends on the optimal positions",
        recipe="mws",
        number="apm_end",
        low=0.6,
        at={"small": (0.5, None)},
        paper="0.7-0.8",
        source=_STATED,
        seeds=5,
    )

    yield _claim(
        id="3/mws-c10/took",
        figure="3",
        text="c = 10 shortens the plateau",
        recipe="mws-c10",
        number="took",
        over="mws",
        high=0.95,
        paper="much sooner",
        source=_STATED,
        seeds=2,
    )
    yield _claim(
        id="3/mws-c10/took-by-much",
        figure="3",
        text="… by much",
        recipe="mws-c10",
        number="took",
        over="mws",
        high=0.75,
        paper="much sooner",
        source=_STATED,
        seeds=2,
    )
    yield _claim(
        id="3/mws-c10/cos_peak",
        figure="3",
        text="c = 10 weakens the collapse",
        recipe="mws-c10",
        number="cos_peak",
        low=0.3,
        high=0.8,
        at={"small": (None, 0.96)},
        paper="about 0.6",
        source=_STATED,
        seeds=2,
    )
    yield _claim(
        id="3/mws-c2.5/took",
        figure="3",
        text="c = 2.5 shortens the plateau",
        recipe="mws-c2.5",
        number="took",
        over="mws",
        high=0.95,
    )
    yield _claim(
        id="4/mws-c0.5/took",
        figure="4",
        text="c = 0.5 lengthens the plateau",
        recipe="mws-c0.5",
        number="took",
        over="mws",
        low=1.1,
    )
    yield _claim(
        id="4/mws-c0.2/took",
        figure="4",
        text="c = 0.2 lengthens the plateau",
        recipe="mws-c0.2",
        number="took",
        over="mws",
        low=1.5,
        paper="longer",
        source=_STATED,
    )
    yield _claim(
        id="4/mws-c0.2/cos_peak",
        figure="4",
        text="c = 0.2: hidden states collapse further",
        recipe="mws-c0.2",
        number="cos_peak",
        low=0.95,
        paper="above 0.95",
        source=_STATED,
    )
    yield _claim(
        id="4/mws-c0.2/repetition_peak",
        figure="4",
        text="c = 0.2: repetition is high",
        recipe="mws-c0.2",
        number="repetition_peak",
        low=0.5,
        paper="high and lasting",
        source=_STATED,
    )

    yield _claim(
        id="5/mws-init-KQ/took",
        figure="5",
        text="KQ optimal: the plateau is shorter",
        recipe="mws-init-KQ",
        number="took",
        over="mws",
        high=0.6,
    )
    yield _claim(
        id="5/mws-init-KQ/cos_peak",
        figure="5",
        text="KQ optimal: the collapse is weaker",
        recipe="mws-init-KQ",
        number="cos_peak",
        low=0.25,
        high=0.65,
        at={"small": (None, 0.8)},
        paper="about 0.45",
        source=_STATED,
    )
    yield _claim(
        id="5/mws-init-KQOV/took",
        figure="5",
        text="KQOV optimal: no plateau",
        recipe="mws-init-KQOV",
        number="took",
        over="mws",
        high=0.4,
        paper="no plateau",
        source=_STATED,
    )
    yield _claim(
        id="5/mws-init-KQOV/cos_peak",
        figure="5",
        text="KQOV optimal: hardly any collapse",
        recipe="mws-init-KQOV",
        number="cos_peak",
        high=0.3,
        at={"small": (None, 0.5)},
        paper="about 0.15",
        source=_STATED,
    )
    yield _claim(
        id="5/mws-init-MLP/took",
        figure="5",
        text="MLP optimal: as without",
        recipe="mws-init-MLP",
        number="took",
        over="mws",
        low=0.7,
        high=1.4,
        at={"small": (0.7, None)},
        paper="like the baseline",
        source=_STATED,
    )
    yield _claim(
        id="5/mws-init-MLP/cos_peak",
        figure="5",
        text="MLP optimal: the collapse stays",
        recipe="mws-init-MLP",
        number="cos_peak",
        low=0.85,
        paper="like the baseline",
        source=_STATED,
    )

    yield _claim(
        id="5/mws-init-MLP-other/took",
        figure="5",
        text="another seed's MLP: the plateau stays too",
        recipe="mws-init-MLP-other",
        number="took",
        over="mws",
        low=0.7,
    )

    yield _claim(
        id="6/prefix/partial_lead",
        figure="6",
        text="prefix sum: output 0 comes first",
        recipe="prefix",
        number="partial_lead",
        low=0.1,
    )
    yield _claim(
        id="6/prefix/cos_peak",
        figure="6",
        text="prefix sum: hidden states collapse",
        recipe="prefix",
        number="cos_peak",
        low=0.65,
        high=0.95,
        at={"small": (0.6, None)},
        paper="about 0.80",
        source=_STATED,
    )
    yield _claim(
        id="6/prefix/entropy_share",
        figure="6",
        text="prefix sum: outputs have a low entropy",
        recipe="prefix",
        number="entropy_share",
        high=0.75,
        paper="low",
        source=_STATED,
    )
    yield _claim(
        id="11/prefix/apm_gain",
        figure="11",
        text="prefix sum: attention progresses before the loss does",
        recipe="prefix",
        number="apm_gain",
        low=1.2,
    )
    yield from _same_three("12", "prefix-no-repeat", early=True)

    yield _claim(
        id="7/repeat-1/plateau",
        figure="7",
        text="repeat 1: no plateau",
        recipe="repeat-1",
        number="plateau",
        high=0,
        paper="no plateau",
        source=_STATED,
    )
    yield _claim(
        id="7/repeat-1/alpha_peak",
        figure="7",
        text="repeat 1: outputs repeat the first",
        recipe="repeat-1",
        number="alpha_peak",
        low=0.9,
        paper="→ 1",
        source=_STATED,
    )
    yield _claim(
        id="7/repeat-1/cos_first",
        figure="7",
        text="repeat 1: hidden states start out similar",
        recipe="repeat-1",
        number="cos_first",
        low=0.3,
        high=0.7,
        at={"small": (None, None)},
        paper="about 0.5 after one step",
        source=_STATED,
    )
    yield _claim(
        id="21/repeat-2/alpha_peak",
        figure="21",
        text="repeat 2: outputs repeat more than they should",
        recipe="repeat-2",
        number="alpha_peak",
        low=0.6,
    )
    yield _claim(
        id="22/repeat-4/alpha_peak",
        figure="22",
        text="repeat 4: outputs repeat more than they should",
        recipe="repeat-4",
        number="alpha_peak",
        low=0.35,
    )

    yield from _same_three("9", "addition", early=True)
    yield from _same_three("10", "addition-plain", early=True)
    yield from _same_three("13", "permutation", early=False)
    yield _claim(
        id="13/permutation/count_check_peak",
        figure="13",
        text="permutation: values come right before their order",
        recipe="permutation",
        number="count_check_peak",
        low=0.5,
    )
    for compose in (2, 3, 4):
        yield from _same_three("14", f"permutation-{compose}", early=False)
    yield from _same_three("15", "histogram", early=False)
    yield _claim(
        id="16/histogram/apm_gain",
        figure="16",
        text="histogram: attention progresses before the loss does",
        recipe="histogram",
        number="apm_gain",
        low=1.2,
    )
    yield from _same_three("17", "reverse", early=False)
    yield from _same_three("18", "copy", early=False)
    for mix in ("123_disjoint_454", "124_disjoint_444", "124_disjoint_453", "124_stair_653"):
        yield from _same_three("19", f"concat-{mix}", early=True)

    yield _claim(
        id="20/mws-probe/probe_plateau",
        figure="20",
        text="on the plateau, attention's output does not hold the answer",
        recipe="mws-probe",
        number="probe_plateau",
        high=0.5,
    )
    yield _claim(
        id="20/mws-probe/probe_end",
        figure="20",
        text="… after it, it does",
        recipe="mws-probe",
        number="probe_end",
        low=0.9,
    )
    yield _claim(
        id="20/mws-probe/probe_shuffled",
        figure="20",
        text="shuffled labels: at chance",
        recipe="mws-probe",
        number="probe_shuffled",
        high=0.12,
        at={"small": (None, 0.2)},
    )

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

    yield _claim(
        id="41/mws-locations/cos_peak_L0_resid_mid",
        figure="41",
        text="the collapse is in what the block writes: after attention",
        recipe="mws-locations",
        number="cos_peak_L0_resid_mid",
        low=0.6,
    )
    yield _claim(
        id="41/mws-locations/cos_peak_L0_resid_post",
        figure="41",
        text="… and after the MLP",
        recipe="mws-locations",
        number="cos_peak_L0_resid_post",
        low=0.8,
    )
    yield _claim(
        id="42/mws-locations-2/cos_peak",
        figure="42",
        text="two layers: the collapse is at the end",
        recipe="mws-locations-2",
        number="cos_peak",
        low=0.8,
    )
    yield _claim(
        id="42/mws-locations-2/cos_peak_L0_resid_post",
        figure="42",
        text="… and at the first layer's end",
        recipe="mws-locations-2",
        number="cos_peak_L0_resid_post",
        low=0.6,
    )

    for start in (25, 50, 75, 100):
        yield _claim(
            id=f"43/mws-c10-from{start}/took",
            figure="43",
            text=f"c = 10 from step {start} on shortens the plateau",
            recipe=f"mws-c10-from{start}",
            number="took",
            over="mws",
            high=0.9,
            at={"small": (None, 1.0)},
        )

    yield _claim(
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
        yield _claim(
            id=f"102/{name}/apm_gain",
            figure="102",
            text=f"{how} reward for attention progress: attention progress has more than tripled half-way to the drop",
            recipe=name,
            number="apm_gain",
            low=3,
            seeds=3,
            changed="the factor of three was written after the first runs",
        )
        yield _claim(
            id=f"102/{name}/plateau",
            figure="102",
            text=f"{how} reward: there is a plateau all the same",
            recipe=name,
            number="plateau",
            low=1,
            seeds=3,
            changed="written after the first runs",
        )
        yield _claim(
            id=f"102/{name}/learned_at",
            figure="102",
            text=f"{how} reward: the drop comes sooner",
            recipe=name,
            number="learned_at",
            over="mws-reward0",
            high=0.9,
            seeds=3,
        )
        yield _claim(
            id=f"102/{name}/took",
            figure="102",
            text=f"{how} reward: solved sooner",
            recipe=name,
            number="took",
            over="mws-reward0",
            high=0.9,
            seeds=3,
        )
        yield _claim(
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


CLAIMS: tuple[Claim, ...] = tuple(_all_claims())
