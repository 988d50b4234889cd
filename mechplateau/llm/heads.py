"""What every head of a series of checkpoints attends to, and from which step on (its birth).

Every checkpoint runs on the same repeated random tokens, on which only a head that looks for copies can attend to one.
A head is born at the first step from which it puts at least a fifth of its attention on a set (`BORN`), and at least
half of its maximum there; a head that never does is never born.
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from mechplateau.errors import CheckpointError
from mechplateau.files import local_path
from mechplateau.llm.sources import Source, open_source
from mechplateau.llm.table import write_table
from mechplateau.progress import Progress, bars

if TYPE_CHECKING:
    import pandas as pd
    from transformer_lens import HookedTransformer

BORN = 0.2
"""Least share of a head's attention on a set for which it is called by it."""
ABSENT = ("missing", "broken")

Tool = Callable[["HookedTransformer"], "pd.DataFrame"]
"""A table of a model: layer, head, set, mass, lift."""


def series_heads(
    source: str | Path | Source,
    table: pd.DataFrame,
    tool: Tool,
    *,
    settings: str,
    stage: int | None = None,
    device: str = "cpu",
    folder: str | Path | None = None,
    progress: Progress | str | None = None,
) -> pd.DataFrame:
    """Apply a tool to the checkpoints of an analyzed series, one in memory at a time.

    Args:
        source: as for `analyze_series`.
        table: of the analysis: `step`, `label`, `verdict`, `hash`; what was not read, and the final weights where they
            are no step of the series, are left out.
        tool: takes a HookedTransformer, gives a table.
        settings: all that determines the tool's numbers, as text; results kept under other settings are not used.
        stage: of a series in stages.
        device: where the models are put.
        folder: where finished checkpoints are kept, by their content; a second call continues from them.
        progress: makes a bar of checkpoints, as tqdm does (`mechplateau.progress`); "stderr": tqdm's own; None: silent.

    Returns:
        the tool's table with `step` and `label` before it.

    Raises:
        CheckpointError: a checkpoint is no model that can be opened up (GPT-NeoX and OLMo-2 can).
    """
    import pandas as pd

    from mechplateau.llm.hooked import load_hooked

    opened = open_source(str(source))[0] if isinstance(source, str | Path) else source
    rows = table[table["step"].notna() & ~table["verdict"].isin(ABSENT) & table["hash"].notna()]
    if rows.empty:
        raise CheckpointError(f"{opened.name}: no checkpoint to look into")
    tables = []
    with closing(bars(progress)(total=len(rows), desc="checkpoint")) as bar:
        for _, row in rows.iterrows():
            label = str(row["label"])
            bar.set_postfix_str(f"heads of {label}")
            kept = None if folder is None else _kept(local_path(folder), str(row["hash"]), settings)
            if kept is not None and kept.is_file():
                found = pd.read_parquet(kept)
            else:
                found = tool(load_hooked(opened, label, stage=stage, device=device))
                if kept is not None:
                    write_table(kept, found)
                # A model in a reference cycle would keep its tensors until some later collection.
                gc.collect()
            tables.append(found.assign(step=int(row["step"]), label=label)[["step", "label", *found.columns]])
            bar.update(1)
    return pd.concat(tables, ignore_index=True)


def _kept(folder: Path, content: str, settings: str) -> Path:
    key = hashlib.sha256(json.dumps([content, settings]).encode()).hexdigest()
    return folder / f"{key[:24]}.parquet"


def births(heads: pd.DataFrame) -> pd.DataFrame:
    """When each head begins to attend to a set, the earliest first.

    Args:
        heads: of `series_heads`; leave out doubtful checkpoints.

    Returns:
        one line a head that was born: layer, head, set, born (the step), most (its largest mass), most_at (the step of
        it), last (its mass at the last step).
    """
    import pandas as pd

    lines = []
    for (layer, head, name), rows in heads.dropna(subset=["mass"]).groupby(
        ["layer", "head", "set"], sort=True
    ):
        rows = rows.sort_values("step")
        mass = rows["mass"].to_numpy(dtype="float64")
        most = mass.max()
        if most < BORN:
            continue
        first = int((mass >= max(BORN, most / 2)).argmax())
        steps = rows["step"].to_numpy()
        at = int(mass.argmax())
        lines.append((layer, head, name, int(steps[first]), float(most), int(steps[at]), float(mass[-1])))
    table = pd.DataFrame(lines, columns=["layer", "head", "set", "born", "most", "most_at", "last"])
    return table.sort_values(["born", "layer", "head", "set"], ignore_index=True)


__all__ = ["births", "series_heads"]
