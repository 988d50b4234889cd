"""The study's pictures that are not lines over steps: toys, chains with other settings, slopes of curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mechplateau.development import affine_check, llc, stages, toys
from mechplateau.development.boundaries import slopes
from mechplateau.development.verdicts import SATURATED_ELASTICITY
from mechplateau.runs import Run
from mechplateau.studies.figures import Material
from mechplateau.studies.recipes import PAPER
from mechplateau.studies.stages.chains import GRID, compared, inspected
from mechplateau.studies.stages.released import released_regression

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mechplateau.views.figure import PaperFigure

_FROM = 100
"""Steps before this one are left out of slopes, as `stages` leaves them out."""
_DARK, _RED, _BLUE, _GREY = "#20242b", "#c2410c", "#1f5fbf", "#8a8f98"


def styled(picture: Callable[[Material], PaperFigure]) -> Callable[[Material], PaperFigure]:
    """Draw all of it in the style of figures."""

    @wraps(picture)
    def drawn(material: Material) -> PaperFigure:
        import matplotlib

        from mechplateau.views.figure import style

        with matplotlib.rc_context(style()):
            return picture(material)

    return drawn


_TOYS = (
    # The step size and the pull with which each gets where it should be within so few steps.
    ("½(w₁² + w₂²)", toys.quadratic([1.0, 1.0], 200), 1e-4, 1.0),
    ("½w₁², w₂ unused", toys.quadratic([1.0, 0.0], 200), 1e-4, 1.0),
    ("w₁⁴ + w₂⁴", toys.sum_of_powers(4, 4, 200), 1e-4, 1.0),
    ("w₁² w₂²", toys.product_of_powers(2, 2, 200), 1e-3, 100.0),
    ("w₁² w₂⁴", toys.product_of_powers(2, 4, 200), 2e-3, 30.0),
)
_TOY_CHAINS: Mapping[str, Any] = {
    "n_beta": 1085.7,
    "chains": 4,
    "draws": 600,
    "burn_in": 300,
    "elasticity": False,
    "step_check": False,
}


def toy_coefficients(material: Material) -> pd.DataFrame:
    """One line a toy: λ, the exact expectation at this nβ, step size and pull, and λ̂."""
    rows = []
    for name, toy, step_size, pull in _TOYS:
        found = llc(
            toy.start, toy.losses, None, step_size=step_size, localization=pull, trivial_loss=math.inf, **_TOY_CHAINS
        )  # fmt: skip
        exact = toy.expected(_TOY_CHAINS["n_beta"], pull, step_size)
        rows.append((name, step_size, pull, toy.coefficient, exact, found.llc / toy.copies))
    return pd.DataFrame(rows, columns=["loss", "step_size", "localization", "lambda", "expected", "sampled"])


@styled
def toy_picture(material: Material) -> PaperFigure:
    """λ of toys, what chains at a finite nβ should give, and what they gave."""
    table = toy_coefficients(material)
    words = {
        "lambda": "λ, the limit",
        "expected": "exact at this nβ, pull and step size",
        "sampled": "λ̂, sampled",
    }
    sheet, (ax,) = sheet_of(1, width=5.2, height=2.6)
    places = np.arange(len(table))
    for shift, (name, color) in enumerate(zip(words, (_GREY, _BLUE, _RED), strict=True)):
        ax.bar(places + 0.27 * (shift - 1), table[name], 0.25, color=color, label=words[name])
    labels = [f"{line.loss}\nγ = {line.localization:g}" for line in table.itertuples()]
    ax.set_xticks(places, labels)
    ax.set_ylabel("learning coefficient")
    ax.legend()
    return entitled(sheet, material, "2", "Losses whose learning coefficient is known")


@styled
def reset_noise(material: Material) -> PaperFigure:
    """λ̂ over steps, with the same noise at all checkpoints and with others."""
    sheet, (ax,) = sheet_of(1, width=4.6, height=2.9)
    lines = {"same noise": "the same batches and noise", "new noise": "others at each checkpoint"}
    _errors(ax, material, lines)
    legend_below(sheet, [ax], columns=1)
    return entitled(sheet, material, "A.3", "Regression: noise that is reset at every checkpoint")


@styled
def random_prefix(material: Material) -> PaperFigure:
    """λ̂ over steps, of the loss over all pairs and of that of a random one."""
    sheet, (ax,) = sheet_of(1, width=4.6, height=2.9)
    _errors(
        ax, material, {"all pairs": "loss of all pairs", "a random pair": "loss of one random pair a context"}
    )
    legend_below(sheet, [ax], columns=1)
    return entitled(sheet, material, "A.6", "Regression: contexts of a random length")


@styled
def grid(material: Material) -> PaperFigure:
    """λ̂ at one checkpoint when one of the settings is changed; hollow where the verdict is not local."""
    sheet, axes = sheet_of(3, width=7.0, height=2.4)
    names = {"step_size": "step size ε", "n_beta": "nβ", "localization": "localization γ"}
    for ax, (setting, values) in zip(axes, GRID.items(), strict=True):
        for tables in material.measured.values():
            for table in tables:
                line = table.iloc[0]
                found = [_number(line[f"{setting} {value:g} llc"]) for value in values]
                ax.plot(values, found, color=_DARK, linewidth=0.8)
                verdicts = [str(line[f"{setting} {value:g} verdict"]) for value in values]
                _judged(ax, values, found, verdicts, _DARK, above=[i % 2 == 0 for i in range(len(values))])
        ax.set_xscale("log")
        ax.set_xticks(values, [_short(value) for value in values], fontsize=6)
        ax.set_xticks([], minor=True)
        ax.set_xlabel(names[setting])
        ax.set_ylabel("λ̂")
        ax.margins(0.25, 0.25)
    return entitled(
        sheet, material, "A.4", f"Regression, {_at(material)}: one setting changed, with the verdicts"
    )


@styled
def traces(material: Material) -> PaperFigure:
    """λ̂ over draws so far, of chains that stay, leave, and are lost."""
    (runs,) = material.runs.values()
    found = compared(runs[0])
    sheet, axes = sheet_of(len(found), width=7.0, height=2.4)
    for ax, (name, table) in zip(axes, found.items(), strict=True):
        line = table.table.iloc[0]
        ax.set_title(f"{name}: {line['verdict']}", fontsize=7)
        ax.set_xlabel("draw")
        ax.set_ylabel("λ̂ of the draws so far")
        if table.traces[inspected(runs[0])]:
            for chain in table.running(inspected(runs[0])):
                ax.plot(chain, linewidth=0.8)
        else:
            ax.text(
                0.5, 0.5, "all chains went\nto infinity", ha="center", va="center", transform=ax.transAxes
            )
            ax.set_xticks([])
            ax.set_yticks([])
    return entitled(sheet, material, "A.5", f"Regression, {_at(material)}: traces, and how chains fail")


@styled
def slopes_of_text(material: Material) -> PaperFigure:
    """The loss of a language model over log steps, and its slope."""
    return _slopes(
        material, "B.1", "Text: slope of the loss, and where it rests", [("test_loss", "loss", 1.0)]
    )


@styled
def slopes_of_regression(material: Material) -> PaperFigure:
    """The released λ̂ of the run's seed, −nβ times the run's own loss, and their slopes.

    What was released has no verdicts; whether it is a straight line in its own loss is told instead.
    """
    (runs,) = material.runs.values()
    n_beta = runs[0].task.llc_settings["published"]["n_beta"]
    lines = [_is_a_line_in_its_loss(run, n_beta) for run in runs]
    verdict = "saturated" if all(lines) else "verdict unknown"
    wanted = [("llc", f"λ̂ as released: {verdict}", 1.0), ("mse", "−nβ · loss", -n_beta)]
    return _slopes(material, "B.2", "Regression: slopes of λ̂ and of the loss, and where they rest", wanted)


OF_RECIPE = {
    "lr-true": ("regression", "Regression"),
    "lm-bigram": ("text", "Text"),
    "lm-induction": ("induction", "Repeated rows"),
}
"""Recipe → the end of its figure's id, and what its title begins with."""
_LOSSES = {
    "chains_loss": ("loss at w*", _DARK, "-"),
    "chains_mean_loss": ("loss along the chains", _RED, "--"),
    "chains_trivial_loss": ("loss without looking at the input", _BLUE, "-."),
}


@styled
def coefficients(material: Material) -> PaperFigure:
    """λ̂ of every run, a color for each verdict; the losses that judge it; elasticity. A thin line joins a run."""
    (name,) = material.runs
    sheet, axes = sheet_of(3, width=7.2, height=2.9)
    tables = material.measured[name]
    verdicts = dict.fromkeys(name for table in tables for name in map(str, table) if name.startswith("llc "))
    colors = dict(zip(verdicts, cycle(_colors()), strict=False))
    for table in tables:
        own = [column for column in verdicts if column in table]
        llc = pd.concat([table[column].astype(float) for column in own], axis=1).sum(axis=1, min_count=1)
        axes[0].plot(table["step"], llc, color=_GREY, linewidth=0.6)
        for column in own:
            values = table[column].astype(float)
            label = f"λ̂: {column.removeprefix('llc ')}"
            axes[0].plot(table["step"], values, "o", color=colors[column], markersize=3, label=label)
        for column, (words, color, dash) in _LOSSES.items():
            values = table[column].astype(float)
            axes[1].plot(table["step"], values, color=color, linestyle=dash, linewidth=0.8, label=words)
        elasticity = table["chains_elasticity"].astype(float)
        axes[2].plot(table["step"], elasticity, "o-", color=_DARK, markersize=3, linewidth=0.6)
    axes[2].axhline(SATURATED_ELASTICITY, color=_GREY, linewidth=0.6, linestyle=":")
    for ax, axis in zip(axes, ("λ̂", "loss", "elasticity (log₂ ratio)"), strict=True):
        ax.set_xlabel("step")
        ax.set_ylabel(axis)
    legend_below(sheet, axes, columns=3)
    short, title = OF_RECIPE[name]
    return entitled(sheet, material, f"1-{short}", f"{title}: learning coefficients with their verdicts")


@styled
def against_loss(material: Material) -> PaperFigure:
    """λ̂ at checkpoints against −loss, a color for each verdict, and a line of slope nβ."""
    ((name, runs),) = material.runs.items()
    sheet, (ax,) = sheet_of(1, width=4.6, height=2.8)
    table = pd.concat(material.measured[name], ignore_index=True)
    loss, llc = -table["chains_loss"].astype(float), pd.Series(math.nan, index=table.index)
    for column, color in zip(table.filter(regex="^llc ").columns, cycle(_colors()), strict=False):
        values = table[column].astype(float)
        ax.plot(loss, values, "o", color=color, markersize=3.5, label=column.removeprefix("llc "))
        llc = llc.fillna(values)
    n_beta = runs[0].task.llc_settings["published"]["n_beta"]
    check = affine_check(llc.tolist(), (-loss).tolist(), n_beta)
    if check.r is not None:
        ends = np.array([loss.min(), loss.max()])
        label = f"slope nβ = {n_beta:g}; least squares {-(check.slope or 0):.4g}, r = {-check.r:.4f}"
        ax.plot(ends, llc.mean() + n_beta * (ends - loss.mean()), color=_GREY, linewidth=0.8, label=label)
    ax.set_xlabel("−loss at w*")
    ax.set_ylabel("λ̂")
    ax.legend()
    return entitled(sheet, material, f"loss-{name}", "λ̂ against −loss, by verdict")


def _slopes(material: Material, id: str, title: str, wanted: Sequence[tuple[str, str, float]]) -> PaperFigure:
    (runs,) = material.runs.values()
    sheet, axes = sheet_of(2 * len(wanted), width=6.4, height=2.1 * len(wanted) + 0.4, rows=len(wanted))
    for row, (column, words, scale) in enumerate(wanted):
        above, below = axes[2 * row], axes[2 * row + 1]
        for place, run in enumerate(runs):
            table = _with_released(run)
            if column not in table or table[column].notna().sum() < 2:
                continue
            table = table.loc[table["step"] >= _FROM, ["step", column]].dropna()
            table[column] *= scale
            color = _colors()[place % len(_colors())]
            above.plot(table["step"], table[column], ".", color=color, markersize=2)
            curve = slopes(table, column)
            above.plot(curve["step"], curve["value"], color=color, linewidth=0.8)
            below.plot(curve["step"], curve["slope"], color=color, linewidth=0.8)
            for boundary in _boundaries(table, column):
                for ax in (above, below):
                    ax.axvline(boundary, color=color, linewidth=0.6, linestyle=":")
        for ax, axis in ((above, words), (below, "its slope, d / d ln(step)")):
            ax.set_xscale("log")
            ax.set_xlabel("step")
            ax.set_ylabel(axis)
        below.axhline(0, color=_GREY, linewidth=0.6)
    return entitled(sheet, material, id, title)


def _with_released(run: Run) -> pd.DataFrame:
    """A run's table, with the λ̂ that was released for its seed up to its last step."""
    released = released_regression()
    own = released[(released["seed"] == run.config.seed) & (released["step"] <= run.metrics["step"].max())]
    return run.metrics.drop(columns="llc", errors="ignore").merge(own[["step", "llc"]], on="step", how="left")


def _is_a_line_in_its_loss(run: Run, n_beta: float) -> bool:
    """Whether the λ̂ released for a run's seed, up to its last step, is nothing but the released loss."""
    table = released_regression()
    table = table[(table["seed"] == run.config.seed) & (table["step"] <= run.metrics["step"].max())]
    return bool(affine_check(table["llc"].tolist(), table["mse"].tolist(), n_beta).saturated)


def _boundaries(table: pd.DataFrame, column: str) -> list[float]:
    found = stages(table, column, loss=column).column
    return [boundary.step for boundary in found.boundaries if boundary.certain]


def _errors(ax: Axes, material: Material, lines: Mapping[str, str]) -> None:
    """λ̂ over steps, a line each, with the standard deviation of the chains' means and verdicts; of the first run."""
    (tables,) = material.measured.values()
    for shift, ((name, words), color) in enumerate(zip(lines.items(), (_DARK, _RED), strict=True)):
        table = tables[0]
        steps = table["step"] * (1 + 0.01 * shift)
        values, sd = (table[f"{name} {part}"].astype(float) for part in ("llc", "chain_sd"))
        verdicts = [str(verdict) for verdict in table[f"{name} verdict"]]
        same = len(set(verdicts)) == 1
        label = f"{words}: {verdicts[0]}" if same else words
        ax.errorbar(steps, values, yerr=sd, color=color, linewidth=0.9, label=label)
        above = None if same else [not shift] * len(steps)
        _judged(ax, list(steps), list(values), verdicts, color, above=above)
    ax.margins(0.12, 0.12)
    ax.set_xlabel("step")
    ax.set_ylabel("λ̂ ± sd of chains")


def _judged(
    ax: Axes,
    places: Sequence[float],
    values: Sequence[float],
    verdicts: Sequence[str],
    color: str,
    *,
    above: Sequence[bool] | None,
) -> None:
    """Points with their verdicts above or below them (None: not written), hollow where the verdict is not local."""
    for place, (x, y, verdict) in enumerate(zip(places, values, verdicts, strict=True)):
        fill = color if verdict == "local" else "white"
        ax.plot([x], [y], "o", color=color, mfc=fill, markersize=3.5, zorder=3)
        if above is None:
            continue
        ax.annotate(
            verdict,
            (x, y),
            (0, 5 if above[place] else -10),
            textcoords="offset points",
            ha="center",
            fontsize=5,
            color=color,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4, "alpha": 0.8},
        )


def _at(material: Material) -> str:
    (runs,) = material.runs.values()
    return f"step {inspected(runs[0]):,}"


def _short(value: float) -> str:
    """`3e-4` for 0.0003, so that ticks do not touch."""
    return f"{value:g}" if value >= 0.01 else f"{value:.0e}".replace("e-0", "e-")


def _number(value: Any) -> float:
    return math.nan if value is None or pd.isna(value) else float(value)


def _colors() -> tuple[str, ...]:
    return (_DARK, _RED, _BLUE, "#12805c", "#8e44ad", "#b7791f")


def sheet_of(panels: int, *, width: float, height: float, rows: int = 1) -> tuple[PaperFigure, list[Axes]]:
    from mechplateau.views.figure import PaperFigure

    sheet = PaperFigure(width, height)
    return sheet, list(sheet.subplots(rows, panels // rows, squeeze=False).flat)


def legend_below(sheet: PaperFigure, axes: Sequence[Axes], *, columns: int) -> None:
    """One legend for all of them, where it hides no curve; each label once."""
    once: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            once.setdefault(label, handle)
    if once:
        sheet.legend(
            list(once.values()), list(once), loc="outside lower center", ncols=min(columns, len(once))
        )


def entitled(sheet: PaperFigure, material: Material, id: str, title: str) -> PaperFigure:
    note = "" if material.scale == PAPER else f"  ({material.scale} scale)"
    sheet.suptitle(f"Figure {id}. {title}{note}", fontsize=9, x=0.01, ha="left")
    return sheet


__all__ = [
    "OF_RECIPE",
    "against_loss",
    "coefficients",
    "entitled",
    "grid",
    "legend_below",
    "random_prefix",
    "reset_noise",
    "sheet_of",
    "slopes_of_regression",
    "slopes_of_text",
    "styled",
    "toy_coefficients",
    "toy_picture",
    "traces",
]
