"""Pictures of runs: figures for papers, and pages for the browser that need no network.

Views take plain arrays and tables (`RunView` and its parts); they never load a run and never see a model. Names are
imported when first used, because matplotlib and plotly take their time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechplateau._lazy import lazy_names

if TYPE_CHECKING:
    from mechplateau.views._files import is_stdout
    from mechplateau.views.attention import (
        attention_heads,
        attention_on_target,
        attention_pattern,
        attention_phases,
    )
    from mechplateau.views.curves import plot_curves
    from mechplateau.views.data import (
        CheckpointView,
        ClaimView,
        ColumnView,
        EventView,
        PlateauView,
        RunView,
        SampleView,
        SectionView,
        StoryView,
        TargetView,
        ViewError,
    )
    from mechplateau.views.embed import View, gallery
    from mechplateau.views.maps import draw_map, plot_phases
    from mechplateau.views.report import render_report, save_report
    from mechplateau.views.summary import KeyNumbers, Peak, key_numbers, verdict
    from mechplateau.views.tokens import tokens_by_accuracy, tokens_by_loss, tokens_by_value

_HOMES = {
    "CheckpointView": "data",
    "ClaimView": "data",
    "ColumnView": "data",
    "EventView": "data",
    "KeyNumbers": "summary",
    "Peak": "summary",
    "PlateauView": "data",
    "RunView": "data",
    "SampleView": "data",
    "SectionView": "data",
    "StoryView": "data",
    "TargetView": "data",
    "View": "embed",
    "ViewError": "data",
    "attention_heads": "attention",
    "attention_on_target": "attention",
    "attention_pattern": "attention",
    "attention_phases": "attention",
    "draw_map": "maps",
    "gallery": "embed",
    "is_stdout": "_files",
    "key_numbers": "summary",
    "plot_curves": "curves",
    "plot_phases": "maps",
    "render_report": "report",
    "save_report": "report",
    "tokens_by_accuracy": "tokens",
    "tokens_by_loss": "tokens",
    "tokens_by_value": "tokens",
    "verdict": "summary",
}

__all__ = [
    "CheckpointView",
    "ClaimView",
    "ColumnView",
    "EventView",
    "KeyNumbers",
    "Peak",
    "PlateauView",
    "RunView",
    "SampleView",
    "SectionView",
    "StoryView",
    "TargetView",
    "View",
    "ViewError",
    "attention_heads",
    "attention_on_target",
    "attention_pattern",
    "attention_phases",
    "draw_map",
    "gallery",
    "is_stdout",
    "key_numbers",
    "plot_curves",
    "plot_phases",
    "render_report",
    "save_report",
    "tokens_by_accuracy",
    "tokens_by_loss",
    "tokens_by_value",
    "verdict",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
