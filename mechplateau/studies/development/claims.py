"""What is claimed of learning coefficients on plateaus, with ranges that were written down before the runs on record.

Ranges are from one trial run of `small` with another seed (100): half-way 7 % before the loss, partial correlation
−0.16, MLPs 1.8 times attention at the peak, attention 2.9 times MLPs before the drop; 0 of 18 settings local. Where it
says nothing, they are from what the sentence means. For matrix completion and the paper's size there was no trial.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from mechplateau.studies.claims import Claim

_claim = partial(Claim, study="development")


def _window_sum() -> Iterable[Claim]:
    claim = partial(_claim, figure="1", recipe="mws", seeds=5)
    at_paper = partial(_claim, figure="1", recipe="mws", seeds=1)
    yield claim(
        id="1/first",
        text="λ̂ is half-way from the plateau to the end before the loss is",
        number="llc_lead",
        low=0.005,
    )
    yield claim(
        id="1/attention-first",
        text="attention progress is half-way before λ̂ is",
        number="attention_before_llc",
        low=0.0,
    )
    yield claim(
        id="1/more-than-loss",
        text="given the loss, λ̂ says little about attention: their partial correlation is small",
        number="partial",
        low=-0.5,
        high=0.5,
    )
    yield claim(
        id="1/not-affine",
        text="λ̂ over checkpoints isn't the loss times −nβ: its slope is less than half of that",
        number="affine_slope",
        high=0.5,
    )
    yield claim(
        id="1/peak",
        text="λ̂ is larger just after the drop than at the end",
        number="llc_peak_over_end",
        low=1.1,
    )
    yield claim(
        id="1/never-local",
        text="no checkpoint on the plateau has an estimate with the verdict local",
        number="local_on_plateau",
        high=0,
    )
    yield at_paper(
        id="1/rise",
        text="λ̂ is larger after the drop than on the plateau",
        number="llc_rise",
        low=0,
    )


def _components_and_scan() -> Iterable[Claim]:
    claim = partial(_claim, recipe="mws", seeds=5)
    yield claim(
        id="2/mlp",
        figure="2",
        text="where λ̂ is largest, just after the drop, the MLPs have more of it than attention",
        number="mlp_over_attention_peak",
        low=1.2,
    )
    yield claim(
        id="2/attention",
        figure="2",
        text="before the drop, attention has more of it than the MLPs",
        number="attention_over_mlp_before",
        low=1.2,
    )
    yield claim(
        id="3/no-setting",
        figure="3",
        text="no setting of the scan gives an estimate on the plateau with the verdict local",
        number="scan_local",
        high=0,
    )


def _matrix_completion() -> Iterable[Claim]:
    claim = partial(_claim, figure="4", recipe="mc", seeds=1)
    yield claim(
        id="4/first",
        text="in matrix completion, too, λ̂ is half-way before the loss is",
        number="llc_lead",
        low=0.005,
    )
    yield claim(
        id="4/attention-first",
        text="and attention progress is half-way before λ̂ is",
        number="attention_before_llc",
        low=0.0,
    )
    yield claim(
        id="4/no-setting",
        text="and no setting of the scan gives a local estimate on the plateau",
        number="scan_local",
        high=0,
    )


CLAIMS = (*_window_sum(), *_components_and_scan(), *_matrix_completion())
