"""The key numbers of a run (`mechplateau.signs`), and a sentence about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mechplateau.signs import SOLVED, Sign, collapse_columns
from mechplateau.views.columns import location_label, loss_unit, progress_label, signs_of

if TYPE_CHECKING:
    from mechplateau.views.data import RunView


@dataclass(frozen=True)
class Peak:
    """The largest value of a curve and the first step that has it."""

    value: float
    step: int


@dataclass(frozen=True)
class KeyNumbers:
    """The short table of a run; None where undefined.

    Attributes:
        onset: first step of the plateau, also of one whose drop has not come yet.
        drop: step of the drop.
        plateau_level: loss on the plateau, in its unit.
        peak_cos: peak of COS at the final hidden state (of several groups of outputs, in the one where it is highest).
        peak_repetition: peak of ρ of the model's outputs.
        apm_start: attention progress at the first evaluation step (of several, the one that rises most).
        apm_drop: attention progress at the drop.
        apm_end: attention progress at the last evaluation step.
        final_accuracy: accuracy of greedy generation at the last evaluation step.
        final_loss: training loss at the last evaluation step, in its unit.
        loss_unit: of the loss.
        solved_at: first evaluation step at which the task was solved, with an accuracy of at least `signs.SOLVED`;
            None where it was not, or no accuracy is known.
        judged_until: the last step whose accuracy is defined; None where it never is.
        cos_label: which COS, for people.
        apm_label: which target, for people.
    """

    onset: int | None
    drop: int | None
    plateau_level: float | None
    peak_cos: Peak | None
    peak_repetition: Peak | None
    apm_start: float | None
    apm_drop: float | None
    apm_end: float | None
    final_accuracy: float | None
    final_loss: float | None
    loss_unit: str
    solved_at: int | None
    judged_until: int | None
    cos_label: str | None
    apm_label: str | None


def key_numbers(view: RunView) -> KeyNumbers:
    """The short table of a run."""
    signs = signs_of(view.metrics, view.plateau)
    plateau = view.plateau if view.plateau is not None and view.plateau.found else None
    cos = signs.collapse_column if collapse_columns(view.metrics) else None
    apm = signs.progress_column
    return KeyNumbers(
        onset=view.plateau.onset if view.plateau is not None else None,
        drop=plateau.drop if plateau else None,
        plateau_level=plateau.plateau_level if plateau else None,
        peak_cos=_peak(signs.collapse),
        peak_repetition=_peak(signs.repetition),
        apm_start=signs.progress_start.value,
        apm_drop=signs.progress_at_drop.value,
        apm_end=signs.progress_end.value,
        final_accuracy=signs.last("accuracy").value,
        final_loss=signs.last("loss").value,
        loss_unit=loss_unit(view.columns),
        solved_at=signs.solved.step,
        judged_until=signs.solved.rows.last,
        cos_label=location_label(cos) if cos else None,
        apm_label=progress_label(apm) if apm else None,
    )


SOLVED_LABEL = f"Solved (accuracy ≥ {SOLVED:g})"


def solved_text(numbers: KeyNumbers) -> str:
    """When the task was first solved, for people: a run may end in the middle of its drop, which a plateau does not
    tell, may lose again what it had learned, and may diverge, from where on its accuracy is undefined."""
    if numbers.solved_at is not None:
        return f"first at step {numbers.solved_at}"
    if numbers.judged_until is None:
        return "undefined"
    return f"no, up to step {numbers.judged_until}"


def comparison_rows(numbers: Sequence[KeyNumbers]) -> list[tuple[str, list[str]]]:
    """The key numbers of several runs side by side: a row a number, a text a run; none that no run has."""
    units = {n.loss_unit for n in numbers}
    unit = f" ({units.pop()})" if len(units) == 1 else ", each in its unit"
    ends = [
        ("Drop (step)", [number(n.drop) for n in numbers]),
        ("Plateau from (step)", [number(n.onset) for n in numbers]),
    ]
    rows = [
        (SOLVED_LABEL, [solved_text(n) for n in numbers]),
        (f"Plateau level{unit}", [number(n.plateau_level) for n in numbers]),
        ("Peak COS", [_peak_text(n.peak_cos) for n in numbers]),
        ("Peak ρ", [_peak_text(n.peak_repetition) for n in numbers]),
        ("APM at start", [number(n.apm_start) for n in numbers]),
        ("APM at the drop", [number(n.apm_drop) for n in numbers]),
        ("APM at end", [number(n.apm_end) for n in numbers]),
        ("Final accuracy", [number(n.final_accuracy) for n in numbers]),
        (f"Final loss{unit}", [number(n.final_loss) for n in numbers]),
    ]
    return ends + [(name, texts) for name, texts in rows if set(texts) - {number(None), "undefined"}]


def number(value: float | None) -> str:
    """A step as it is, a measure at three decimals, a dash where undefined."""
    if value is None:
        return "–"
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def peak_texts(peak: Peak | None) -> tuple[str, str]:
    """The value, and at which step."""
    return ("–", "") if peak is None else (number(peak.value), f"at step {peak.step}")


def _peak_text(peak: Peak | None) -> str:
    return " ".join(part for part in peak_texts(peak) if part)


def verdict(view: RunView) -> str:
    """The plateau, and whether the task was solved, in a few sentences for people."""
    solved = ""
    if "accuracy" in view.metrics.columns:
        solved = f"{SOLVED_LABEL}: {solved_text(key_numbers(view))}."
    plateau = view.plateau
    if plateau is None:
        return f"The plateau has not been looked for. {solved}".rstrip()
    if plateau.onset is not None and not plateau.found:
        told = plateau.reason or f"On a plateau since step {plateau.onset}, no drop yet."
        return f"{told} {solved}".rstrip()
    if not plateau.found:
        reason = f"No plateau: {plateau.reason}" if plateau.reason else "No plateau was found."
        return f"{reason} {solved}".rstrip()
    found = (
        plateau.reason
        or f"The loss stays on a plateau from step {plateau.onset} to its drop at step {plateau.drop}."
    )
    sure = "" if plateau.confidence is None else f" Confidence {plateau.confidence:.2f}."
    return f"{found}{sure} {solved}".rstrip()


def _peak(sign: Sign) -> Peak | None:
    return None if sign.value is None or sign.step is None else Peak(sign.value, sign.step)
