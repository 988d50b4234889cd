"""The data of a report, as plain JSON that its script draws from.

Every map is sent once, as float32 in base64, not as one chart per step: 21 checkpoints of a 32 × 32 map take 115 kB.
Curves of very long runs are thinned to what a screen can show.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mechplateau.views.columns import Panel, output_maps, panels, series
from mechplateau.views.configs import told_apart
from mechplateau.views.data import first_pattern
from mechplateau.views.maps import symmetric_limit
from mechplateau.views.outline import outline
from mechplateau.views.terms import TERMS, term_of
from mechplateau.views.text import visible_token

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mechplateau.views.data import CheckpointView, ColumnView, RunView

# A chart is at most some 1200 pixels wide; more rows than this only make the file larger.
MAX_ROWS = 2000

# As many columns as a small picture of output × step can show.
MAX_MAP_ROWS = 250

# The measures that belong on one chart together: the loss, and what lies between 0 and 1.
GLANCE = ("loss", "accuracy", "cos", "apm", "repetition")


# What all maps of a report may take, in bytes before base64; with plotly's 4.8 MB the page stays below 8 MB.
MAP_BUDGET = 2_000_000


def curves_payload(view: RunView, columns: Iterable[str], rows: int = MAX_ROWS) -> dict[str, Any]:
    """Steps and some columns, at most so many rows, numbers at 6 digits, null where undefined."""
    stride = row_stride(view, rows)
    steps = [int(step) for step in view.metrics["step"].iloc[::stride]]
    return {
        "steps": steps,
        "columns": {
            column: _numbers(series(view.metrics, column)[::stride])
            for column in sorted(set(columns))
            if column in view.metrics.columns
        },
    }


def row_stride(view: RunView, rows: int = MAX_ROWS) -> int:
    """Stride between the rows that are sent."""
    return max(1, -(-len(view.metrics) // rows))


def panels_payload(shown: Sequence[Panel], columns: Sequence[ColumnView] = ()) -> list[dict[str, Any]]:
    """What the script needs to know of each panel."""
    return [
        {
            "key": panel.key,
            "color": panel.color,
            "title": panel.title,
            "axis": panel.axis,
            "unit": panel.unit,
            "lines": [{"column": x.column, "label": x.label, "role": x.role} for x in panel.lines],
            "outputs": list(panel.outputs),
            "term": term_of(panel, columns),
        }
        for panel in shown
    ]


def plateau_payload(view: RunView) -> dict[str, int | None] | None:
    """Onset and drop, where a plateau was found."""
    plateau = view.plateau
    if plateau is None or not plateau.found:
        return None
    return {"onset": plateau.onset, "drop": plateau.drop}


def report_payload(view: RunView) -> dict[str, Any]:
    """Everything the page of one run draws."""
    shown = panels(view.metrics, view.plateau, view.columns)
    columns = [line.column for panel in shown for line in panel.lines]
    columns += [column for panel in shown for column in panel.outputs]
    columns += [column for picture in output_maps(view.metrics) for column in picture.columns]
    checkpoints = shown_checkpoints(view)
    return {
        "curves": curves_payload(view, columns),
        "panels": panels_payload(shown, view.columns),
        "glance": [panel.key for panel in shown if panel.key in GLANCE and panel.lines],
        "outputMaps": _output_maps(view),
        "plateau": plateau_payload(view),
        "phases": view.phase_steps(),
        "floor": None if view.story is None else view.story.floor,
        "signed": view.story is not None and view.story.signed,
        "events": []
        if view.story is None
        else [{"step": e.step, "key": e.key, "text": e.text} for e in view.story.events],
        "checkpoints": [_checkpoint(view, checkpoint) for checkpoint in checkpoints],
        **_maps(view, checkpoints),
    }


def _output_maps(view: RunView) -> list[dict[str, Any]]:
    """The pictures of output position × step."""
    return [
        {
            "key": picture.key,
            "title": picture.title,
            "columns": list(picture.columns),
            "positions": list(picture.positions),
            "limits": picture.limits,
            "term": TERMS["cosmap" if picture.key == "cos" else picture.key],
        }
        for picture in output_maps(view.metrics)
    ]


def _maps(view: RunView, checkpoints: Sequence[CheckpointView]) -> dict[str, Any]:
    """Attention maps and COS matrices of these checkpoints, and what is drawn over them."""
    return {
        "shown": view.shown_steps(),
        "names": view.phase_names(),
        "opening": None if view.story is None else view.story.collapse,
        "layers": _layers(checkpoints),
        "patternPresent": [bool(checkpoint.pattern) for checkpoint in checkpoints],
        "cosine": _cosine(checkpoints),
        "outputStart": min(view.output_rows, default=None),
        "groups": list(view.groups),
        "targets": [
            {"name": target.name, "layer": target.layer, "segments": outline(target.mask)}
            for target in view.targets
        ],
    }


def shown_checkpoints(view: RunView) -> tuple[CheckpointView, ...]:
    """The checkpoints a report shows: all, or as many evenly spaced ones, with the phases, as the budget allows.

    None where they have nothing to see."""
    every = view.checkpoints
    if not any(c.pattern or c.cosine is not None or c.samples for c in every):
        return ()  # nothing would change from step to step
    each = sum(layer.nbytes for layer in first_pattern(every))
    each += max((c.cosine.nbytes for c in every if c.cosine is not None), default=0)
    phases = set(view.shown_steps().values())
    room = max(2, MAP_BUDGET // max(1, each) - len(phases))
    if len(every) <= room + len(phases):
        return every
    chosen = {every[round(place)].step for place in np.linspace(0, len(every) - 1, room)} | phases
    return tuple(checkpoint for checkpoint in every if checkpoint.step in chosen)


def comparison_payload(views: Sequence[RunView]) -> dict[str, Any]:
    """Everything the page of several runs draws: a panel for each measure that any run has, all runs in each."""
    shown: dict[str, Panel] = {}
    for view in views:
        for panel in panels(view.metrics, view.plateau, view.columns):
            for line in panel.lines:
                title = panel.title if line.role == "main" else f"{panel.title}: {line.label}"
                if line.role != "data":
                    shown.setdefault(line.column, replace(panel, title=title, lines=(line,), outputs=()))
    titles = Counter(panel.title for panel in shown.values())
    # Runs of different tasks have main lines of their own, such as the progress on another Ω.
    shown = {
        column: replace(panel, title=f"{panel.title}: {panel.lines[0].label}")
        if titles[panel.title] > 1
        else panel
        for column, panel in shown.items()
    }
    labels = told_apart([view.title for view in views], [view.config_yaml for view in views])
    return {
        "panels": panels_payload(tuple(shown.values()), [c for view in views for c in view.columns]),
        "runs": [
            {
                "title": visible_token(view.title),
                "label": visible_token(label),
                "curves": curves_payload(view, shown),
                "plateau": plateau_payload(view),
                "outputMaps": _output_maps(view),
                "outputCurves": curves_payload(
                    view, [c for picture in output_maps(view.metrics) for c in picture.columns], MAX_MAP_ROWS
                ),
                **_side_by_side(view),
            }
            for view, label in zip(views, labels, strict=True)
        ],
    }


def _side_by_side(view: RunView) -> dict[str, Any]:
    """The maps of the few checkpoints that stand side by side; the others are in the run's own report."""
    steps = set(view.shown_steps().values())
    checkpoints = [checkpoint for checkpoint in view.checkpoints if checkpoint.step in steps]
    return {"checkpoints": [{"step": c.step} for c in checkpoints], **_maps(view, checkpoints)}


def _checkpoint(view: RunView, checkpoint: CheckpointView) -> dict[str, Any]:
    phase = view.plateau.phase_of(checkpoint.step) if view.plateau and view.plateau.found else None
    return {
        "step": checkpoint.step,
        "phase": phase,
        "samples": [
            {
                # Compared here, before marks are added, so that "right" is about the tokens themselves.
                "right": [
                    p is not None and t == p for t, p in zip(sample.target, sample.predicted, strict=True)
                ],
                "prompt": _tokens(sample.prompt),
                "target": _tokens(sample.target),
                "predicted": _tokens(sample.predicted),
            }
            for sample in checkpoint.samples
        ],
    }


def _tokens(tokens: Sequence[str | None]) -> list[str | None]:
    return [None if token is None else visible_token(token) for token in tokens]


def _layers(checkpoints: Sequence[CheckpointView]) -> list[dict[str, Any]]:
    """One entry a layer: the maps of all checkpoints `[checkpoint, head, query, key]` and their common limit, None
    where no value is defined."""
    layers = []
    for index, like in enumerate(first_pattern(checkpoints)):
        blank = np.full_like(like, np.nan)
        maps = np.stack([c.pattern[index] if c.pattern else blank for c in checkpoints])
        limit = symmetric_limit([maps]) if np.isfinite(maps).any() else None
        layers.append({"shape": maps.shape[1:], "limit": limit, "data": encode_floats(maps)})
    return layers


def _cosine(checkpoints: Sequence[CheckpointView]) -> dict[str, Any] | None:
    """The COS matrices of all checkpoints `[checkpoint, n_outputs, n_outputs]`; `present` says which exist."""
    known = [c.cosine for c in checkpoints if c.cosine is not None]
    if not known:
        return None
    blank = np.full_like(known[0], np.nan)
    return {
        "n": known[0].shape[0],
        "present": [c.cosine is not None for c in checkpoints],
        "data": encode_floats(np.stack([blank if c.cosine is None else c.cosine for c in checkpoints])),
    }


def encode_floats(values: np.ndarray) -> str:
    """Numbers as float32, little-endian, in base64."""
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f4").tobytes()).decode("ascii")


def _numbers(values: np.ndarray) -> list[float | None]:
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values.tolist()]
