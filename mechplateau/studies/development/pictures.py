"""Figures of the study that are not lines over steps: components, and the grid of settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pandas as pd

from mechplateau.errors import UserError
from mechplateau.studies.development.coefficients import WHOLE, estimated, scanned
from mechplateau.studies.figures import Material
from mechplateau.views.learning_coefficients import plot_components, plot_settings

if TYPE_CHECKING:
    from mechplateau.runs import Run
    from mechplateau.views.figure import PaperFigure


def by_component(material: Material) -> PaperFigure:
    """λ̂ of each component over the first seed's checkpoints, and the loss."""
    run = _first(material)
    table = estimated(run, material.scale)
    tables = {str(name): lines for name, lines in table.groupby("part", sort=False)}
    plateau = run.signs.plateau
    shaded = (plateau.onset, plateau.drop) if plateau.onset is not None and plateau.drop is not None else None
    return plot_components(tables, whole=WHOLE, plateau=shaded)


def component_table(material: Material) -> pd.DataFrame:
    """What `estimated` gives, of every run."""
    return _together(material, lambda run: estimated(run, material.scale))


def scan_grid(material: Material) -> PaperFigure:
    """The scan of the first seed.

    Raises:
        UserError: it has no checkpoint on a plateau.
    """
    run = _first(material)
    scan = scanned(run)
    if scan is None:
        raise UserError(f"{run.path}: no checkpoint lies on a plateau, so there is nothing to scan")
    return plot_settings(scan, title=f"step {run.phases.during}, on the plateau")


def scan_table(material: Material) -> pd.DataFrame:
    """The scans of all runs that have one."""
    return _together(material, scanned)


def _together(material: Material, of_run: Callable[[Run], pd.DataFrame | None]) -> pd.DataFrame:
    parts = [
        found.assign(recipe=name, seed=run.config.seed)
        for name, runs in material.runs.items()
        for run in runs
        if (found := of_run(run)) is not None
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _first(material: Material) -> Run:
    (runs,) = material.runs.values()
    return runs[0]
