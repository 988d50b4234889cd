"""What happened in a run, in plain words: its title, one sentence, and the events on the way."""

from __future__ import annotations

from collections.abc import Sequence

from mechplateau import views
from mechplateau.models.kinds import kind_of
from mechplateau.runs import Run
from mechplateau.signs import Signs, collapse_columns


def story_of(run: Run) -> views.StoryView:
    """The run's story, from its signs."""
    signs, task = run.signs, run.task
    partial = signs.partial
    return views.StoryView(
        title=f"{task.title}, seed {run.config.seed}",
        sentence=_sentence(signs),
        events=_events(signs),
        collapse=signs.collapse.step if collapse_columns(signs.metrics) else None,
        floor=task.loss_floor,
        signed=getattr(run.config.model, "attention", None) == "linear"
        and bool(kind_of(run.config.model).attention),
        partial="" if partial is None else outputs_named(partial.outputs),
        partial_at=None if partial is None else partial.step,
    )


def _sentence(signs: Signs) -> str:
    """The plateau and whether the task was solved, in a sentence or two."""
    plateau, solved = signs.plateau, signs.solved
    if plateau.found:
        first = (
            f"The loss is level from step {plateau.onset} to step {plateau.end}, near {plateau.plateau_level:.2f}, "
            f"and has dropped half-way by step {plateau.drop}."
        )
    elif plateau.onset is not None:
        first = f"The loss is level since step {plateau.onset}. It has not dropped yet."
    else:
        first = "The loss has no plateau that ends in a drop."
    if signs.diverged_at is not None:
        return f"{first} From step {signs.diverged_at} on it is not a finite number: training has diverged."
    if solved.step is not None:
        return f"{first} The task is solved from step {solved.step} on."
    if solved.rows.last is not None:
        return f"{first} The task is not solved by step {solved.rows.last}."
    return first


def _events(signs: Signs) -> tuple[views.EventView, ...]:
    """What happened, in order of steps; what a run does not have is left out."""
    plateau, partial, collapse = signs.plateau, signs.partial, signs.collapse
    until = (
        f" (level until step {plateau.end})" if plateau.drop is not None and plateau.end is not None else ""
    )
    found: list[tuple[int | None, str, str]] = [(plateau.onset, "loss", f"the plateau begins{until}")]
    if partial is not None and partial.step is not None:
        found.append((partial.step, "accuracy", f"{outputs_named(partial.outputs)} right"))
    if collapse.value is not None:
        found.append(
            (
                collapse.step,
                "cos",
                f"the collapse peaks: hidden states are most parallel (COS {collapse.value:.2f})",
            )
        )
    repetition = signs.repetition
    if repetition.value is not None:
        found.append((repetition.step, "repetition", f"outputs repeat most (ρ {repetition.value:.2f})"))
    start, at_drop = signs.progress_start.value, signs.progress_at_drop.value
    if plateau.drop is not None:
        attention = (
            "" if start is None or at_drop is None else f"; attention progress {start:.2f} → {at_drop:.2f}"
        )
        found.append((plateau.drop, "apm" if attention else "loss", f"the loss drops{attention}"))
    if signs.solved.step is not None:
        found.append((signs.solved.step, "accuracy", "solved"))
    known = [views.EventView(step, key, text) for step, key, text in found if step is not None]
    return tuple(sorted(known, key=lambda event: event.step))


def outputs_named(outputs: Sequence[int]) -> str:
    """`output 0`; `outputs 0, 1 and 2`."""
    if len(outputs) == 1:
        return f"output {outputs[0]}"
    return f"outputs {', '.join(map(str, outputs[:-1]))} and {outputs[-1]}"
