"""The run report: one HTML file that holds everything it shows and opens from disk without a network.

plotly's own script is embedded once; the data is beside it as JSON, and our script draws from it. Text
from outside is escaped everywhere, and the page's content policy forbids it any connection.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mechplateau.files import file_path
from mechplateau.views._cards import summary_cards
from mechplateau.views._files import write_file
from mechplateau.views._payload import comparison_payload, report_payload, row_stride, shown_checkpoints
from mechplateau.views._templates import render_page
from mechplateau.views.columns import constants, output_maps
from mechplateau.views.configs import differing_settings, told_apart
from mechplateau.views.data import RunView, SectionView, ViewError, first_pattern
from mechplateau.views.summary import SOLVED_LABEL, comparison_rows, key_numbers, solved_text, verdict
from mechplateau.views.terms import TERMS
from mechplateau.views.text import visible_token

_SCRIPTS = {
    "report.html.j2": ("theme.js", "charts.js", "maps.js", "samples.js", "report.js"),
    "compare.html.j2": ("theme.js", "charts.js", "maps.js", "compare.js"),
}


def render_report(view: RunView | Sequence[RunView]) -> str:
    """One run's report, or the comparison of several runs, as one self-contained HTML page.

    Args:
        view: a run, or several: several give their curves over each other and their key numbers side by side.

    Returns:
        HTML: equal input gives equal text.

    Raises:
        ViewError: an empty sequence.
    """
    views = [view] if isinstance(view, RunView) else list(view)
    if not views:
        raise ViewError("render_report: expected at least one run, got none")
    if len(views) == 1:
        template, payload, context = "report.html.j2", report_payload(views[0]), _report_context(views[0])
    else:
        template, payload, context = "compare.html.j2", comparison_payload(views), _comparison_context(views)
    return render_page(template, payload, _SCRIPTS[template], **context)


def save_report(view: RunView | Sequence[RunView], path: str | Path) -> Path:
    """Write the report as one HTML file, whole or not at all.

    Returns:
        The path written.

    Raises:
        ViewError: an empty sequence, or the file cannot be written.
    """
    html = render_report(view)
    # A lone surrogate has no UTF-8 form; as a character reference it shows as the replacement character.
    return write_file(file_path(path), html.encode("utf-8", errors="xmlcharrefreplace"))


def _report_context(view: RunView) -> dict[str, Any]:
    plateau = view.plateau
    checkpoints = shown_checkpoints(view)
    return {
        "title": visible_token(view.title if view.story is None else view.story.title),
        "name": None if view.story is None else visible_token(view.title),
        "sentence": "" if view.story is None else view.story.sentence,
        "events": () if view.story is None else view.story.events,
        "verdict": verdict(view),
        "found": plateau is not None and plateau.found,
        "notices": view.notices,
        "cards": summary_cards(view),
        "claims": view.claims,
        "sections": [_section(section) for section in view.sections],
        "solved": f"{SOLVED_LABEL}: {solved_text(key_numbers(view))}",
        "config": view.config_yaml,
        "environment": dict(view.environment),
        "phases": view.phase_steps(),
        "names": view.phase_names(),
        "checkpoints": [checkpoint.step for checkpoint in checkpoints],
        "all_checkpoints": len(view.checkpoints),
        "has_pattern": bool(first_pattern(checkpoints)),
        "has_cosine": any(checkpoint.cosine is not None for checkpoint in checkpoints),
        "has_samples": any(checkpoint.samples for checkpoint in checkpoints),
        "undefined_samples": any(None in s.predicted for c in checkpoints for s in c.samples),
        "targets": [target.name for target in view.targets],
        "stride": row_stride(view),
        "terms": TERMS,
        "constants": [
            f"{meaning}: {value:g}" for meaning, value in constants(view.metrics, plateau, view.columns)
        ],
    }


def _section(section: SectionView) -> dict[str, Any]:
    """What the template shows of it; the picture as a data URI, which needs no network."""
    image = None
    if section.picture is not None:
        image = "data:image/png;base64," + base64.b64encode(section.picture.png(dpi=140)).decode("ascii")
    shown = {name: getattr(section, name) for name in ("title", "text", "alt", "columns", "rows")}
    return {**shown, "image": image}


def _comparison_context(views: Sequence[RunView]) -> dict[str, Any]:
    expected = {claim.name: claim.expected for view in reversed(views) for claim in reversed(view.claims)}
    names = list(dict.fromkeys(claim.name for view in views for claim in view.claims))
    claims = [{claim.name: claim for claim in view.claims} for view in views]
    return {
        "title": f"{len(views)} runs compared",
        "runs": [
            {
                "title": visible_token(view.title),
                "verdict": " ".join([verdict(view), *view.notices]),
                "maps": any(c.pattern or c.cosine is not None for c in view.checkpoints),
            }
            for view in views
        ],
        "labels": [
            visible_token(label)
            for label in told_apart([v.title for v in views], [v.config_yaml for v in views])
        ],
        "terms": TERMS,
        "has_outputs": any(output_maps(view.metrics) for view in views),
        "rows": comparison_rows([key_numbers(view) for view in views]),
        "settings": differing_settings([view.config_yaml for view in views]),
        "claims": [(name, expected[name], [of_run.get(name) for of_run in claims]) for name in names],
        "stride": max(row_stride(view) for view in views),
    }
