"""The page of a series of language-model checkpoints: curves, a verdict on each checkpoint, heads, and what they write.

The charts are those of a run's report. A curve is joined only where the table says so (`joined`): a doubtful checkpoint
is a cross by itself, a missing one a dotted line, and neither is bridged.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechplateau.files import file_path
from mechplateau.views._files import write_file
from mechplateau.views._payload import encode_floats
from mechplateau.views._templates import own_style, render_page
from mechplateau.views.llm_heads import TITLES
from mechplateau.views.llm_series import ABSENT, PANELS, layer_columns, numbers_of, segments, spans_much
from mechplateau.views.terms import TERMS
from mechplateau.views.text import visible_token

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from mechplateau.views.data import SectionView

_MANY_ROWS = 60
"""Examples are shown of at most about this many checkpoints, evenly spread."""

_SCRIPTS = ("theme.js", "charts.js", "series.js")
_TERMS = {
    "cos": TERMS["cos"],
    "repetition": "ρ: share of neighboring tokens that are the same, in what the checkpoint writes after the prompts.",
    "entropy": "Entropy of the tokens that the checkpoint writes after a prompt, −Σ f log f, mean over prompts, nats.",
    "loss": "Mean cross-entropy of the next token on the prompts themselves, in nats a token.",
}

Examples = Mapping[str, Sequence[tuple[str, Sequence[str | None]]]]
"""By checkpoint label: prompts and the tokens written after them; None where a token is undefined."""


@dataclass(frozen=True)
class HeadsSection:
    """What the page shows of the heads.

    Attributes:
        masses: step, layer, head, set, mass: the share of a head's attention on each set.
        births: layer, head, set, born, most, most_at, last.
        note: on what they were measured, a sentence.
    """

    masses: pd.DataFrame
    births: pd.DataFrame
    note: str


def render_series(
    table: pd.DataFrame,
    *,
    title: str,
    summary: Sequence[str] = (),
    examples: Examples | None = None,
    heads: HeadsSection | None = None,
    sections: Sequence[SectionView] = (),
) -> str:
    """The page: findings, curves, a verdict a checkpoint, the heads, and what the checkpoints wrote.

    Args:
        table: as for `plot_series` in `llm_series`, with `label`, `note`, `hash`, `dtype`, `distance`.
        title: what the series is called.
        summary: the findings, a sentence each.
        examples: completions to show.
        heads: what the heads attend to.
        sections: what else was measured.

    Returns:
        Self-contained HTML; nothing in it is fetched, and text from outside is escaped.
    """
    steps = table[table["step"].notna()]
    shown = _thinned([str(label) for label in steps["label"].dropna() if examples and label in examples])
    names = {str(row["label"]): _whole(row["step"]) for _, row in steps.iterrows()}
    prompts = [prompt for prompt, _ in examples[shown[0]]] if examples and shown else []
    payload = _payload(table, heads)
    return render_page(
        "series.html.j2",
        payload,
        _SCRIPTS,
        title=visible_token(title),
        summary=summary,
        series_style=own_style("series.css"),
        measured=payload["measured"],
        marks=_marks(steps),
        rows=[_cells(row) for _, row in table.iterrows()],
        heads=None if heads is None else {"note": visible_token(heads.note), "rows": _births(heads.births)},
        sections=[_section(section) for section in sections],
        examples=[
            (
                visible_token(prompt),
                [
                    (
                        names[label],
                        [None if t is None else visible_token(t) for t in (examples or {})[label][i][1]],
                    )
                    for label in shown
                ],
            )
            for i, prompt in enumerate(prompts)
        ],
    )


def save_series(
    path: str | Path,
    table: pd.DataFrame,
    *,
    title: str,
    summary: Sequence[str] = (),
    examples: Examples | None = None,
    heads: HeadsSection | None = None,
    sections: Sequence[SectionView] = (),
) -> Path:
    """Write the page as one HTML file, whole or not at all.

    Raises:
        ViewError: the file cannot be written.
    """
    html = render_series(
        table, title=title, summary=summary, examples=examples, heads=heads, sections=sections
    )
    # A lone surrogate has no UTF-8 form; as a character reference it shows as the replacement character.
    return write_file(file_path(path), html.encode("utf-8", errors="xmlcharrefreplace"))


def _payload(table: pd.DataFrame, heads: HeadsSection | None) -> dict[str, Any]:
    """What the script draws: numbers by checkpoint, null where undefined."""
    import numpy as np

    rows = table[table["step"].notna()].reset_index(drop=True)
    steps = numbers_of(rows["step"])
    layers = layer_columns(rows)
    cos = np.stack([numbers_of(rows[name]) for name in layers])
    known = cos[np.isfinite(cos)]
    return {
        "measured": bool(rows["cos_final"].notna().any()),
        "steps": [int(step) for step in steps],
        "logarithmic": spans_much(steps),
        "lines": segments(rows),
        "doubtful": np.flatnonzero(rows["doubtful"].to_numpy(bool)).tolist(),
        "absent": np.flatnonzero(rows["verdict"].isin(ABSENT).to_numpy()).tolist(),
        "panels": [
            {
                "title": title,
                "axis": axis,
                "color": key,
                "term": _TERMS[key],
                "values": _numbers(numbers_of(rows[column])),
            }
            for column, title, axis, key in PANELS
        ],
        "layers": {
            "names": list(layers.values()),
            "data": encode_floats(cos),
            "signed": bool(len(known)) and float(known.min()) < 0,
        },
        "heads": []
        if heads is None or heads.masses.empty
        else _heads(heads.masses, [int(step) for step in steps]),
    }


def _heads(masses: pd.DataFrame, steps: Sequence[int]) -> list[dict[str, Any]]:
    """A panel a set, a line a head; a checkpoint without a number is null."""
    deepest = int(masses["layer"].max())
    return [
        {
            "title": TITLES.get(str(name), visible_token(str(name))),
            "deepest": deepest,
            "lines": [
                {
                    "name": f"L{layer}H{head}",
                    "layer": int(line["layer"].iloc[0]),
                    "values": _numbers(numbers_of(line.set_index("step")["mass"].reindex(list(steps)))),
                }
                for (layer, head), line in of_set.groupby(["layer", "head"])
            ],
        }
        for name, of_set in masses.groupby("set", sort=False)
    ]


def _marks(rows: pd.DataFrame) -> dict[str, bool]:
    """Which marks the charts have, so that the page explains them."""
    return {
        "doubtful": bool(rows["doubtful"].any()),
        "absent": bool(rows["verdict"].isin(ABSENT).any()),
    }


def _births(births: pd.DataFrame) -> list[list[str]]:
    return [
        [
            f"L{row['layer']}H{row['head']}",
            visible_token(str(row["set"])).replace("_", " "),
            _whole(row["born"]),
            _number(row["most"]),
            _whole(row["most_at"]),
            _number(row["last"]),
        ]
        for row in births.to_dict("records")
    ]


def _cells(row: pd.Series[Any]) -> dict[str, Any]:
    kind = "no" if row["doubtful"] or row["verdict"] in ABSENT else "yes"
    return {
        "step": _whole(row["step"]) if _known(row["step"]) else visible_token(str(row["label"])),
        "kind": kind,
        "verdict": str(row["verdict"]).replace("_", " ").replace("+", ", "),
        "note": visible_token(str(row["note"])),
        "numbers": [
            _number(row[name]) for name in ("cos_final", "repetition", "entropy", "loss", "distance")
        ],
        "hash": str(row["hash"])[:12] if _known(row["hash"]) else "–",
        "dtype": str(row["dtype"]) if _known(row["dtype"]) else "–",
    }


def _section(section: SectionView) -> dict[str, Any]:
    picture = section.picture
    return {
        "title": section.title,
        "text": section.text,
        "picture": None if picture is None else base64.b64encode(picture._render(".svg", dpi=100)).decode(),
        "alt": section.alt,
        "columns": section.columns,
        "rows": section.rows,
    }


def _thinned(labels: list[str]) -> list[str]:
    stride = -(-len(labels) // _MANY_ROWS) or 1
    return labels[::stride]


def _numbers(values: np.ndarray) -> list[float | None]:
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values.tolist()]


def _known(value: Any) -> bool:
    import pandas as pd

    return not pd.isna(value)


def _whole(value: Any) -> str:
    return f"{int(value)}"


def _number(value: Any) -> str:
    return f"{float(value):.3g}" if _known(value) else "–"
