"""Attention maps of matrix completion: after the drop, over training, under one mask, and a GPT's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from mechplateau.circuits.patching import activations
from mechplateau.studies.drawing import entitle
from mechplateau.studies.matrix.pictures import first_run, task_of
from mechplateau.tasks.matrices import MASK
from mechplateau.tasks.matrix_completion import Matrices, MatrixCompletion, MatrixCompletionGPT

if TYPE_CHECKING:
    from mechplateau.studies.figures import Material
    from mechplateau.views.figure import PaperFigure

_SEED = 22
_MATRICES = 256


def attention_maps(material: Material) -> PaperFigure:
    """Each head's pattern at the last checkpoint, mean over 256 matrices; cells are grouped by row."""
    from mechplateau.views.matrices import draw_heads

    run = first_run(material)
    task = task_of(run)
    patterns = mean_patterns(run.model(run.steps[-1]), task.batch(_MATRICES, seed=_SEED).inputs)
    sheet = draw_heads(patterns, task.position_groups, task.position_groups)
    entitle(sheet, material, "4", "Attention maps after the drop: query cells down, key cells across")
    return sheet


def maps_over_training(material: Material) -> PaperFigure:
    """Each head's pattern at five checkpoints from the first to the last, mean over 256 matrices."""
    from mechplateau.views.matrices import draw_cell_attention

    run = first_run(material)
    task = task_of(run)
    batch = task.batch(_MATRICES, seed=_SEED)
    chosen = dict.fromkeys(run.steps[round(at * (len(run.steps) - 1) / 4)] for at in range(5))
    patterns = {f"step {step}": mean_patterns(run.model(step), batch.inputs) for step in chosen}
    sheet = draw_cell_attention(patterns, (task.m, task.n))
    entitle(sheet, material, "22", "Attention maps over training")
    return sheet


def maps_under_one_mask(material: Material) -> PaperFigure:
    """Each head's pattern at the last checkpoint, mean over 256 matrices that have one mask; see `one_mask`."""
    from mechplateau.views.matrices import draw_heads

    run = first_run(material)
    task = task_of(run)
    patterns = mean_patterns(run.model(run.steps[-1]), one_mask(task, _MATRICES, seed=_SEED).inputs)
    sheet = draw_heads(patterns, task.position_groups, task.position_groups)
    kept = ", ".join(f"({row}, {column})" for row, column in _kept(task))
    names = " and ".join(str(row) for row, _ in _kept(task))
    entitle(sheet, material, "23", f"Attention maps: rows {names} masked but for {kept}")
    return sheet


def one_mask(task: MatrixCompletion, n: int, *, seed: int) -> Matrices:
    """Matrices of which the same two rows are masked, but for one cell of each.

    Of 7 × 7: rows 3 and 6, but for (3, 1) and (6, 5), as in the paper. Of other sizes: the middle row and the last.
    """
    batch = task.with_(mixture=()).batch(n, seed=seed)
    tokens, values = task.grid.rounded(batch.targets, check=False)
    observed = torch.ones(task.m, task.n, dtype=torch.bool)
    for row, column in _kept(task):
        observed[row] = False
        observed[row, column] = True
    seen = observed.flatten().expand(n, -1)
    return Matrices(tokens.masked_fill(~seen, MASK), values, seen)


def gpt_attention(material: Material) -> PaperFigure:
    """Where a GPT looks when it writes each cell, mean over 256 matrices.

    Cells that are written are down; across are the matrix, SEP between two lines, and the cells written so far.
    """
    from mechplateau.views.matrices import draw_heads

    run = first_run(material, "gpt")
    task = run.config.task
    assert isinstance(task, MatrixCompletionGPT)
    tokens = task.sample(_MATRICES, seed=_SEED)[:, :-1]
    patterns = [
        layer[:, task.prompt_length - 1 :] for layer in mean_patterns(run.model(run.steps[-1]), tokens)
    ]
    rows = tuple(range(task.n, task.n_cells, task.n))
    sheet = draw_heads(patterns, rows, (task.n_cells, task.prompt_length))
    entitle(sheet, material, "12", "Where the GPT's heads look")
    return sheet


def mean_patterns(model: object, inputs: torch.Tensor) -> list[np.ndarray]:
    """Each layer's patterns `[head, query, key]`, mean over the batch."""
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.cfg.n_layers)]  # type: ignore[attr-defined]
    kept = activations(model, inputs, names)
    return [kept[name].mean(dim=0).numpy() for name in names]


def _kept(task: MatrixCompletion) -> tuple[tuple[int, int], ...]:
    """The two cells of masked rows that are observed; one where the matrix has a single row."""
    cells = {task.m // 2: 1 % task.n, task.m - 1: max(task.n - 2, 0)}
    return tuple(cells.items())
