"""What is claimed of matrix completion, with the ranges in which it is true.

The ranges for `tiny` and `small` were written down before the runs on record: from two trial runs each of another
program (seeds 0 and 1), and where those say nothing, from what the sentence means. Where the paper gives a direction
(more layers drop earlier), it is asked for at every size.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from mechplateau.studies.claims import Change, Claim
from mechplateau.studies.matrix.claims_ours import DROPPED, OURS

_PAPER = "arXiv 2410.22244"
_claim = partial(Claim, study="matrix")
_mc = partial(_claim, recipe="mc", seeds=5)


def _losses() -> Iterable[Claim]:
    yield _mc(id="1/plateau", figure="1", text="there is a copying plateau", number="plateau", low=1)
    yield _mc(
        id="1/level",
        figure="1",
        text="its masked loss is E x², that of giving 0",
        number="level_share",
        low=0.9,
        high=1.1,
        paper="L = p r / 9",
        source=_PAPER,
    )
    yield _mc(
        id="1/drop",
        figure="1",
        text="it ends in a drop",
        number="drop",
        low=7500,
        high=30_000,
        at={"tiny": (1000, 2700), "small": (2000, 5000)},
        paper="near step 15,000",
        source=_PAPER,
    )
    yield _mc(
        id="1/end",
        figure="1",
        text="after the drop the masked loss is far below the plateau",
        number="mask_end_share",
        high=0.2,
        at={"tiny": (None, 0.5), "small": (None, 0.75)},
    )
    yield _mc(
        id="2/spread",
        figure="2",
        text="on the plateau masked cells get about 0",
        number="spread_plateau",
        high=0.05,
        paper="masked cells are given the value of MASK",
        source=_PAPER,
    )


def _components() -> Iterable[Claim]:
    claim = partial(_claim, figure="8")
    for part in ("tokens", "mlp"):
        yield claim(
            id=f"8/{part}",
            text=f"{part} trained alone: no plateau",
            recipe=f"only-{part}",
            number="plateau",
            high=0,
            paper="no plateau",
            source=_PAPER,
        )
    yield claim(
        id="8/positions-plateau",
        text="positions trained alone: there is a plateau",
        recipe="only-positions",
        number="plateau",
        low=1,
        paper="drop just before step 40,000",
        source=_PAPER,
        changes=(
            Change(
                after=1,
                was="no such row",
                because="8/positions says how long a plateau is, and says nothing of a run without one",
            ),
        ),
    )
    yield claim(
        id="8/positions",
        text="positions trained alone: the plateau takes longer than with everything trained",
        recipe="only-positions",
        number="onset_or_end",
        over="mc",
        low=1.2,
        paper="drop just before step 40,000",
        source=_PAPER,
        changes=(
            Change(
                after=1,
                was="a run without a plateau counted as one whose plateau lasts to its end",
                because="the run completes from its first steps on, so the claim held by mistake",
            ),
        ),
    )


def _sizes() -> Iterable[Claim]:
    yield _claim(
        id="13/fails",
        figure="13",
        text="the narrowest model does not drop",
        recipe="width-64",
        number="dropped",
        high=0,
        paper="width 64 fails",
        source=_PAPER,
        changes=DROPPED,
    )
    yield _claim(
        id="13/narrow",
        figure="13",
        text="the next one ends worse than the default width",
        recipe="width-128",
        number="loss_end",
        over="mc",
        low=1.2,
        paper="width 128 is sub-optimal",
        source=_PAPER,
        changes=(
            Change(
                after=1, was="… worse than the widest", because="it is compared with mc, of the default width"
            ),
        ),
    )
    yield _claim(
        id="14/deep",
        figure="14",
        text="more layers drop earlier",
        recipe="layers-6",
        number="onset_or_end",
        over="mc",
        high=0.97,
        paper="6 layers drop earlier than 4",
        source=_PAPER,
    )


def _other_data() -> Iterable[Claim]:
    yield _claim(
        id="16/drop",
        figure="16",
        text="with several sizes the plateau ends in a drop, too",
        recipe="mixture",
        number="dropped",
        low=1,
        changes=DROPPED,
    )
    yield _claim(
        id="18/drop",
        figure="18",
        text="with gaussian factors the plateau ends in a drop, too",
        recipe="gaussian",
        number="dropped",
        low=1,
        changes=DROPPED,
    )


def _other_encoders() -> Iterable[Claim]:
    claim = partial(_claim, figure="106")
    for recipe, what in (("pre-ln", "norms before"), ("continuous", "values as they are")):
        yield claim(
            id=f"106/{recipe}",
            text=f"with {what} the plateau is shorter",
            recipe=recipe,
            number="onset_or_end",
            over="mc",
            high=0.9,
        )
    yield claim(
        id="106/learned-mask",
        text="with a learned MASK there is a drop, too",
        recipe="learned-mask",
        number="dropped",
        low=1,
        changes=DROPPED,
    )
    yield claim(
        id="106/masked-loss",
        text="with the loss on masked cells only, observed cells are not copied, so there is no copying plateau",
        recipe="masked-loss",
        number="plateau",
        high=0,
        changes=(
            Change(
                after=1,
                was="there is a drop, too",
                because="a drop is defined after a copying plateau only; the masked loss does fall",
            ),
        ),
    )


def _gpt() -> Iterable[Claim]:
    claim = partial(_claim, figure="11", recipe="gpt")
    yield claim(
        id="11/drop",
        text="a GPT comes to copy the observed cells",
        number="copied_at",
        low=200,
        high=600,
        at={"tiny": (None, 1500), "small": (None, 1500)},
        paper="the drop, at steps 200 to 600, is the copying of observed entries",
        source=_PAPER,
    )
    yield claim(id="11/observed", text="it writes them all right", number="right_observed", low=0.95)
    yield claim(
        id="11/masked",
        text="it hardly does better on masked cells than the best guess that looks at nothing",
        number="right_masked",
        high=0.1,
        at={"tiny": (None, 0.4), "small": (None, 0.3)},
        paper="masked entries stay unsolved",
        source=_PAPER,
    )


CLAIMS = (
    *_losses(),
    *OURS,
    *_components(),
    *_sizes(),
    *_other_data(),
    *_other_encoders(),
    *_gpt(),
)
