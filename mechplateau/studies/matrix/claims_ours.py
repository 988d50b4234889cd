"""What is claimed of matrix completion beyond the paper (ours), with the ranges in which it is true.

Written down before the runs; what was written or changed later says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from mechplateau.studies.claims import Change, Claim

_claim = partial(Claim, study="matrix")
_mc = partial(_claim, recipe="mc", seeds=5)

DROPPED = (
    Change(
        after=34,
        was="an onset was enough",
        because="an onset may be two noisy evaluations of a run that stays on its plateau",
    ),
)


def _attention_first() -> Iterable[Claim]:
    yield _mc(
        id="101/apm_gain",
        figure="101",
        text="before the onset, masked queries of layer 0 look more at Ω than at the start",
        number="apm_gain",
        low=0.02,
    )
    yield _mc(
        id="101/loss_before",
        figure="101",
        text="while the masked loss has hardly moved",
        number="loss_before_share",
        low=0.96,
    )


def _collapse() -> Iterable[Claim]:
    yield _mc(
        id="102/peak",
        figure="102",
        text="hidden states of masked cells collapse on the plateau",
        number="cos_peak",
        low=0.95,
    )
    yield _mc(
        id="102/before",
        figure="102",
        text="they hardly spread before the onset",
        number="cos_fall_before",
        high=0.12,
    )
    yield _mc(
        id="102/after",
        figure="102",
        text="and they spread after it",
        number="cos_fall_after",
        low=0.1,
        at={"small": (0.01, None)},
    )
    yield _mc(
        id="102/excess",
        figure="102",
        text="the collapse is more than that of observed cells which hold the same token",
        number="cos_excess",
        low=0.02,
    )


def _partner() -> Iterable[Claim]:
    yield _mc(
        id="103/observed",
        figure="103",
        text="where one partner cell is observed, the error is small",
        number="partner_error_observed",
        high=0.45,
        at={"tiny": (None, 0.6)},
    )
    yield _mc(
        id="103/other",
        figure="103",
        text="elsewhere it is that of knowing nothing (small); tiny has several partners, so it is less",
        number="partner_error_other",
        high=0.9,
        at={"small": (0.9, 1.1)},
    )
    yield _mc(
        id="103/row",
        figure="103",
        text="the partner lies in the query's row (small); in tiny more often than one of three other cells in fifteen",
        number="partner_row",
        low=0.25,
        at={"small": (0.9, None)},
    )
    yield _mc(
        id="103/second",
        figure="103",
        text="a second plateau is left (small), about as high as the share of cells without that partner; none in tiny",
        number="second_share",
        high=0.4,
        at={"small": (0.45, 0.65)},
        changes=_NO_ROW,
    )


def _initial_scale() -> Iterable[Claim]:
    claim = partial(_claim, seeds=5)
    yield claim(
        id="104/half",
        figure="104",
        text="with half of the initial scale the plateau does not end in this run",
        recipe="init-half",
        number="dropped",
        high=0,
        changes=DROPPED,
    )
    yield claim(
        id="104/four-thirds",
        figure="104",
        text="with a larger initial scale it ends earlier",
        recipe="init-four-thirds",
        number="onset_or_end",
        over="mc",
        high=0.97,
    )


def _attention_scale() -> Iterable[Claim]:
    claim = partial(_claim, seeds=5)
    yield claim(
        id="105/scale-3",
        figure="105",
        text="attention × 3 on Ω shortens the plateau",
        recipe="scale-3",
        number="onset_or_end",
        over="mc",
        high=0.8,
    )
    yield claim(
        id="105/scale-half",
        figure="105",
        text="attention × 0.5 on Ω lengthens it",
        recipe="scale-half",
        number="onset_or_end",
        over="mc",
        low=1.2,
    )


_NO_ROW = (
    Change(
        after=5,
        was="no such row",
        because="written when the shorter runs of the same seeds were on record, before the longer ones were made",
    ),
)


def _second_plateau() -> Iterable[Claim]:
    claim = partial(_claim, figure="107", recipe="mc-long", seeds=5)
    yield claim(
        id="107/dropped", text="the runs have dropped by then", number="dropped", low=1, changes=DROPPED
    )
    yield claim(
        id="107/second",
        text="a second plateau is left (small), about as high as the share of cells without the partner; not in tiny",
        number="second_share",
        high=0.4,
        at={"small": (0.45, 0.65)},
        changes=_NO_ROW,
    )
    yield claim(
        id="107/observed",
        text="where the partner cell is observed, the error is small",
        number="partner_error_observed",
        high=0.45,
        at={"tiny": (None, 0.6)},
        changes=_NO_ROW,
    )
    yield claim(
        id="107/other",
        text="elsewhere it is that of knowing nothing (small)",
        number="partner_error_other",
        high=0.9,
        at={"small": (0.9, 1.1)},
        changes=_NO_ROW,
    )
    yield claim(
        id="107/line",
        text="all partners lie in the query's row, or all in its column (small)",
        number="partner_line",
        low=0.4,
        at={"small": (0.9, None)},
        changes=(
            Change(
                after=5,
                was="no such row",
                because="most runs of mc have the partner in the query's column, and 103/row asks for its row",
            ),
        ),
    )


OURS = (
    *_attention_first(),
    *_collapse(),
    *_partner(),
    *_initial_scale(),
    *_attention_scale(),
    *_second_plateau(),
)
