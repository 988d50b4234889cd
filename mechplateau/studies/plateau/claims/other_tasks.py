"""Other tasks, and the probe: figures 6 to 22."""

from __future__ import annotations

from collections.abc import Iterable

from mechplateau.studies.claims import Change, Claim
from mechplateau.studies.plateau.claims._said import THE_PAPER, WHAT, claim_of, missing

_LOW_ENTROPY = Change(
    after=1,
    was="the lowest entropy anywhere before the task was learned",
    because="a moment at the start or in the fall would do; now onset to drop, or the second half of the way where the "
    "record has no plateau",
)
_COLLAPSED = Change(
    after=1,
    was="the largest COS anywhere before the task was learned",
    because="a moment at the start or in the fall would do; now onset to drop, or the second half of the way where the "
    "record has no plateau",
)
_COUNTS = Change(
    after=1,
    was="permutation: values come right before their order (count check at least 0.5 before it is learned)",
    because="just before being right the counts are right, whatever came first; now two steps are compared",
)


def _same_three(figure: str, recipe: str, *, early: bool, plateau: bool) -> Iterable[Claim]:
    """What the paper finds in every task: partial solution, repetition or low entropy, collapse.

    `plateau`: whether its run on record has one; else the second half of the way is looked at.
    """
    what, where = WHAT[recipe], "plateau" if plateau else "late"
    then = "on the plateau" if plateau else "in the second half of the way"
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
        id=f"{figure}/{recipe}/entropy_{where}_share",
        figure=figure,
        text=f"{what}: outputs have a low entropy {then}",
        recipe=recipe,
        number=f"entropy_{where}_share",
        high=0.8,
        changes=(_LOW_ENTROPY,),
    )
    yield claim_of(
        id=f"{figure}/{recipe}/cos_{where}",
        figure=figure,
        text=f"{what}: hidden states are collapsed {then}",
        recipe=recipe,
        number=f"cos_{where}",
        low=0.6,
        changes=(_COLLAPSED,),
    )


def other_tasks() -> Iterable[Claim]:
    yield from _prefix()
    yield from _repeat()
    yield from _same_three("9", "addition", early=True, plateau=True)
    yield from _same_three("10", "addition-plain", early=True, plateau=False)
    yield from _permutation()
    yield from _same_three("15", "histogram", early=False, plateau=True)
    yield claim_of(
        id="16/histogram/apm_gain",
        figure="16",
        text="histogram: attention progresses before the loss does",
        recipe="histogram",
        number="apm_gain",
        low=1.2,
    )
    yield from _same_three("17", "reverse", early=False, plateau=False)
    yield from _same_three("18", "copy", early=False, plateau=False)
    for mix in ("123_disjoint_454", "124_disjoint_444", "124_disjoint_453"):
        yield from _same_three("19", f"concat-{mix}", early=True, plateau=True)
    yield from _same_three("19", "concat-124_stair_653", early=True, plateau=False)
    yield from _probe()


def _prefix() -> Iterable[Claim]:
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
        source=THE_PAPER,
    )
    yield claim_of(
        id="6/prefix/entropy_late_share",
        figure="6",
        text="prefix sum: outputs have a low entropy in the second half of the way",
        recipe="prefix",
        number="entropy_late_share",
        high=0.75,
        paper="low",
        source=THE_PAPER,
        changes=(_LOW_ENTROPY,),
    )
    yield claim_of(
        id="11/prefix/apm_gain",
        figure="11",
        text="prefix sum: attention progresses before the loss does",
        recipe="prefix",
        number="apm_gain",
        low=1.2,
    )
    yield from _same_three("12", "prefix-no-repeat", early=True, plateau=True)


def _repeat() -> Iterable[Claim]:
    wrong = Change(
        after=1,
        was="largest α₁ before the task is learned",
        because="one who repeats rightly has it too, just before being right; now before half of the outputs are right",
    )
    yield claim_of(
        id="7/repeat-1/plateau",
        figure="7",
        text="repeat 1: no plateau",
        recipe="repeat-1",
        number="plateau",
        high=0,
        paper="no plateau",
        source=THE_PAPER,
    )
    for figure, blocks, low in (("7", 1, 0.9), ("21", 2, 0.6), ("22", 4, 0.35)):
        yield claim_of(
            id=f"{figure}/repeat-{blocks}/alpha_wrong",
            figure=figure,
            text=f"repeat {blocks}: outputs repeat the first while most are wrong"
            + ("" if blocks == 1 else ", more than they should"),
            recipe=f"repeat-{blocks}",
            number="alpha_wrong",
            low=low,
            changes=(wrong,),
            **({"paper": "→ 1", "source": THE_PAPER} if blocks == 1 else {}),
        )
    yield claim_of(
        id="7/repeat-1/cos_first",
        figure="7",
        text="repeat 1: hidden states start out similar",
        recipe="repeat-1",
        number="cos_first",
        low=0.3,
        high=0.7,
        at={"small": (0.2, 0.9)},
        paper="about 0.5 after one step",
        source=THE_PAPER,
    )


def _permutation() -> Iterable[Claim]:
    yield from _same_three("13", "permutation", early=False, plateau=True)
    for number, how in (
        ("counts_lead", "those that the target has"),
        ("counts_all_lead", "all 16, as the authors count them"),
    ):
        yield claim_of(
            id=f"13/permutation/{number}",
            figure="13",
            text=f"permutation: values ({how}) come right long before their order",
            recipe="permutation",
            number=number,
            low=0.1,
            changes=(_COUNTS,),
        )
    for compose in (2, 3, 4):
        recipe = f"permutation-{compose}"
        yield from _same_three("14", recipe, early=False, plateau=False)
        yield claim_of(
            id=f"14/{recipe}/accuracy_end",
            figure="14",
            text=f"{WHAT[recipe]}: not solved within 2,000 steps",
            recipe=recipe,
            number="accuracy_end",
            high=0.5,
            changes=(missing(1),),
        )


def _probe() -> Iterable[Claim]:
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
    for number, text, low, high in (
        (
            "selectivity",
            "a random label of the operands is read as well, so the probe itself adds",
            None,
            0.1,
        ),
        ("linear_end", "after it, a linear probe does not find the answer in attention's output", None, 0.3),
        ("linear_neurons_end", "… and does in the neurons", 0.9, None),
    ):
        yield claim_of(
            id=f"20/mws-probe/probe_{number}",
            figure="20",
            text=text,
            recipe="mws-probe",
            number=f"probe_{number}",
            low=low,
            high=high,
            changes=(missing(1),),
        )


def _retired() -> Iterable[tuple[str, Change]]:
    for figure, recipe in (
        ("6", "prefix"),
        ("12", "prefix-no-repeat"),
        ("9", "addition"),
        ("10", "addition-plain"),
        ("13", "permutation"),
        *(("14", f"permutation-{compose}") for compose in (2, 3, 4)),
        ("15", "histogram"),
        ("17", "reverse"),
        ("18", "copy"),
        *(("19", f"concat-{mix}") for mix in ("123_disjoint_454", "124_disjoint_444", "124_disjoint_453")),
        ("19", "concat-124_stair_653"),
    ):
        yield f"{figure}/{recipe}/entropy_share", _LOW_ENTROPY
        if recipe != "prefix":
            yield f"{figure}/{recipe}/cos_peak", _COLLAPSED
    alpha = Change(
        after=1,
        was="largest α₁ before the task is learned",
        because="one who repeats rightly has it too, just before being right",
    )
    yield from ((f"{id}/alpha_peak", alpha) for id in ("7/repeat-1", "21/repeat-2", "22/repeat-4"))
    yield "13/permutation/count_check_peak", _COUNTS


RETIRED = dict(_retired())
