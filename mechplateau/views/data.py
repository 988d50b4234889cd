"""What a view is drawn from: plain arrays and a table, filled by the caller.

Nothing here knows a run folder or a model, so that every picture can be drawn from arrays made anywhere: a run,
a notebook, a test. Positions are 0-based positions of the model's input; "undefined" is None or null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from mechplateau.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

    from mechplateau.views.figure import PaperFigure

PHASES = ("before", "during", "after")
Phase = Literal["before", "during", "after"]


class ViewError(UserError):
    """Data handed to a view does not fit together: the message names the field and both shapes."""


@dataclass(frozen=True)
class PlateauView:
    """The loss plateau as it was found, in steps and loss units; None where undefined.

    Attributes:
        found: whether there is a plateau that ends in a drop; without one, `reason` says why.
        onset: first step on the plateau; given without `found`, no drop came yet.
        drop: first step at which the smoothed loss is half-way from plateau level to final level.
        plateau_level: loss on the plateau.
        final_level: loss after the drop.
        confidence: from 0 to 1.
        reason: one line for people.
        before: checkpoint step of the phase "before".
        during: checkpoint step of the phase "during".
        after: checkpoint step of the phase "after".
        end: last step before the loss leaves its level; None: the drop is used.
        column: the loss that it is the plateau of.
    """

    found: bool
    onset: int | None = None
    drop: int | None = None
    plateau_level: float | None = None
    final_level: float | None = None
    confidence: float | None = None
    reason: str = ""
    before: int | None = None
    during: int | None = None
    after: int | None = None
    end: int | None = None
    column: str = "loss"

    def __post_init__(self) -> None:
        if self.end is None:
            object.__setattr__(self, "end", self.drop)

    def phase_of(self, step: int) -> Phase | None:
        """Which phase a step belongs to: "during" from the onset to before the drop; None without a plateau."""
        if self.onset is None or self.drop is None:
            return None
        if step < self.onset:
            return "before"
        return "during" if step < self.drop else "after"


@dataclass(frozen=True)
class SampleView:
    """One sequence as text: the prompt, the right outputs, and the model's.

    Attributes:
        prompt: the prompt's tokens.
        target: the right outputs.
        predicted: the model's outputs, as many; None where undefined, which is never right.
    """

    prompt: tuple[str | None, ...]
    target: tuple[str | None, ...]
    predicted: tuple[str | None, ...]

    def __post_init__(self) -> None:
        if len(self.target) != len(self.predicted):
            raise ViewError(
                f"SampleView: expected as many predicted as target tokens, got {len(self.predicted)} and "
                f"{len(self.target)}; pass every output of the sample"
            )


@dataclass(frozen=True, eq=False)
class CheckpointView:
    """What the model does at one checkpoint.

    Attributes:
        step: after this many updates.
        pattern: one array `[head, query, key]` a layer: attention averaged over a batch. May be signed and
            unbounded (linear attention), may hold NaN. None at all where the maps were not kept, or are lost.
        cosine: cosine similarity of the final hidden states `[n_outputs, n_outputs]`, or None.
        samples: sequences with the model's own outputs.
    """

    step: int
    pattern: tuple[np.ndarray, ...] = ()
    cosine: np.ndarray | None = None
    samples: tuple[SampleView, ...] = ()

    def __post_init__(self) -> None:
        pattern = tuple(np.asarray(layer, dtype=np.float32) for layer in self.pattern)
        for index, layer in enumerate(pattern):
            if layer.ndim != 3:
                raise ViewError(
                    f"CheckpointView.pattern[{index}]: expected [head, query, key], got shape {layer.shape}; "
                    "average over the batch first"
                )
        object.__setattr__(self, "pattern", pattern)
        if self.cosine is not None:
            cosine = np.asarray(self.cosine, dtype=np.float32)
            if cosine.ndim != 2 or cosine.shape[0] != cosine.shape[1]:
                raise ViewError(
                    f"CheckpointView.cosine: expected [n_outputs, n_outputs], got shape {cosine.shape}"
                )
            object.__setattr__(self, "cosine", cosine)


@dataclass(frozen=True, eq=False)
class TargetView:
    """Ω: the positions an optimal attention uses, outlined on the map of its layer.

    Attributes:
        name: the target's name, as in the column `apm_{name}`.
        layer: 0-based layer.
        mask: bool `[query, key]`, one for all sequences (an Ω that differs per sequence has no outline).
    """

    name: str
    layer: int
    mask: np.ndarray

    def __post_init__(self) -> None:
        mask = np.asarray(self.mask, dtype=bool)
        if mask.ndim != 2:
            raise ViewError(f"TargetView {self.name!r}: expected a mask [query, key], got shape {mask.shape}")
        object.__setattr__(self, "mask", mask)


@dataclass(frozen=True)
class ClaimView:
    """One claim the run is held to.

    Attributes:
        name: what is claimed.
        expected: the range, as text.
        measured: the number, as text.
        passed: whether it holds; None where it could not be decided.
    """

    name: str
    expected: str
    measured: str
    passed: bool | None


@dataclass(frozen=True)
class ColumnView:
    """What a column of the metrics table is.

    Attributes:
        name: as the table has it.
        unit: of its numbers.
        definition: in a few words.
    """

    name: str
    unit: str
    definition: str


@dataclass(frozen=True, eq=False)
class SectionView:
    """One more section of a report: what a task or an analysis has to show beside what every run has.

    Attributes:
        title: its heading.
        text: paragraphs above the picture, in plain words.
        picture: drawn with matplotlib, or None.
        alt: what the picture shows, for who cannot see it.
        columns: of the table below; none: no table.
        rows: its lines, as text.
    """

    title: str
    text: tuple[str, ...] = ()
    picture: PaperFigure | None = None
    alt: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.picture is not None and not self.alt:
            raise ViewError(f"SectionView {self.title!r}: a picture needs alt, what it shows in words")
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ViewError(f"SectionView {self.title!r}: expected {len(self.columns)} cells in each row")


@dataclass(frozen=True)
class EventView:
    """Something that happened in a run.

    Attributes:
        step: at this step.
        key: the measure that it is about: loss, accuracy, cos, repetition or apm; its color.
        text: in a few words.
    """

    step: int
    key: str
    text: str


@dataclass(frozen=True)
class StoryView:
    """A run in plain words.

    Attributes:
        title: the task and its settings.
        sentence: what came out, in a sentence or two.
        events: what happened, in order of steps.
        collapse: the step at which hidden states are most parallel, where the page opens; None: nowhere.
        floor: the loss that is left to chance, in its unit; None where it is not known.
        signed: whether attention is linear, so that entries of a map may be negative.
        partial: which outputs make the partial solution, in words; "" where the task has none.
        partial_at: the step from which on they are known; None: never.
    """

    title: str
    sentence: str = ""
    events: tuple[EventView, ...] = ()
    collapse: int | None = None
    floor: float | None = None
    signed: bool = False
    partial: str = ""
    partial_at: int | None = None


@dataclass(frozen=True, eq=False)
class RunView:
    """Everything the views show of one run.

    Attributes:
        title: for people.
        config_yaml: the run's configuration.
        metrics: one row an evaluation step, column `step` and any of the metrics table's columns; null where
            undefined.
        plateau: as found, or None where it was not looked for.
        checkpoints: in order of steps, equal shapes.
        targets: Ω of the layers that have one.
        output_rows: input positions that predict the outputs.
        claims: what the run is held to, with numbers.
        environment: versions and machine, as text.
        notices: what is missing or damaged, or that the run was stopped, a sentence each; shown at the top.
        sections: what else is shown, between the curves and the claims.
        columns: what the columns of `metrics` are; one that no panel of the paper shows is drawn by its unit.
        story: the run in plain words; None: the title and the plateau alone.
        groups: positions before which a line parts the maps both ways: where the rows of a matrix begin.

    Raises:
        ViewError: arrays do not fit each other.
    """

    title: str
    config_yaml: str
    metrics: pd.DataFrame
    plateau: PlateauView | None
    checkpoints: tuple[CheckpointView, ...]
    targets: tuple[TargetView, ...]
    output_rows: tuple[int, ...]
    claims: tuple[ClaimView, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    sections: tuple[SectionView, ...] = ()
    columns: tuple[ColumnView, ...] = ()
    story: StoryView | None = None
    groups: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if "step" not in self.metrics.columns:
            raise ViewError(
                "RunView.metrics: expected a column 'step', got "
                + (", ".join(map(str, self.metrics.columns)) or "no column")
            )
        steps = [checkpoint.step for checkpoint in self.checkpoints]
        if steps != sorted(set(steps)):
            raise ViewError(f"RunView.checkpoints: expected rising steps, got {steps}; sort them")
        with_maps = [checkpoint for checkpoint in self.checkpoints if checkpoint.pattern]
        for first, second in pairwise(with_maps):
            if _shapes(first) != _shapes(second):
                raise ViewError(
                    f"RunView.checkpoints: step {first.step} has pattern shapes {_shapes(first)}, step "
                    f"{second.step} has {_shapes(second)}; take all checkpoints from one run"
                )
        self._check_targets(first_pattern(self.checkpoints))

    def _check_targets(self, pattern: tuple[np.ndarray, ...]) -> None:
        for target in self.targets:
            if pattern and not 0 <= target.layer < len(pattern):
                raise ViewError(
                    f"TargetView {target.name!r}: expected a layer from 0 to {len(pattern) - 1}, "
                    f"got {target.layer}"
                )
            if pattern and target.mask.shape != pattern[target.layer].shape[1:]:
                raise ViewError(
                    f"TargetView {target.name!r}: the mask has shape {target.mask.shape}, the pattern of layer "
                    f"{target.layer} {pattern[target.layer].shape[1:]}; give both the same queries and keys"
                )

    def checkpoint(self, step: int) -> CheckpointView:
        """The checkpoint of a step.

        Raises:
            ViewError: there is none; the message names the steps there are.
        """
        for checkpoint in self.checkpoints:
            if checkpoint.step == step:
                return checkpoint
        steps = ", ".join(str(checkpoint.step) for checkpoint in self.checkpoints) or "none"
        raise ViewError(f"expected the step of a checkpoint, got {step}; there are: {steps}")

    def phase_steps(self) -> dict[str, int]:
        """Checkpoint steps of the phases that are known: `{"before": 0, "during": 80, "after": 400}`.

        Without a plateau only the first and the last checkpoint are known. One that is missing is not replaced by
        another. Where few checkpoints were kept, the one
        nearest to a phase may lie outside of it; it is not shown under a name that is not true of it.
        """
        plateau = self.plateau
        known = {phase: getattr(plateau, phase, None) for phase in PHASES}
        if plateau is not None and plateau.found:
            for phase in ("during", "after"):
                step = known[phase]
                if step is not None and plateau.phase_of(step) not in (phase, None):
                    known[phase] = None
        elif self.checkpoints and known["before"] is known["after"] is None:
            known |= {"before": self.checkpoints[0].step, "after": self.checkpoints[-1].step}
        steps = {checkpoint.step for checkpoint in self.checkpoints}
        return {phase: step for phase, step in known.items() if step in steps}

    def phase_names(self) -> dict[str, str]:
        """What a checkpoint of `shown_steps` is called: without a plateau, none is before it, and none after a drop."""
        begun = self.plateau is not None and self.plateau.onset is not None
        dropped = self.plateau is not None and self.plateau.drop is not None
        return {
            "before": "before the plateau" if begun else "first checkpoint",
            "during": "on the plateau",
            "after": "after the drop" if dropped else "last checkpoint",
            "collapse": "peak of the collapse",
        }

    def shown_steps(self) -> dict[str, int]:
        """The checkpoints shown side by side, in order of steps: those of the phases, and the one nearest to the
        peak of the collapse where it is another."""
        shown = self.phase_steps()
        collapse = None if self.story is None else self.story.collapse
        if collapse is not None and self.checkpoints:
            peak = min((c.step for c in self.checkpoints), key=lambda step: abs(step - collapse))
            if peak not in shown.values():
                shown["collapse"] = peak
        return dict(sorted(shown.items(), key=lambda item: item[1]))


def first_pattern(checkpoints: Iterable[CheckpointView]) -> tuple[np.ndarray, ...]:
    """The maps of the first checkpoint that has any, whose shapes are those of all; none where none has."""
    return next((checkpoint.pattern for checkpoint in checkpoints if checkpoint.pattern), ())


def _shapes(checkpoint: CheckpointView) -> list[tuple[int, ...]]:
    return [layer.shape for layer in checkpoint.pattern]
