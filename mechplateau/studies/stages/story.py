"""The report's story of stages: what defines them, heads while they form, maps of the heads that matter."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import torch

from mechplateau.development import stages
from mechplateau.errors import UserError
from mechplateau.runs import Run
from mechplateau.studies.panels import Panel
from mechplateau.studies.stages.figures import FIGURES
from mechplateau.studies.stages.released import released_value
from mechplateau.studies.stages.summary import INDICES, at, best_heads, language_numbers
from mechplateau.tasks import InContextRegression, Text
from mechplateau.tasks.corpus import END
from mechplateau.views import SectionView
from mechplateau.views.figure import PLATEAU_COLOR, PaperFigure, style

_SHOWN = {"text": "induction", "in_context_regression": "5"}
_HALF = 12
"""Tokens of the random half that maps are drawn for."""


def stage_sections(run: Run) -> tuple[SectionView, ...]:
    """The sections of a run of text or of regression in context; none of other runs, or where nothing was measured."""
    if not isinstance(run.task, Text | InContextRegression) or len(run.metrics) < 2:
        return ()
    bounds, words = _bounds(run)
    panels = next(figure for figure in FIGURES if figure.id == _SHOWN[run.task.name]).panels
    shown = [panel for panel in panels if panel.columns(run.metrics)]
    first = SectionView(title="Stages", text=(words, "None of the scores that define stages was measured."))
    if shown:
        first = SectionView(
            title="Stages",
            text=(words,),
            picture=_curves(run, shown, bounds),
            alt="The scores that define the stages over training steps, with every second stage shaded.",
        )
    if isinstance(run.task, InContextRegression):
        return (first, *_beside_released(run))
    return (first, *_heads(run), *_maps(run))


def _bounds(run: Run) -> tuple[tuple[float, ...], str]:
    """Where the loss's own stages end, and that in words."""
    try:
        found = stages(run.metrics, "loss").loss
    except UserError as error:
        return (), f"No stages were looked for: {error}."
    ends = tuple(float(boundary.step) for boundary in found.boundaries if boundary.certain)
    if not ends:
        return (
            (),
            f"The loss has no stages of its own that are certain ({found.note or 'pauses within the noise'}).",
        )
    listed = ", ".join(f"{end:,.0f}" for end in ends)
    return ends, (
        f"Stages of the loss itself end at about step {listed}. Every second one is shaded; steps are on a log scale."
    )


def _curves(run: Run, shown: Sequence[Panel], bounds: Sequence[float]) -> PaperFigure:
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    table = run.metrics[run.metrics["step"] > 0]
    edges = [float(table["step"].min()), *bounds, float(table["step"].max())]
    with matplotlib.rc_context(style()):
        sheet = PaperFigure(2.9 * columns, 1.9 * rows)
        axes = sheet.subplots(rows, columns, squeeze=False).flat
        for panel, ax in zip(shown, axes, strict=False):
            panel.draw(ax, {"run": [table]})
            ax.set_xscale("log")
            for begin, end in zip(edges[1::2], edges[2::2], strict=False):
                ax.axvspan(begin, end, color=PLATEAU_COLOR, zorder=0)
        for ax in list(sheet.axes)[len(shown) :]:
            ax.remove()
    return sheet


def _beside_released(run: Run) -> tuple[SectionView, ...]:
    """A run on the paper's schedule beside the released model of its seed."""
    seed, rows = run.config.seed, []
    for step in INDICES:
        own = [at(run.metrics, step, column) for column in ("ridge_gap", "weight_norm")]
        theirs = [released_value(seed, step, column) for column in ("ridge_gap", "weight_norm")]
        if None not in own and None not in theirs:
            values = (own[0], theirs[0], own[1], theirs[1])
            rows.append((f"{step:,}", *(f"{value:.3f}" for value in values)))
    ours = run.config.training.schedule == "one_cycle" and run.config.training.steps == 500_000
    if not rows or not ours:
        return ()
    return (
        SectionView(
            title="Beside the released model of this seed",
            text=(
                "The run starts from the weights of the authors' model of the same seed. Its data are others; sets of "
                "8,192 contexts differ in the distance from ridge by about .03 early and .01 late.",
            ),
            columns=("index", "distance from ridge", "released", "norm of weights", "released norm"),
            rows=tuple(rows),
        ),
    )


def _heads(run: Run) -> tuple[SectionView, ...]:
    """Previous-token and prefix scores of all heads at three steps."""
    table = run.metrics
    low, end = language_numbers(table)["bigram_at"], int(table["step"].iloc[-1])
    steps = [0, end] if low is None else [0, int(low), end]
    heads = [
        name.removeprefix("previous_token_") for name in table.columns if name.startswith("previous_token_")
    ]
    if not heads:
        return ()
    kinds = {"previous token": "previous_token", "prefix B": "prefix_B", "prefix A": "prefix_A"}
    rows = []
    for head in heads:
        values = [at(table, step, f"{column}_{head}") for column in kinds.values() for step in steps]
        rows.append((head, *("undefined" if value is None else f"{value:.3f}" for value in values)))
    return (
        SectionView(
            title="Heads",
            text=(
                "Attention to the token before, to what came after the earlier A (prefix B, the definition of an "
                "induction head) and to the earlier A itself (prefix A).",
            ),
            columns=("head", *(f"{kind}, step {step:,}" for kind in kinds for step in steps)),
            rows=tuple(rows),
        ),
    )


@torch.no_grad()
def _maps(run: Run) -> tuple[SectionView, ...]:
    """The best previous-token head and the best induction head, on a random sequence that is repeated."""
    chosen = [name for kind in ("previous_token", "prefix_B") if (name := best_heads(run.metrics, kind))]
    if not chosen or not run.steps or run.config.model.n_layers < 2:
        return ()
    assert isinstance(run.task, Text)
    half = run.task.random_tokens(1, min(_HALF, run.task.n_ctx // 2 - 1), torch.Generator().manual_seed(0))
    tokens = torch.cat([half.new_full((1, 1), END), half, half], dim=1)
    steps = (
        [run.steps[round(i * (len(run.steps) - 1) / 3)] for i in range(4)]
        if len(run.steps) > 3
        else run.steps
    )
    with matplotlib.rc_context(style()):
        sheet = PaperFigure(2.0 * len(steps), 2.15 * len(chosen))
        axes = sheet.subplots(len(chosen), len(steps), squeeze=False)
        for place, step in enumerate(steps):
            _, cache = run.model(step).run_with_cache(
                tokens, names_filter=lambda n: n.endswith("hook_pattern")
            )
            for row, name in enumerate(chosen):
                layer, _, head = name.rpartition("_L")[2].partition("H")
                ax = axes[row, place]
                ax.imshow(
                    cache[f"blocks.{layer}.attn.hook_pattern"][0, int(head)].numpy(),
                    vmin=0,
                    vmax=1,
                    cmap="Greys",
                )
                ax.set_title(f"L{layer}H{head}, step {step:,}", fontsize=8)
                ax.set_xticks([])
                ax.set_yticks([])
    return (
        SectionView(
            title="The heads that matter",
            text=(
                "Attention of the head with the best previous-token score (above) and of the one with the best prefix "
                f"score (below), on {len(half[0])} random tokens that are repeated once. Rows attend to columns; black "
                "is 1. A previous-token head draws a line below the diagonal, an induction head one from half-way on.",
            ),
            picture=sheet,
            alt="Attention maps of two heads at four checkpoints, on a repeated sequence.",
        ),
    )


__all__ = ["stage_sections"]
