"""Moving window sums at the paper's size: figures 2 to 5."""

from __future__ import annotations

from collections.abc import Iterable

from mechplateau.studies.claims import Claim
from mechplateau.studies.plateau.claims._said import STATED, claim_of


def moving_windows() -> Iterable[Claim]:
    yield claim_of(
        id="2/mws/drop",
        figure="2",
        text="the loss stays on a plateau, then drops",
        recipe="mws",
        number="drop",
        low=150,
        high=210,
        at={"small": (80, 300)},
        paper="step 170-190, in four runs 155-205",
        source=STATED,
        seeds=5,
    )
    yield claim_of(
        id="2/mws/accuracy_end",
        figure="2",
        text="the model ends right",
        recipe="mws",
        number="accuracy_end",
        low=0.99,
        paper="1.0",
        source=STATED,
        seeds=5,
    )
    yield claim_of(
        id="2/mws/partial_at",
        figure="2",
        text="the partial solution (y0) comes first",
        recipe="mws",
        number="partial_at",
        high=90,
        paper="right after about 70 steps",
        source=STATED,
        seeds=5,
    )
    yield claim_of(
        id="2/mws/partial_lead",
        figure="2",
        text="… long before the drop",
        recipe="mws",
        number="partial_lead",
        low=0.3,
        seeds=5,
    )
    yield claim_of(
        id="2/mws/repetition_peak",
        figure="2",
        text="outputs repeat tokens early on",
        recipe="mws",
        number="repetition_peak",
        low=0.3,
        high=0.85,
        at={"small": (0.3, None)},
        paper="0.3-0.8, seed dependent",
        source=STATED,
        seeds=5,
    )
    yield claim_of(
        id="2/mws/cos_peak",
        figure="2",
        text="hidden states collapse to nearly parallel",
        recipe="mws",
        number="cos_peak",
        low=0.93,
        high=1,
        paper="0.95-0.97",
        source=STATED,
        seeds=5,
    )
    yield claim_of(
        id="2/mws/cos_peak_at",
        figure="2",
        text="… before step 120",
        recipe="mws",
        number="cos_peak_at",
        high=120,
        paper="before step 120",
        source=STATED,
        seeds=5,
    )
    yield claim_of(
        id="2/mws/cos_learned",
        figure="2",
        text="… and spread again before the drop",
        recipe="mws",
        number="cos_learned",
        high=0.5,
        seeds=5,
    )
    yield claim_of(
        id="2/mws/apm_gain",
        figure="2",
        text="attention progress rises on the plateau, ahead of the loss",
        recipe="mws",
        number="apm_gain",
        low=1.3,
        paper="0.08 to 0.12 at step 80",
        source=STATED,
        seeds=5,
    )
    yield claim_of(
        id="2/mws/apm_end",
        figure="2",
        text="attention ends on the optimal positions",
        recipe="mws",
        number="apm_end",
        low=0.6,
        at={"small": (0.5, None)},
        paper="0.7-0.8",
        source=STATED,
        seeds=5,
    )

    yield claim_of(
        id="3/mws-c10/took",
        figure="3",
        text="c = 10 shortens the plateau",
        recipe="mws-c10",
        number="took",
        over="mws",
        high=0.95,
        paper="much sooner",
        source=STATED,
        seeds=2,
    )
    yield claim_of(
        id="3/mws-c10/took-by-much",
        figure="3",
        text="… by much",
        recipe="mws-c10",
        number="took",
        over="mws",
        high=0.75,
        paper="much sooner",
        source=STATED,
        seeds=2,
    )
    yield claim_of(
        id="3/mws-c10/cos_peak",
        figure="3",
        text="c = 10 weakens the collapse",
        recipe="mws-c10",
        number="cos_peak",
        low=0.3,
        high=0.8,
        at={"small": (None, 0.96)},
        paper="about 0.6",
        source=STATED,
        seeds=2,
    )
    yield claim_of(
        id="3/mws-c2.5/took",
        figure="3",
        text="c = 2.5 shortens the plateau",
        recipe="mws-c2.5",
        number="took",
        over="mws",
        high=0.95,
    )
    yield claim_of(
        id="4/mws-c0.5/took",
        figure="4",
        text="c = 0.5 lengthens the plateau",
        recipe="mws-c0.5",
        number="took",
        over="mws",
        low=1.1,
    )
    yield claim_of(
        id="4/mws-c0.2/took",
        figure="4",
        text="c = 0.2 lengthens the plateau",
        recipe="mws-c0.2",
        number="took",
        over="mws",
        low=1.5,
        paper="longer",
        source=STATED,
    )
    yield claim_of(
        id="4/mws-c0.2/cos_peak",
        figure="4",
        text="c = 0.2: hidden states collapse further",
        recipe="mws-c0.2",
        number="cos_peak",
        low=0.95,
        paper="above 0.95",
        source=STATED,
    )
    yield claim_of(
        id="4/mws-c0.2/repetition_peak",
        figure="4",
        text="c = 0.2: repetition is high",
        recipe="mws-c0.2",
        number="repetition_peak",
        low=0.5,
        paper="high and lasting",
        source=STATED,
    )

    yield claim_of(
        id="5/mws-init-KQ/took",
        figure="5",
        text="KQ optimal: the plateau is shorter",
        recipe="mws-init-KQ",
        number="took",
        over="mws",
        high=0.6,
    )
    yield claim_of(
        id="5/mws-init-KQ/cos_peak",
        figure="5",
        text="KQ optimal: the collapse is weaker",
        recipe="mws-init-KQ",
        number="cos_peak",
        low=0.25,
        high=0.65,
        at={"small": (None, 0.8)},
        paper="about 0.45",
        source=STATED,
    )
    yield claim_of(
        id="5/mws-init-KQOV/took",
        figure="5",
        text="KQOV optimal: no plateau",
        recipe="mws-init-KQOV",
        number="took",
        over="mws",
        high=0.4,
        paper="no plateau",
        source=STATED,
    )
    yield claim_of(
        id="5/mws-init-KQOV/cos_peak",
        figure="5",
        text="KQOV optimal: hardly any collapse",
        recipe="mws-init-KQOV",
        number="cos_peak",
        high=0.3,
        at={"small": (None, 0.5)},
        paper="about 0.15",
        source=STATED,
    )
    yield claim_of(
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
        source=STATED,
    )
    yield claim_of(
        id="5/mws-init-MLP/cos_peak",
        figure="5",
        text="MLP optimal: the collapse stays",
        recipe="mws-init-MLP",
        number="cos_peak",
        low=0.85,
        paper="like the baseline",
        source=STATED,
    )

    yield claim_of(
        id="5/mws-init-MLP-other/took",
        figure="5",
        text="another seed's MLP: the plateau stays too",
        recipe="mws-init-MLP-other",
        number="took",
        over="mws",
        low=0.7,
    )
