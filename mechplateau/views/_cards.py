"""The numbers at the top of a report, as text: cards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mechplateau.views.columns import lone_points, panels, series
from mechplateau.views.summary import KeyNumbers, key_numbers, number, peak_texts, solved_text
from mechplateau.views.terms import TERMS

if TYPE_CHECKING:
    from mechplateau.views.data import RunView

# The small curve of a card: a box of this size in its own units, with this many points.
_SPARK_WIDTH, _SPARK_HEIGHT, _SPARK_POINTS = 100.0, 28.0, 80


def summary_cards(view: RunView) -> list[dict[str, Any]]:
    """Label, number, detail and small curve of each card; the key names its color."""
    numbers = key_numbers(view)
    several = {
        panel.key for panel in panels(view.metrics, view.plateau, view.columns) if len(panel.lines) > 1
    }
    which_cos = f" ({numbers.cos_label})" if "cos" in several else ""
    which_apm = f" ({numbers.apm_label})" if "apm" in several else ""
    onset = _plateau_text(numbers)
    apm = (numbers.apm_start, numbers.apm_drop, numbers.apm_end)
    # Without a drop there is no middle value to show.
    shown = [value for i, value in enumerate(apm) if i != 1 or numbers.drop is not None]
    route = "start → drop → end" if numbers.drop is not None else "start → end"
    drop = ("loss", "Drop", number(numbers.drop), "step", onset)
    measured = [
        ("cos", "Peak COS", *peak_texts(numbers.peak_cos), f"representation collapse{which_cos}"),
        ("repetition", "Peak ρ", *peak_texts(numbers.peak_repetition), "repeated outputs"),
        ("apm", "APM", " → ".join(map(number, shown)), "", f"attention progress, {route}{which_apm}"),
        (
            "accuracy",
            "Final accuracy",
            number(numbers.final_accuracy),
            "",
            f"final loss {number(numbers.final_loss)}; solved: {solved_text(numbers)}",
        ),
    ]
    # What this run's table has no column of is not asked of it.
    names = [str(name) for name in view.metrics.columns]
    asked = {"cos": "cos_", "repetition": "repetition", "apm": "apm_", "accuracy": "accuracy"}
    cards = [drop, *(card for card in measured if any(name.startswith(asked[card[0]]) for name in names))]
    if "accuracy" not in names:
        cards.append(("loss", "Final loss", number(numbers.final_loss), numbers.loss_unit, "trained on"))
    if view.story is not None and view.story.partial:
        known = number(view.story.partial_at)
        cards.insert(
            1, ("partial", "Partial solution", known, "step", f"{view.story.partial} right from here on")
        )
    return [
        {
            "key": key,
            "term": TERMS["drop" if key == "loss" else key],
            "label": label,
            "value": value,
            "unit": unit,
            "detail": detail,
            "wide": key == "apm",
            "spark": _spark(view, "accuracy" if key == "partial" else key),
        }
        for key, label, value, unit, detail in cards
    ]


def _plateau_text(numbers: KeyNumbers) -> str:
    if numbers.onset is None:
        return "no plateau found"
    if numbers.drop is None:
        return f"on a plateau since step {numbers.onset}, no drop yet"
    return f"plateau from step {numbers.onset} to {numbers.drop}"


def _spark(view: RunView, key: str) -> dict[str, Any] | None:
    """An SVG path of the panel's main curve and the plateau's span, in the small box's units."""
    column = next(
        (
            p.lines[0].column
            for p in panels(view.metrics, view.plateau, view.columns)
            if p.key == key and p.lines
        ),
        None,
    )
    if column is None:
        return None
    stride = max(1, len(view.metrics) // _SPARK_POINTS)
    steps = series(view.metrics, "step")[::stride]
    values = series(view.metrics, column)[::stride]
    if not np.isfinite(values).any() or steps[-1] == steps[0]:
        return None
    low, high = np.nanmin(values), np.nanmax(values)
    first, last = series(view.metrics, "step")[[0, -1]]

    def x_of(step: float) -> float:
        return float(np.clip((step - first) / (last - first), 0, 1) * _SPARK_WIDTH)

    path, pen_down = [], False
    for step, value, alone in zip(steps, values, lone_points(values), strict=True):
        if not np.isfinite(value):
            pen_down = False
            continue
        y = _SPARK_HEIGHT - 2 - (_SPARK_HEIGHT - 4) * (value - low) / ((high - low) or 1.0)
        # A line of no length has round ends: a dot.
        path.append(f"{'L' if pen_down else 'M'}{x_of(step):.1f} {y:.1f}{'h0' if alone else ''}")
        pen_down = True
    plateau = view.plateau
    band = None
    if plateau is not None and plateau.found and plateau.onset is not None and plateau.drop is not None:
        left, right = x_of(plateau.onset), x_of(plateau.drop)
        band = {"x": f"{left:.1f}", "width": f"{right - left:.1f}"}
    return {"path": "".join(path), "band": band}
