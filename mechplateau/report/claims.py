"""The paper's four claims about a loss plateau, checked on one run: a number, a range, and whether it lies in it.

The numbers are signs of the run (`mechplateau.signs`, where they are defined). A run without a plateau leaves the
claims undecided. A claim is left out where it means nothing: no partial solution known, a true output that repeats
itself, no Ω, no pairs to compare.

partial     A partial solution is known first. Number: its step / the drop's. Holds: ≤ 0.9, and the other outputs right
            in at most 0.5 of the samples at that step.
            Paper: y₀ of window sums is right after about 70 steps, drops at 155 to 205.
repetition  Outputs repeat, or vary too little. Number: `repetition_excess`; beside it `entropy_share`.
            Holds: ≥ 0.2, or an entropy of at most 0.7 of the data's.
            Paper: ρ rises from 0.06 to 0.3–0.8 in window sums; prefix sums have a low entropy.
collapse    Hidden states collapse. Number: `collapse`. Holds: ≥ 0.75.
            Paper: 0.95–0.97 in window sums, about 0.80 in prefix sums.
attention   Attention is ahead of the loss. Number: `ahead_of_loss`.
            Holds: ≥ 0.3; at the loss's own pace it would be 0.1.
            Paper: APM goes from 0.08 to 0.7–0.8 and is 0.35 at step 160, 0.5 at step 180: a share of 0.4 to 0.7.

The ranges are for runs without an intervention, and wider than what the paper shows, since they serve every task.

Source: arXiv 2506.13688, sections 2 and 3.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from mechplateau.signs import Signs, collapse_columns, progress_columns

MOSTLY_REPEATED = 0.5
"""Data whose own outputs repeat this often say nothing about a bias to repeat."""


@dataclass(frozen=True)
class Ranges:
    """The ranges of the claims; an experiment can pass its own.

    Attributes:
        partial_by: latest step of the partial solution, as a share of the drop's.
        others_below: largest accuracy that the other outputs may have by then.
        repetition_above: least ρ above the data's.
        entropy_below: largest entropy, as a share of the data's.
        cos_peak: smallest and largest peak of COS.
        attention_ahead: least share of its way that attention progress has gone.
    """

    partial_by: float = 0.9
    others_below: float = 0.5
    repetition_above: float = 0.2
    entropy_below: float = 0.7
    cos_peak: tuple[float, float] = (0.75, 1.0)
    attention_ahead: float = 0.3

    def __post_init__(self) -> None:
        for field in fields(self):
            value = np.asarray(getattr(self, field.name), dtype=float)
            if not np.isfinite(value).all():
                raise ValueError(f"Ranges.{field.name}: expected a finite number, got {value}")


@dataclass(frozen=True)
class Claim:
    """One claim, measured.

    Attributes:
        key: "partial", "repetition", "collapse" or "attention": a line of the module's table.
        name: the claim, for people.
        expected: its range, and what the paper has, for people.
        value: the number of the table; None where undefined.
        measured: the number with its step, or why it is undefined, for people.
        passed: whether the number is in its range; None where undefined.
    """

    key: str
    name: str
    expected: str
    value: float | None
    measured: str
    passed: bool | None


def claims_of(signs: Signs, ranges: Ranges | None = None) -> tuple[Claim, ...]:
    """Measure the claims that mean something for this task.

    Args:
        signs: of the run, with its task, which says which outputs are the partial solution.
        ranges: what to hold the run to; None: the module's.

    Returns:
        partial, repetition, collapse, attention, in this order, without those that do not apply.
    """
    ranges = ranges or Ranges()
    found = (rule(signs, ranges) for rule in (_partial, _repetition, _collapse, _attention))
    return tuple(claim for claim in found if claim)


def _missing(signs: Signs) -> str:
    """Why something could not be measured."""
    return "undefined: no plateau" if signs.ends.drop is None else "undefined: not measured up to the drop"


def _partial(signs: Signs, ranges: Ranges) -> Claim | None:
    partial, drop = signs.partial, signs.ends.drop
    if partial is None:
        return None
    name = "A partial solution is known first"
    expected = (
        f"by {ranges.partial_by:g} of the way to the drop, others ≤ {ranges.others_below:g}; paper: about 0.4"
    )
    if drop is None or not partial.measured:
        return Claim("partial", name, expected, None, _missing(signs), None)
    if partial.step is None or signs.partial_lead is None:
        return Claim("partial", name, expected, None, "its outputs are never known for long", False)
    share = 1 - signs.partial_lead
    which = f"output{'s' if len(partial.outputs) > 1 else ''} {_listed(partial.outputs)}"
    measured = f"{which} known from step {partial.step}, {share:.2f} of the way; others "
    if partial.others is None:
        return Claim("partial", name, expected, share, f"{measured}undefined", None)
    passed = share <= ranges.partial_by and partial.others <= ranges.others_below
    return Claim("partial", name, expected, share, f"{measured}{partial.others:.2f}", passed)


def _repetition(signs: Signs, ranges: Ranges) -> Claim | None:
    if "repetition" not in signs.metrics.columns:
        return None
    data = signs.of_data("repetition").value
    if data is not None and data > MOSTLY_REPEATED:
        return None
    name = "Outputs repeat, or vary too little"
    expected = (
        f"ρ ≥ {ranges.repetition_above:g} above the data's, or entropy ≤ {ranges.entropy_below:g} of it; "
        "paper: ρ 0.3 – 0.8"
    )
    peak, excess = signs.repetition, signs.repetition_excess.value
    if signs.ends.drop is None or excess is None or peak.value is None or data is None:
        return Claim("repetition", name, expected, None, _missing(signs), None)
    passed = excess >= ranges.repetition_above
    measured = f"peak ρ {peak.value:.3f} at step {peak.step}, {excess:.3f} above the data's {data:.3f}"
    share = signs.entropy_share
    if share.value is not None:
        passed = passed or share.value <= ranges.entropy_below
        measured += f"; entropy {share.value:.3f} of the data's at step {share.step}"
    return Claim("repetition", name, expected, excess, measured, passed)


def _collapse(signs: Signs, ranges: Ranges) -> Claim | None:
    if not collapse_columns(signs.metrics):
        return None
    name, (low, high) = "Hidden states collapse", ranges.cos_peak
    within = f"COS ≥ {low:g}" if high >= 1 else f"COS {low:g} – {high:g}"
    expected = f"{within}; paper: 0.80 – 0.97, by task"
    peak, drop = signs.collapse, signs.ends.drop
    if drop is None or peak.value is None:
        return Claim("collapse", name, expected, None, _missing(signs), None)
    at_drop = signs.at(signs.collapse_column, drop).value
    group = signs.collapse_column.removeprefix("cos_final").replace("_", " ")
    later = "" if at_drop is None else f", {at_drop:.3f} at the drop"
    # Rounding may take the cosine of equal vectors a hair above 1.
    passed = low <= peak.value <= max(high, 1 + 1e-6 if high >= 1 else high)
    measured = f"{peak.value:.3f}{group} at step {peak.step}{later}"
    return Claim("collapse", name, expected, peak.value, measured, passed)


def _attention(signs: Signs, ranges: Ranges) -> Claim | None:
    column = signs.progress_column
    if column is None:
        return None
    name = "Attention is ahead of the loss"
    expected = (
        f"APM ≥ {ranges.attention_ahead:g} of its way when the loss leaves the plateau; paper: 0.4 – 0.7"
    )
    share, now = signs.ahead_of_loss, signs.progress_leaving
    start, end = signs.progress_start.value, signs.progress_end.value
    if start is None or end is None or now.value is None:
        return Claim("attention", name, expected, None, _missing(signs), None)
    if share.value is None:
        measured = f"undefined: APM goes from {start:.3f} to {end:.3f}"
        return Claim("attention", name, expected, None, measured, None)
    label = "" if len(progress_columns(signs.metrics)) == 1 else f" ({column.removeprefix('apm_')})"
    measured = f"{share.value:.3f} at step {now.step}: APM{label} {now.value:.3f} of {start:.3f} → {end:.3f}"
    return Claim("attention", name, expected, share.value, measured, share.value >= ranges.attention_ahead)


def _listed(outputs: tuple[int, ...]) -> str:
    """0 – 3 for neighbors, else 0, 2, 5."""
    if len(outputs) > 2 and list(outputs) == list(range(outputs[0], outputs[-1] + 1)):
        return f"{outputs[0]} – {outputs[-1]}"
    return ", ".join(map(str, outputs))
