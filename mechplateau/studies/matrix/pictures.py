"""Figures of matrix completion that are not lines over steps: nuclear norm, other matrices. Maps are in `maps`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from mechplateau.circuits.completion import completion_losses
from mechplateau.metrics.completion import squared_errors
from mechplateau.metrics.nuclear_norm import complete, nuclear_norm
from mechplateau.studies.drawing import entitle
from mechplateau.studies.figures import Material
from mechplateau.tasks.matrix_completion import MatrixCompletion

if TYPE_CHECKING:
    from mechplateau.runs import Run
    from mechplateau.views.figure import PaperFigure

_SEED = 22
_MASKED = tuple(round(0.1 + 0.05 * index, 2) for index in range(11))
_MATRICES = 512
_OURS, _THEIRS = "#20242b", "#c2410c"


def nuclear_norm_table(material: Material) -> pd.DataFrame:
    """One line a share of masked cells: p_mask, error and nuclear norm of the encoder, of nuclear norm, and of X.

    Errors are of all cells, of 512 matrices, and of the first seed's last checkpoint.
    """
    run = first_run(material)
    task, model = task_of(run), run.model(run.steps[-1])
    lines = []
    for p_mask in _MASKED:
        batch = task.with_(p_mask=p_mask).batch(_MATRICES, seed=_SEED)
        shape = (-1, task.m, task.n)
        with torch.no_grad():
            ours = model(batch.inputs)
        targets, observed = batch.targets.view(shape), batch.observed.view(shape)
        theirs, _ = complete(targets, observed)
        norms = {
            name: float(nuclear_norm(values.double()).mean())
            for name, values in (("encoder", ours.view(shape)), ("nuclear", theirs), ("truth", targets))
        }
        lines.append(
            {
                "p_mask": p_mask,
                "encoder": float(squared_errors(ours, batch.targets, batch.observed)[0]),
                "nuclear": float((theirs - targets).square().mean()),
                **{f"norm_{name}": value for name, value in norms.items()},
            }
        )
    return pd.DataFrame(lines)


def against_nuclear_norm(material: Material) -> PaperFigure:
    """Error and nuclear norm over the share of masked cells."""
    import matplotlib

    from mechplateau.views.figure import PaperFigure, style

    table = nuclear_norm_table(material)
    with matplotlib.rc_context(style()):
        sheet = PaperFigure(6.0, 2.4)
        left, right = sheet.subplots(1, 2)
        for name, label, color in (("encoder", "encoder", _OURS), ("nuclear", "nuclear norm", _THEIRS)):
            left.plot(table["p_mask"], table[name], marker=".", color=color, label=label)
            right.plot(table["p_mask"], table[f"norm_{name}"], marker=".", color=color, label=label)
        right.plot(table["p_mask"], table["norm_truth"], color="#8a8f98", linestyle=":", label="truth")
        left.set_yscale("log")
        left.set_ylabel("squared error, all cells")
        right.set_ylabel("mean nuclear norm")
        for ax in (left, right):
            ax.set_xlabel("share of masked cells")
            ax.legend()
        entitle(sheet, material, "3", "The encoder against nuclear norm")
    return sheet


def other_matrices_table(material: Material) -> pd.DataFrame:
    """One line a kind of matrix: what, loss, loss_obs, loss_mask (each over that kind's E x²), and nuclear norm's loss.

    Of 1,024 matrices each. Fewer rows or columns are read row after row, at the first positions.
    """
    run = first_run(material)
    task, model = task_of(run), run.model(run.steps[-1])
    lines = []
    for what, other in _others(task):
        batch = other.batch(2 * _MATRICES, seed=_SEED)
        unit = float(batch.targets.square().mean())
        with torch.no_grad():
            losses = completion_losses(batch)(model(batch.inputs))
        shape = (-1, other.m, other.n)
        few = slice(0, _MATRICES // 2)
        targets, observed = batch.targets[few].view(shape), batch.observed[few].view(shape)
        completed, _ = complete(targets, observed)
        theirs = float((completed - targets).square().mean())
        lines.append(
            {"what": what, **{name: value / unit for name, value in losses.items()}, "nuclear": theirs / unit}
        )
    return pd.DataFrame(lines)


def other_matrices(material: Material) -> PaperFigure:
    """Loss on other ranks, sizes and factors."""
    import matplotlib

    from mechplateau.views.figure import PaperFigure, style

    table = other_matrices_table(material)
    places = np.arange(len(table))
    with matplotlib.rc_context(style()):
        sheet = PaperFigure(4.5, 0.9 + 0.28 * len(table))
        ax = sheet.subplots(1, 1)
        ax.barh(places - 0.2, table["loss"], height=0.35, color=_OURS, label="encoder")
        ax.barh(places + 0.2, table["nuclear"], height=0.35, color=_THEIRS, label="nuclear norm")
        ax.set_yticks(places, table["what"])
        ax.invert_yaxis()
        ax.set_xlabel("squared error, all cells / E x²")
        sheet.legend(loc="outside lower center", ncols=2)
        entitle(sheet, material, "19", "Matrices that were not trained on")
    return sheet


def _others(task: MatrixCompletion) -> Iterable[tuple[str, MatrixCompletion]]:
    yield "as trained", task
    # Only what stays in the range of values that have a token.
    for rank in range(1, min(task.m, task.n, 4) + 1):
        if rank != task.rank and rank <= task.value_max:
            yield f"rank {rank}", task.with_(rank=rank)
    for size in range(2, task.m):
        if task.rank <= size:
            yield f"{size} rows", task.with_(m=size)
    for size in range(2, task.n):
        if task.rank <= size:
            yield f"{size} columns", task.with_(n=size)
    if task.value_max >= 10:
        yield "gaussian factors, 0.5", task.with_(factors="gaussian", scale=0.5)
        yield "laplace factors, 0.25", task.with_(factors="laplace", scale=0.25)


def first_run(material: Material, recipe: str = "mc") -> Run:
    """The run of the first seed."""
    return material.runs[recipe][0]


def task_of(run: Run) -> MatrixCompletion:
    """Its task, which is matrix completion by an encoder."""
    task = run.config.task
    assert isinstance(task, MatrixCompletion)
    return task
