"""The report's sections on matrix completion: matrices with their masked cells, and where heads look."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mechplateau.circuits.completion import heads
from mechplateau.circuits.patching import activations
from mechplateau.runs import Run
from mechplateau.signs import Phases, completion_phases
from mechplateau.tasks import MatrixCompletion
from mechplateau.views import SectionView
from mechplateau.views.figure import PaperFigure
from mechplateau.views.matrices import MatrixView, draw_cell_attention, draw_matrices

_SHOWN = 3
"""Matrices in the picture."""
_AVERAGED = 256
"""Matrices that head maps are the mean of."""
_HEADS = ("layer", "head", "class", "omega", "row", "col", "self", "obs", "fixed", "entropy")
_MOST_HEADS = 16
"""Heads in one picture; of a larger model, the first layers'."""


def matrix_sections(run: Run) -> tuple[SectionView, ...]:
    """Both sections; none of another task, or of a run without a checkpoint."""
    task = run.config.task
    if not isinstance(task, MatrixCompletion) or not run.steps:
        return ()
    phases = completion_phases(run.metrics, task.second_moment)
    steps = _steps(run, phases)
    text = (f"{phases.verdict}.".capitalize(), "Masked cells are outlined: the model sees the others only.")
    return (
        SectionView("Matrices", text, *_matrices(run, task, steps)),
        _attention(run, task, steps),
    )


def _steps(run: Run, phases: Phases) -> dict[str, int]:
    """Checkpoints in the middle of the copying plateau, at the drop, and at the end; the first where it has none."""
    middle = None
    if phases.copying is not None:
        left = run.steps[-1] if phases.onset is None else phases.onset
        middle = (phases.copying + left) / 2
    wanted = {"copying": middle, "drop": phases.drop, "end": run.steps[-1]}
    if middle is None:
        wanted = {"start": run.steps[0], **wanted}
    found: dict[str, int] = {}
    for name, step in wanted.items():
        if step is not None:
            nearest = min(run.steps, key=lambda kept: abs(kept - step))
            found[f"{name}, step {nearest}"] = nearest
    return found


def _matrices(run: Run, task: MatrixCompletion, steps: Mapping[str, int]) -> tuple[PaperFigure, str]:
    batch = task.with_(mixture=()).batch(_SHOWN, seed=0)
    shape = (_SHOWN, task.m, task.n)
    with torch.no_grad():
        given = {name: run.model(step)(batch.inputs).view(shape).numpy() for name, step in steps.items()}
    truth, masked = batch.targets.view(shape).numpy(), batch.masked.view(shape).numpy()
    shown = [
        MatrixView(truth[index], masked[index], {name: values[index] for name, values in given.items()})
        for index in range(_SHOWN)
    ]
    return draw_matrices(shown), "matrices with their masked cells outlined, and predictions beside them"


def _attention(run: Run, task: MatrixCompletion, steps: Mapping[str, int]) -> SectionView:
    batch = task.with_(mixture=()).batch(_AVERAGED, seed=1)
    n_layers, n_heads = run.config.model.n_layers, getattr(run.config.model, "n_heads", 1)
    layers = range(min(n_layers, max(1, _MOST_HEADS // n_heads)))
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in layers]
    patterns = {}
    for name, step in steps.items():
        kept = activations(run.model(step), batch.inputs, names)
        patterns[name] = [kept[hook].mean(dim=0).numpy() for hook in names]
    last = max(steps.values())
    table = heads(run.model(last), task.with_(mixture=()), batch).query("queries == 'masked'")
    rows = tuple(
        tuple(f"{value:.2f}" if isinstance(value, float) else str(value) for value in line)
        for line in table[list(_HEADS)].itertuples(index=False)
    )
    uniform = (1 - task.p_mask) * (task.m + task.n - 2) / task.n_cells
    text = (
        f"Mean over {_AVERAGED} matrices; query cells down, key cells across, row after row of the matrix, with lines "
        "between its rows. All maps have one scale, by the square root, so that small masses are seen, too.",
        f"The table is of masked queries at step {last}. Ω are the observed cells of the query's row and column; a "
        f"head that looks everywhere alike has {uniform:.2f} there. row, col, self and obs: attention on the query's "
        "row, its column, itself, and observed cells. fixed: 1 where it looks at the same cells whatever the query. "
        "The class is a name for the masses beside it.",
    )
    alt = "attention maps of each head between the cells of a matrix"
    picture = draw_cell_attention(patterns, (task.m, task.n))
    return SectionView("Where heads look", text, picture, alt, _HEADS, rows)


__all__ = ["matrix_sections"]
