"""The study's pictures: the solved model, and its parts over training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from torch import Tensor

from mechplateau.circuits.frequency_ablation import ablate_frequencies
from mechplateau.circuits.patching import activations
from mechplateau.circuits.positional_map import window_weights
from mechplateau.circuits.sum_terms import summands
from mechplateau.circuits.tuning import neuron_tuning, token_spectrum
from mechplateau.runs import Run
from mechplateau.signs import Signs
from mechplateau.studies.drawing import entitle
from mechplateau.studies.figures import Material
from mechplateau.studies.solved.inside import PARTS
from mechplateau.tasks import Task, sequence_task

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mechplateau.views.figure import PaperFigure

_SEED, _SEQUENCES = 31, 512
_DARK, _RED, _BLUE, _GREEN, _GREY = "#20242b", "#c2410c", "#1f5fbf", "#12805c", "#8a8f98"
_EDITS = ("as it is", "keep its own", "… another", "… renamed", "remove its own", "… another", "… renamed")
"""The lines of `ablate_frequencies`, in their order."""


def neurons_table(material: Material) -> pd.DataFrame:
    """One line a seed and neuron of the solved models: seed, and the columns of `neuron_tuning`."""
    return pd.concat(
        [_tuning(run).assign(seed=run.config.seed) for run in material.runs["mws"]], ignore_index=True
    )


def taken_apart(material: Material) -> PaperFigure:
    """Windows' weights, frequencies, phases, and what is lost without them."""
    import matplotlib

    from mechplateau.views.figure import PaperFigure, style

    runs = material.runs["mws"]
    tunings = [_tuning(run) for run in runs]
    with matplotlib.rc_context(style()):
        sheet = PaperFigure(7.6, 4.6)
        (attention, weights, shares), (spectrum, phases, edits) = sheet.subplots(2, 3)
        _draw_map(sheet, attention, runs[0])
        _draw_weights(weights, runs)
        _draw_shares(shares, tunings)
        _draw_spectrum(spectrum, runs[0], tunings[0])
        _draw_phases(phases, tunings[0])
        _draw_edits(edits, runs)
        entitle(sheet, material, "1", "The solved model, taken apart")
    return sheet


def over_training(material: Material) -> PaperFigure:
    """Loss, attention on Ω and tuning over steps, and the solved model with each part of every checkpoint; a line a
    seed, the first in full; its plateau is shaded."""
    import matplotlib

    from mechplateau.views.figure import PaperFigure, style

    with matplotlib.rc_context(style()):
        sheet = PaperFigure(7.0, 2.6)
        signs, parts = sheet.subplots(1, 2)
        for index, (run, measured) in enumerate(
            zip(material.runs["mws"], material.measured["mws"], strict=True)
        ):
            _draw_signs(signs, run, measured, first=index == 0)
            for part, color in zip(PARTS, (_BLUE, _GREEN, _RED), strict=True):
                _draw_seed(parts, measured, f"loss_{part.lower()}", color, f"its {part}", first=index == 0)
        parts.set_ylabel("loss of the solved model, nats")
        parts.set_title("… with a part of the step's model")
        signs.set_title("Loss, attention and tuning")
        signs.set_ylabel("share; loss / largest")
        plateau = material.runs["mws"][0].phases.plateau
        for ax in (signs, parts):
            if plateau.found:
                ax.axvspan(plateau.onset, plateau.drop, color=_GREY, alpha=0.15, linewidth=0)
            ax.set_xlabel("step")
            ax.margins(x=0)
            ax.legend(handlelength=1.5)
        entitle(sheet, material, "2", "When each part is learned")
    return sheet


def _draw_map(sheet: PaperFigure, ax: Axes, run: Run) -> None:
    """Of the first head of the last layer, at the output rows."""
    task, tokens = _data(run)
    hook = f"blocks.{run.config.model.n_layers - 1}.attn.hook_pattern"
    model = run.model(run.steps[-1])
    pattern = activations(model, tokens[:, :-1], [hook])[hook]
    seen = pattern[:, 0, list(task.output_rows)].mean(dim=0).numpy()
    most = float(np.nanmax(np.abs(seen)))
    image = ax.imshow(seen, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
    sheet.colorbar(image, ax=ax, shrink=0.8)
    ax.set_title("Mean attention")
    ax.set_xlabel("key")
    ax.set_ylabel("output")


def _draw_weights(ax: Axes, runs: Sequence[Run]) -> None:
    for run in runs:
        task, tokens = _data(run)
        table = window_weights(run.model(run.steps[-1]), tokens, task)
        windows = table[table["size"] > 1]["weight"].astype(float)
        unit = windows.abs().median() * np.sign(windows.median())
        first = min(task.output_rows)
        for place, (color, name) in enumerate(((_BLUE, "earlier input"), (_RED, "later input"))):
            line = table[table["key"] == table["row"] - task.n_outputs - 1 + place]
            shown = name if run is runs[0] else None
            ax.plot(
                line["row"] - first,
                line["weight"].astype(float) / unit,
                ".-",
                color=color,
                label=shown,
                lw=0.6,
                ms=3,
            )
    ax.axhline(0, color=_GREY, linewidth=0.6)
    ax.set_title("Weights of the window")
    ax.set_xlabel("output")
    ax.set_ylabel("attention / median window")
    ax.legend()


def _draw_shares(ax: Axes, tunings: Sequence[pd.DataFrame]) -> None:
    bins = [i / 40 for i in range(41)]
    together = pd.concat(tunings)
    for name, color, label in (("control_share", _GREY, "renamed tokens"), ("share", _DARK, "the sum")):
        ax.hist(together[name].dropna().astype(float), bins, color=color, alpha=0.7, label=label)
    ax.axvline(together["chance"].iloc[0], color=_RED, linestyle=":", label="noise")
    ax.set_ylim(0, 1.4 * ax.get_ylim()[1])
    ax.set_title("Share of one frequency")
    ax.set_xlabel("of a neuron's tuning curve")
    ax.set_ylabel("neurons")
    ax.legend()


def _draw_spectrum(ax: Axes, run: Run, tuning: pd.DataFrame) -> None:
    own = token_spectrum(run.model(run.steps[-1]).W_E[: summands(*_data(run)).p])
    counts = tuning["frequency"].value_counts(normalize=True)
    places = own["frequency"].to_numpy()
    neurons = [counts.get(frequency, 0.0) for frequency in places]
    ax.bar(places - 0.2, own["share"].astype(float), width=0.4, color=_GREY, label="embeddings")
    ax.bar(places + 0.2, neurons, width=0.4, color=_DARK, label="neurons")
    ax.axhline(own["flat"].iloc[0], color=_RED, linestyle=":", label="flat")
    ax.set_ylim(0, 1.5 * max(own["share"].max(), *neurons))
    ax.set_title("Frequencies")
    ax.set_xlabel("frequency")
    ax.set_ylabel("share")
    ax.legend()


def _draw_phases(ax: Axes, tuning: pd.DataFrame) -> None:
    phases = tuning[["in_phase", "out_phase"]].dropna().astype(float)
    turns = 2 * math.pi
    ax.plot(
        2 * phases["in_phase"] % turns / turns, phases["out_phase"] % turns / turns, ".", ms=2, color=_DARK
    )
    ax.set_title("Phases of neurons")
    ax.set_xlabel("2 × input phase, turns")
    ax.set_ylabel("output phase, turns")


def _draw_edits(ax: Axes, runs: Sequence[Run]) -> None:
    for run in runs:
        task, tokens = _data(run)
        table = ablate_frequencies(run.model(run.steps[-1]), tokens, task)
        found = table["accuracy"].astype(float)
        ax.plot(found, range(len(found)), ".", color=_DARK, ms=5)
    ax.set_yticks(range(len(_EDITS)), _EDITS)
    ax.invert_yaxis()
    ax.set_xlim(-0.03, 1.03)
    ax.set_title("Waves kept or removed")
    ax.set_xlabel("accuracy, one dot a seed")


def _draw_signs(ax: Axes, run: Run, measured: pd.DataFrame, *, first: bool) -> None:
    table = run.metrics
    apm = Signs(table, sequence_task(run.task, "the figure")).progress_column
    scaled = table.assign(loss=table["loss"] / table["loss"].max())
    _draw_seed(ax, scaled, "loss", _DARK, "loss", first=first)
    if apm is not None:
        _draw_seed(ax, table, apm, _BLUE, "attention on Ω", first=first)
    _draw_seed(ax, measured, "tuning", _RED, "tuning of neurons", first=first)
    if first:
        _draw_seed(ax, measured, "tuning_control", _GREY, "… to renamed tokens", first=True)


def _draw_seed(ax: Axes, table: pd.DataFrame, name: str, color: str, label: str, *, first: bool) -> None:
    values = table[name].astype(float)
    wide, alpha = (1.3, 1.0) if first else (0.6, 0.4)
    ax.plot(table["step"], values, color=color, linewidth=wide, alpha=alpha, label=label if first else None)


def _tuning(run: Run) -> pd.DataFrame:
    task, tokens = _data(run)
    return neuron_tuning(run.model(run.steps[-1]), tokens, task)


def _data(run: Run) -> tuple[Task, Tensor]:
    task = sequence_task(run.task, "the figure")
    return task, task.sample(_SEQUENCES, seed=_SEED)


__all__ = ["neurons_table", "over_training", "taken_apart"]
