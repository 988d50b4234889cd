"""Runs of regression beside the released models: a run of seed 0 to 4 beside its own, others beside their spread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from mechplateau.studies.figures import Material
from mechplateau.studies.stages.claims import CLAIMS
from mechplateau.studies.stages.pictures import entitled, legend_below, sheet_of, styled
from mechplateau.studies.stages.released import SEEDS, released_regression
from mechplateau.studies.stages.summary import COMPARED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mechplateau.views.figure import PaperFigure

_FIRST = 100
"""The first index that is drawn; before it, next to nothing changes."""
_WORDS = {"ridge_gap": "distance from ridge (y²)", "weight_norm": "norm of the weights"}
_COLORS = ("#20242b", "#c2410c", "#1f5fbf", "#12805c", "#8e44ad")
_OTHER, _BAND = "#8a8f98", "#dfe3e8"


def with_released(material: Material) -> pd.DataFrame:
    """A line a run and released index up to the run's end: seed, step, what the run has there (`ridge_gap`,
    `weight_norm`), and what the released model of its seed has (`released_…`; undefined for other seeds)."""
    released = released_regression()[["seed", "step", *COMPARED]].rename(columns=_released_name)
    parts = [pd.DataFrame(columns=["seed", "step", *COMPARED])]
    for runs in material.runs.values():
        for run in runs:
            table = run.metrics[run.metrics["step"].isin(released["step"])]
            parts.append(table[["step", *COMPARED]].assign(seed=run.config.seed))
    whole = pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)
    table = whole.astype(float).merge(released.astype(float), on=["seed", "step"], how="left")
    return table[["seed", "step", *COMPARED, *map(_released_name, COMPARED)]].astype(
        {"seed": int, "step": int}
    )


def _released_name(column: str) -> str:
    return f"released_{column}" if column in COMPARED else column


@styled
def beside_released(material: Material) -> PaperFigure:
    """Above, runs (points) and released curves (lines of the same color); below, the run minus the released model.

    Seeds without a released model are grey, over the range of the five that were released. Bars below: the claims'
    ranges.
    """
    table = with_released(material)
    table = table[table["step"] >= _FIRST]
    sheet, axes = sheet_of(4, width=7.2, height=4.3, rows=2)
    for column, above, below in zip(COMPARED, axes[:2], axes[2:], strict=True):
        _spread(above, column, float(table["step"].max()) if len(table) else _FIRST)
        for seed in table["seed"].unique().tolist():
            _one(above, below, seed, table[table["seed"] == seed], column)
        above.set_ylabel(_WORDS[column])
        below.set_ylabel("run minus released")
        below.axhline(0, color=_OTHER, linewidth=0.6)
        _claimed(below, column, float(table["step"].max()) if len(table) else _FIRST)
        for ax in (above, below):
            ax.set_xscale("log")
            ax.set_xlabel("index")
            ax.margins(x=0.02)
    if table["released_ridge_gap"].isna().all():
        for ax in axes[2:]:
            ax.text(0.5, 0.6, "these seeds have\nno released model", ha="center", transform=ax.transAxes)
    legend_below(sheet, axes[:1], columns=3)
    (name,) = material.runs
    words = {
        "lr-true": ("B.3", "runs (points) beside the released models of their seeds (lines)"),
        "lr-40292": ("B.3-later", "to index 40,292"),
        "lr-7192": ("B.3-spread", "other seeds (grey) beside the spread of the released ones"),
    }
    id, title = words[name]
    return entitled(sheet, material, id, f"Regression: {title}")


def _one(above: Axes, below: Axes, seed: int, own: pd.DataFrame, column: str) -> None:
    """A run, points and its line; one without a released model is a line alone."""
    known = seed in SEEDS
    color = _COLORS[seed % len(_COLORS)] if known else _OTHER
    looks: dict[str, Any] = {"color": color, "label": f"seed {seed}" if known else "seeds without one"}
    if not known:
        above.plot(own["step"], own[column], linewidth=0.9, **looks)
        return
    above.plot(own["step"], own[f"released_{column}"], linewidth=0.8, color=color)
    above.plot(own["step"], own[column], ".", markersize=3, **looks)
    below.plot(own["step"], own[column] - own[f"released_{column}"], linewidth=0.8, color=color)


def _claimed(ax: Axes, column: str, last: float) -> None:
    """How far off the study's claims let a run be, at their indices."""
    for claim in CLAIMS:
        name, _, step = claim.number.rpartition("_off_")
        if name == column and claim.high is not None and int(step) <= last:
            ax.errorbar([int(step)], [0], claim.high, color=_OTHER, linewidth=0.8, capsize=3)


def _spread(ax: Axes, column: str, last: float) -> None:
    """The range of the five released models."""
    released = released_regression()
    released = released[(released["step"] >= _FIRST) & (released["step"] <= last)]
    ends = released.groupby("step")[column].agg(["min", "max"])
    ax.fill_between(
        ends.index, ends["min"], ends["max"], color=_BAND, linewidth=0, label="range of the released"
    )


__all__ = ["beside_released", "with_released"]
