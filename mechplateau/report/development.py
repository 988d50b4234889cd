"""The report's section on learning coefficients: what `mechplateau llc` has found of a run, with its verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from mechplateau.development import kept_scans
from mechplateau.development.llc_table import LlcTable
from mechplateau.development.of_runs import kept_llcs
from mechplateau.runs import Run
from mechplateau.views import SectionView

if TYPE_CHECKING:
    from mechplateau.llm.coefficients import SeriesCoefficients
    from mechplateau.views.figure import PaperFigure

_WHOLE = "all weights"
_COLUMNS = {
    "step": "step",
    "loss": "L(w*)",
    "mean_loss": "E[L]",
    "paired": "λ̂",
    "chain_sd": "chain sd",
    "elasticity": "elasticity",
    "verdict": "verdict",
    "reason": "why",
}


_MEANING = (
    "λ̂ = nβ (E[L] − L(w*)): how much the loss rises when the weights are shaken. It is a learning coefficient only "
    "where the verdict says local: a chain that has left the neighborhood measures something else."
)


def llc_section(run: Run) -> SectionView | None:
    """The section, of the settings with most checkpoints; None where nothing was estimated."""
    tables = kept_llcs(run)
    if not tables:
        return None
    found = tables[0]  # of the whole model, where there is one
    first = found.table.iloc[0]
    others = (
        f" {len(tables) - 1} more tables, of other settings, are kept beside the run."
        if len(tables) > 1
        else ""
    )
    text = (
        _MEANING,
        f"{found.beside_the_loss} nβ {cell(first['n_beta'])}, ε {cell(first['step_size'])}, γ "
        f"{cell(first['localization'])}.{others}",
    )
    return _section(text, llc_figure(run, found), found)


def llc_section_of_series(coefficients: SeriesCoefficients) -> SectionView:
    """The section of a page on a series of language models."""
    found = coefficients.found
    first = found.table.iloc[0]
    text: tuple[str, ...] = (
        _MEANING,
        f"{found.beside_the_loss} On {coefficients.rows} rows of {coefficients.row_length} tokens. nβ "
        f"{cell(first['n_beta'])}, ε {cell(first['step_size'])}, γ {cell(first['localization'])}, trivial loss "
        f"{cell(first['trivial_loss'])}.",
    )
    if coefficients.left_out:
        text += (f"Left out, as their tokenizers give other tokens: {', '.join(coefficients.left_out)}.",)
    from mechplateau.views.learning_coefficients import plot_llc  # matplotlib: half a second

    steps = _some(found)
    figure = plot_llc(found.table, {step: found.running(step) for step in steps}, log_steps=True)
    return _section(text, figure, found)


def parts_section(run: Run) -> SectionView | None:
    """λ̂ of parts of the weights beside that of all, at the same nβ; None where no part was estimated."""
    from mechplateau.views.learning_coefficients import plot_components

    named: dict[str, pd.DataFrame] = {}
    tables = kept_llcs(run)
    for found in tables:
        if found.n_beta == tables[0].n_beta:
            named.setdefault(_name(found), found.table)
    if set(named) <= {_WHOLE}:
        return None
    text = (
        "Only these weights move, the others stay. A part's λ̂ is not a share of the whole model's: what two parts lose "
        "together is in neither. Each point's marker is its verdict.",
    )
    figure = plot_components(named, whole=_WHOLE if _WHOLE in named else None, plateau=_plateau(run))
    alt = "λ̂ of parts of the weights over checkpoints, and the losses along the chains"
    return SectionView("Learning coefficient by part", text, figure, alt)


def scan_section(run: Run) -> SectionView | None:
    """The scan of settings at a checkpoint, the last of those that were scanned; None where none was."""
    from mechplateau.views.learning_coefficients import plot_settings

    scans = kept_scans(run)
    if not scans:
        return None
    step, scan = list(scans.items())[-1]
    local = int((scan["verdict"] == "local").sum())
    text = (
        f"{len(scan)} settings of ε, γ and nβ at step {step}: {local} of them give an estimate with the verdict local, "
        "which is a learning coefficient; the others measure something else.",
    )
    alt = "a panel for each nβ, a cell for each γ and step size, in the color of its verdict"
    return SectionView("Settings of the chains", text, plot_settings(scan, title=f"step {step}"), alt)


def _name(found: LlcTable) -> str:
    return _WHOLE if found.parts is None else ", ".join(map(_weights, found.parts))


def _weights(part: Any) -> str:
    return part if isinstance(part, str) else f"{part[0]}[{part[1]}]"


def _plateau(run: Run) -> tuple[float, float] | None:
    plateau = run.signs.plateau
    return (plateau.onset, plateau.drop) if plateau.onset is not None and plateau.drop is not None else None


def _section(text: tuple[str, ...], figure: PaperFigure, found: LlcTable) -> SectionView:
    rows = tuple(tuple(cell(line[column]) for column in _COLUMNS) for line in found.table.to_dict("records"))
    alt = "λ̂ by verdict, losses along the chains against the trivial loss, and the chains themselves"
    return SectionView("Learning coefficient", text, figure, alt, tuple(_COLUMNS.values()), rows)


def llc_figure(run: Run, found: LlcTable) -> PaperFigure:
    """λ̂, the losses and the chains of the first, a middle and the last checkpoint."""
    from mechplateau.views.learning_coefficients import plot_llc  # matplotlib: half a second

    return plot_llc(found.table, {step: found.running(step) for step in _some(found)}, plateau=_plateau(run))


def _some(found: LlcTable) -> list[int]:
    """The first, a middle and the last checkpoint that has chains."""
    steps = [step for step in found.table["step"] if "losses" in found.traces.get(step, {})]
    return list(dict.fromkeys(steps[i] for i in (0, len(steps) // 2, -1))) if steps else []


def cell(value: Any) -> str:
    """A number in a table, in four digits; an en dash where it is undefined."""
    if isinstance(value, str | int):
        return str(value)
    return "–" if pd.isna(value) else f"{value:.4g}"


__all__ = ["cell", "llc_figure", "llc_section", "llc_section_of_series", "parts_section", "scan_section"]
