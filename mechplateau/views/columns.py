"""Which columns of the metrics table make up which picture, and what they are called there.

The paper's figures and the report draw the same panels; a column that a run lacks is left out, and so is a panel
none of whose columns hold a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from mechplateau.signs import NO_PLATEAU, Signs, collapse_columns, progress_columns

if TYPE_CHECKING:
    import pandas as pd

    from mechplateau.views.data import ColumnView, PlateauView

# main: the measure itself; data: what the data would give; other: a further main line of the same panel.
Role = Literal["main", "data", "other"]


@dataclass(frozen=True)
class Line:
    """One curve: a column, its label for people, its role in the panel."""

    column: str
    label: str
    role: Role = "main"


@dataclass(frozen=True)
class Panel:
    """One picture of curves over the steps.

    Attributes:
        key: short name.
        title: for people.
        axis: what the vertical axis measures.
        lines: the curves, main first.
        outputs: columns of the single output positions, in their order, drawn thin behind the main line.
        unit: whether the measure lies between 0 and 1.
        color: name of its color.
    """

    key: str
    title: str
    axis: str
    lines: tuple[Line, ...]
    outputs: tuple[str, ...] = ()
    unit: bool = False
    color: str = "other"


@dataclass(frozen=True)
class OutputMap:
    """One picture of output position × step.

    Attributes:
        key: short name, also the name of the color.
        title: for people.
        columns: one column an output position, by position.
        positions: the output positions.
        limits: value range of the color scale; None: from the data.
    """

    key: str
    title: str
    columns: tuple[str, ...]
    positions: tuple[int, ...]
    limits: tuple[float, float] | None


def series(metrics: pd.DataFrame, column: str) -> np.ndarray:
    """A column as float64 `[row]`, NaN where undefined or infinite (a loss that blew up has no place on an axis)."""
    import pandas as pd

    values = pd.to_numeric(metrics[column]).to_numpy(dtype=np.float64, na_value=np.nan)
    return np.where(np.isfinite(values), values, np.nan)


def defined(metrics: pd.DataFrame, column: str) -> bool:
    """Whether the table has the column and a number in it."""
    return column in metrics.columns and bool(np.isfinite(series(metrics, column)).any())


def lone_points(values: np.ndarray) -> np.ndarray:
    """Which values have no defined neighbor, bool `[row]`: no line passes through them, so they need a dot."""
    known = np.pad(np.isfinite(values), 1)
    return known[1:-1] & ~known[:-2] & ~known[2:]


def loss_unit(columns: Sequence[ColumnView]) -> str:
    """The unit of the loss; nats where it is not said."""
    return next((column.unit for column in columns if column.name == "loss"), "nats")


def panels(
    metrics: pd.DataFrame, plateau: PlateauView | None = None, columns: Sequence[ColumnView] = ()
) -> tuple[Panel, ...]:
    """The panels that these metrics can fill, in the order they are shown; main lines are those that represent the run
    with this plateau (`mechplateau.signs`). Other columns follow, those of one unit together, without the ones that are
    the same at every step (`constants`)."""
    candidates = _candidates(metrics, plateau, columns)
    filled = (
        Panel(
            panel.key,
            panel.title,
            panel.axis,
            tuple(line for line in panel.lines if defined(metrics, line.column)),
            tuple(column for column in panel.outputs if defined(metrics, column)),
            panel.unit,
            panel.key,
        )
        for panel in candidates
    )
    others = [c for c in _others(metrics, candidates, columns) if _varies(metrics, c.name)]
    shown = tuple(panel for panel in filled if panel.lines or panel.outputs)
    return (*shown, *_by_unit(others))


def constants(
    metrics: pd.DataFrame, plateau: PlateauView | None = None, columns: Sequence[ColumnView] = ()
) -> tuple[tuple[str, float], ...]:
    """What no panel draws because it is the same at every step: its meaning, and its one value."""
    same = [
        c
        for c in _others(metrics, _candidates(metrics, plateau, columns), columns)
        if defined(metrics, c.name) and not _varies(metrics, c.name)
    ]
    meanings = [c.definition for c in same]
    return tuple(
        (c.definition if c.definition and meanings.count(c.definition) == 1 else c.name, float(known[0]))
        for c in same
        if (known := _known(metrics, c.name)).size
    )


def _others(
    metrics: pd.DataFrame, candidates: Sequence[Panel], columns: Sequence[ColumnView]
) -> list[ColumnView]:
    """The columns that no panel or map of the paper shows."""
    known = {line.column for panel in candidates for line in panel.lines}
    known |= {column for panel in candidates for column in panel.outputs}
    known |= {column for picture in output_maps(metrics) for column in picture.columns} | {"step"}
    return [c for c in columns if c.name not in known]


def _varies(metrics: pd.DataFrame, column: str) -> bool:
    """Whether a column has two different values: a flat line tells no more than its number does."""
    return defined(metrics, column) and bool(np.ptp(_known(metrics, column)) > 0)


def _known(metrics: pd.DataFrame, column: str) -> np.ndarray:
    values = series(metrics, column)
    return values[np.isfinite(values)]


def _candidates(
    metrics: pd.DataFrame, plateau: PlateauView | None, columns: Sequence[ColumnView]
) -> list[Panel]:
    """The panels that any run may have, in their order, with all their lines."""
    unit = loss_unit(columns)
    loss = "cross-entropy (nats)" if unit == "nats" else f"loss ({unit})"
    return [
        Panel("loss", "Loss", loss, _losses(plateau, columns)),
        Panel(
            "accuracy",
            "Accuracy",
            "fraction right",
            (Line("accuracy", "mean over outputs"),),
            outputs=by_output(metrics, "accuracy_out_")[0],
            unit=True,
        ),
        Panel(
            "cos",
            "Collapse (COS)",
            "cosine similarity",
            tuple(
                Line(c, location_label(c), "main" if i == 0 else "other")
                for i, c in enumerate(cos_columns(metrics, plateau))
            ),
        ),
        Panel(
            "apm",
            "Attention progress (APM)",
            "share on Ω",
            tuple(
                Line(c, progress_label(c), "main" if i == 0 else "other")
                for i, c in enumerate(apm_columns(metrics))
            ),
            unit=True,
        ),
        Panel(
            "repetition",
            "Repetition (ρ, α₁)",
            "fraction of outputs",
            (
                Line("repetition", "ρ, model: equal to the one before"),
                Line("repetition_data", "ρ, data", "data"),
                *(
                    Line(
                        c,
                        "α₁" + c.removeprefix("alpha_1").replace("_", " ") + ": equal to the first",
                        "other",
                    )
                    for c in _matching(metrics, r"alpha_1.*")
                ),
            ),
            unit=True,
        ),
        Panel(
            "entropy",
            "Sequence entropy",
            "nats",
            (Line("entropy", "model"), Line("entropy_data", "data", "data")),
        ),
        *(
            Panel(
                key,
                title,
                axis,
                tuple(
                    Line(c, location_label(c), "main" if i == 0 else "other")
                    for i, c in enumerate(_matching(metrics, prefix + ".*"))
                ),
            )
            for key, prefix, title, axis in (
                ("norm", "norm_", "Hidden-state norm", "mean norm"),
                ("rank", "stable_rank_", "Hidden-state rank", "stable rank"),
            )
        ),
    ]


def _losses(plateau: PlateauView | None, columns: Sequence[ColumnView]) -> tuple[Line, ...]:
    """The loss whose plateau was looked for first, if that is not the one that is trained on."""
    of_plateau = "loss" if plateau is None else plateau.column
    if of_plateau == "loss":
        return (Line("loss", "training loss"),)
    meaning = next((column.definition for column in columns if column.name == of_plateau), of_plateau)
    return (Line(of_plateau, meaning), Line("loss", "training loss", "other"))


_PLACED = re.compile(r"(.+)_(L\d+(?:H\d+)?)")
"""A column of a layer, or of a head."""


def _by_unit(columns: Sequence[ColumnView]) -> Iterator[Panel]:
    """Columns of one unit in one panel; the same of several layers or heads in one of their own; numbered ones (`…_0`,
    `…_1`, …) as thin lines in one of their own."""
    numbered: dict[tuple[str, str], list[ColumnView]] = {}
    placed: dict[tuple[str, str], list[ColumnView]] = {}
    together: dict[str, list[ColumnView]] = {}
    for column in columns:
        if match := re.fullmatch(r"(.+)_\d+", column.name):
            numbered.setdefault((column.unit, match[1]), []).append(column)
        elif match := _PLACED.fullmatch(column.name):
            placed.setdefault((column.unit, match[1]), []).append(column)
        else:
            together.setdefault(column.unit, []).append(column)
    for unit, own in together.items():
        title = own[0].definition if len(own) == 1 else f"Further measures ({unit})"
        lines = tuple(
            Line(c.name, f"{c.name}: {c.definition}", "other" if i else "main") for i, c in enumerate(own)
        )
        yield Panel(f"other {unit}", title, unit, lines)
    for (unit, family), own in placed.items():
        title = re.sub(r"(,| after| at| of)? layer \d+.*$", "", own[0].definition)
        lines = tuple(
            Line(c.name, c.name.removeprefix(f"{family}_"), "other" if i else "main")
            for i, c in enumerate(own)
        )
        yield Panel(f"other {family}", title, unit, lines)
    for (unit, family), own in numbered.items():
        yield Panel(f"other {family}", family, unit, (), tuple(column.name for column in own))


def output_maps(metrics: pd.DataFrame) -> tuple[OutputMap, ...]:
    """The pictures of output position × step that these metrics can fill."""
    candidates: list[tuple[str, str, str, tuple[float, float] | None]] = [
        ("accuracy", "Accuracy of each output", "accuracy_out_", (0.0, 1.0)),
        ("lossmap", "Loss of each output", "loss_out_", None),
        ("cos", "COS of each output", "cos_out_", (-1.0, 1.0)),
    ]
    found = []
    for key, title, prefix, limits in candidates:
        columns, positions = by_output(metrics, prefix)
        if any(defined(metrics, column) for column in columns):
            found.append(OutputMap(key, title, columns, positions, limits))
    return tuple(found)


def by_output(metrics: pd.DataFrame, prefix: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The columns `{prefix}{r}` and their output positions r, by position (not by name: 2 before 10)."""
    found = sorted((int(c.removeprefix(prefix)), c) for c in _matching(metrics, re.escape(prefix) + r"\d+"))
    return tuple(column for _, column in found), tuple(position for position, _ in found)


def signs_of(metrics: pd.DataFrame, plateau: PlateauView | None) -> Signs:
    """The signs of a table with the plateau that was found in it; None: none was looked for, and none counts."""
    return Signs(metrics, plateau=plateau if plateau is not None and plateau.found else NO_PLATEAU)


def cos_columns(metrics: pd.DataFrame, plateau: PlateauView | None = None) -> tuple[str, ...]:
    """COS columns, first the one that represents the run, then those of other groups of outputs, then other places."""
    columns = [c for c in _matching(metrics, r"cos_.+") if not re.fullmatch(r"cos_out_\d+", c)]
    main, groups = signs_of(metrics, plateau).collapse_column, collapse_columns(metrics)
    return tuple(sorted(columns, key=lambda c: (c != main, c not in groups)))


def apm_columns(metrics: pd.DataFrame) -> tuple[str, ...]:
    """Columns of the attention progress measure, first the one that represents the run."""
    main = Signs(metrics).progress_column
    return tuple(sorted(progress_columns(metrics), key=lambda c: c != main))


def location_label(column: str) -> str:
    """`cos_L0_resid_post` → `layer 0 resid_post`; `cos_final` → `final`; `cos_mask_L1` → `masked cells, layer 1`."""
    if found := re.fullmatch(r"cos_(mask|obs|same)_L(\d+)", column):
        return f"{_CELLS[found[1]]}, layer {found[2]}"
    location = re.sub(r"^(cos|norm|stable_rank)_", "", column)
    return re.sub(r"^L(\d+)_", r"layer \1 ", location)


_CELLS = {"mask": "masked cells", "obs": "observed cells", "same": "observed, one token"}


def progress_label(column: str) -> str:
    """`apm_window` → `window`; `apm_mask_L0` → `from masked cells, layer 0`."""
    if found := re.fullmatch(r"apm_(mask|obs)_L(\d+)", column):
        return f"from {_CELLS[found[1]]}, layer {found[2]}"
    return column.removeprefix("apm_")


def _matching(metrics: pd.DataFrame, pattern: str) -> list[str]:
    return [c for c in map(str, metrics.columns) if re.fullmatch(pattern, c)]
