"""Other tasks, and the probe: figures 6 to 22."""

from __future__ import annotations

from collections.abc import Iterable

from mechplateau.studies.claims import Claim
from mechplateau.studies.plateau.claims._said import STATED, WHAT, claim_of


def _same_three(figure: str, recipe: str, early: bool) -> Iterable[Claim]:
    """What the paper finds in every task: partial solution, repetition or low entropy, collapse."""
    what = WHAT[recipe]
    if early:
        yield claim_of(
            id=f"{figure}/{recipe}/partial_lead",
            figure=figure,
            text=f"{what}: the partial solution comes first",
            recipe=recipe,
            number="partial_lead",
            low=0.1,
        )
    yield claim_of(
        id=f"{figure}/{recipe}/entropy_share",
        figure=figure,
        text=f"{what}: outputs have a low entropy on the plateau",
        recipe=recipe,
        number="entropy_share",
        high=0.8,
    )
    yield claim_of(
        id=f"{figure}/{recipe}/cos_peak",
        figure=figure,
        text=f"{what}: hidden states collapse",
        recipe=recipe,
        number="cos_peak",
        low=0.6,
    )


def other_tasks() -> Iterable[Claim]:
    yield claim_of(
        id="6/prefix/partial_lead",
        figure="6",
        text="prefix sum: output 0 comes first",
        recipe="prefix",
        number="partial_lead",
        low=0.1,
    )
    yield claim_of(
        id="6/prefix/cos_peak",
        figure="6",
        text="prefix sum: hidden states collapse",
        recipe="prefix",
        number="cos_peak",
        low=0.65,
        high=0.95,
        at={"small": (0.6, None)},
        paper="about 0.80",
        source=STATED,
    )
    yield claim_of(
        id="6/prefix/entropy_share",
        figure="6",
        text="prefix sum: outputs have a low entropy",
        recipe="prefix",
        number="entropy_share",
        high=0.75,
        paper="low",
        source=STATED,
    )
    yield claim_of(
        id="11/prefix/apm_gain",
        figure="11",
        text="prefix sum: attention progresses before the loss does",
        recipe="prefix",
        number="apm_gain",
        low=1.2,
    )
    yield from _same_three("12", "prefix-no-repeat", early=True)

    yield claim_of(
        id="7/repeat-1/plateau",
        figure="7",
        text="repeat 1: no plateau",
        recipe="repeat-1",
        number="plateau",
        high=0,
        paper="no plateau",
        source=STATED,
    )
    yield claim_of(
        id="7/repeat-1/alpha_peak",
        figure="7",
        text="repeat 1: outputs repeat the first",
        recipe="repeat-1",
        number="alpha_peak",
        low=0.9,
        paper="→ 1",
        source=STATED,
    )
    yield claim_of(
        id="7/repeat-1/cos_first",
        figure="7",
        text="repeat 1: hidden states start out similar",
        recipe="repeat-1",
        number="cos_first",
        low=0.3,
        high=0.7,
        at={"small": (None, None)},
        paper="about 0.5 after one step",
        source=STATED,
    )
    yield claim_of(
        id="21/repeat-2/alpha_peak",
        figure="21",
        text="repeat 2: outputs repeat more than they should",
        recipe="repeat-2",
        number="alpha_peak",
        low=0.6,
    )
    yield claim_of(
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
    yield claim_of(
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
    yield claim_of(
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

    yield claim_of(
        id="20/mws-probe/probe_plateau",
        figure="20",
        text="on the plateau, attention's output does not hold the answer",
        recipe="mws-probe",
        number="probe_plateau",
        high=0.5,
    )
    yield claim_of(
        id="20/mws-probe/probe_end",
        figure="20",
        text="… after it, it does",
        recipe="mws-probe",
        number="probe_end",
        low=0.9,
    )
    yield claim_of(
        id="20/mws-probe/probe_shuffled",
        figure="20",
        text="shuffled labels: at chance",
        recipe="mws-probe",
        number="probe_shuffled",
        high=0.12,
        at={"small": (None, 0.2)},
    )
