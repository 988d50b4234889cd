"""The table of a series: one row a step, gaps included, in order.

    step, stage, tokens   from the name; step is null for the final weights, which close the table
    label                 the name; for a step that is missing, none
    verdict               ok, final (of the row without a step), or the flags joined by +: other_model,
                          duplicate, equals_final, foreign_tensor, jump, other_tokenizer; or missing (no such
                          revision), broken (it cannot be read)
    doubtful              a flag was raised: the checkpoint may not be what its name says
    note                  the verdict in words, and what was chosen among several things in the checkpoint
    joined                whether a curve may join this row to the one before: both are measured, neither
                          doubtful, nothing missing between them
    hash                  SHA-256 of the content
    identity              the hash of the first row with the same content: equal for copies, also for copies
                          rounded to a half-precision type
    same_as               labels of the rows with the same content
    dtype                 storage type
    distance, detour      of the weights from the previous step, and by way of this step (see `verdicts`)
    loss, repetition, entropy, cos_final, cos_embed, cos_layer_0 …   see `measures`

Undefined is null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechplateau.files import write_atomic
from mechplateau.llm.revisions import Revision
from mechplateau.llm.store import StepRecord
from mechplateau.llm.verdicts import Verdict

if TYPE_CHECKING:
    import pandas as pd

_NOTHING = "no inconsistency found"
_PUBLISHED = "the published weights"
_LAST_STEP = "the last step, taken as the final weights"
PLAIN_NOTES = (_NOTHING, _PUBLISHED, _LAST_STEP)
"""Notes of checkpoints about which there is nothing to say."""
_TEXT = ("label", "verdict", "note", "hash", "identity", "same_as", "dtype")
_COUNT = ("step", "stage", "tokens")
_ORDER = (
    *("step", "stage", "tokens", "label", "verdict", "doubtful", "joined", "note"),
    *("hash", "identity", "same_as", "dtype", "distance", "detour"),
    *("loss", "repetition", "entropy", "cos_final", "cos_embed"),
)


def build_table(
    revisions: Sequence[Revision],
    gaps: Mapping[int, str],
    records: Mapping[str, StepRecord],
    broken: Mapping[str, str],
    verdicts: Mapping[str, Verdict],
    final_label: str,
) -> pd.DataFrame:
    """Assemble the table.

    Args:
        revisions: those looked at, in order; the final weights last if they have no step.
        gaps: missing steps and why they are thought to be.
        records: by label.
        broken: reasons, by label.
        verdicts: by label.
        final_label: of the final weights.
    """
    rows = [_row(revision, records, broken, verdicts, final_label) for revision in revisions]
    stage = revisions[0].stage
    rows += [
        {
            "step": step,
            "stage": stage,
            "verdict": "missing",
            "doubtful": False,
            "note": f"step {step}: {reason}",
        }
        for step, reason in gaps.items()
    ]
    rows.sort(key=lambda row: (row["step"] is None, row["step"] or 0))
    hashes = {row["label"]: row["hash"] for row in rows if row.get("hash")}
    for i, row in enumerate(rows):
        row["joined"] = i > 0 and _fit_for_a_curve(rows[i - 1]) and _fit_for_a_curve(row)
        if row.get("hash"):
            copies = [row["label"], *row["same_as"].split(", ")] if row["same_as"] else [row["label"]]
            row["identity"] = hashes[min(copies, key=list(hashes).index)]
    return _frame(rows)


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write the table as Parquet, whole or not at all."""
    # As bytes: pyarrow takes some names (a:b, s3:x) for addresses.
    write_atomic(path, lambda temporary: temporary.write_bytes(table.to_parquet(index=False)))


def _row(
    revision: Revision,
    records: Mapping[str, StepRecord],
    broken: Mapping[str, str],
    verdicts: Mapping[str, Verdict],
    final_label: str,
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "step": revision.step,
        "stage": revision.stage,
        "tokens": revision.tokens,
        "label": revision.label,
        "doubtful": False,
    }
    if revision.label in broken:
        return {**row, "verdict": "broken", "note": broken[revision.label]}
    record, verdict = records[revision.label], verdicts[revision.label]
    plain = "final" if revision.step is None else "ok"
    notes = [*(verdict.notes or [_plain_note(revision, final_label)]), *record.notes]
    if record.measures is not None and record.measures["cos_final"] is None:
        notes = [*notes, "its hidden states are not finite in the type it was run in, so nothing is measured"]
    elif record.measures is not None and record.measures["repetition"] is None:
        notes = [*notes, "its logits are not finite in the type it was run in, so the tokens are undefined"]
    return {
        **row,
        "verdict": "+".join(verdict.flags) or plain,
        "doubtful": verdict.doubtful,
        "note": "; ".join(notes),
        "hash": record.identity.hash,
        "same_as": ", ".join(verdict.same_as),
        "dtype": record.identity.dtype,
        "distance": verdict.distance,
        "detour": verdict.detour,
        **(record.measures or {}),
    }


def _plain_note(revision: Revision, final_label: str) -> str:
    if revision.label != final_label:
        return _NOTHING
    return _PUBLISHED if revision.step is None else _LAST_STEP


def _fit_for_a_curve(row: Mapping[str, Any]) -> bool:
    return row["step"] is not None and row.get("cos_final") is not None and not row["doubtful"]


def _frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    layers = sorted(
        {name for row in rows for name in row if name.startswith("cos_layer_")},
        key=lambda name: int(name[10:]),
    )
    columns: dict[str, pd.Series[Any]] = {}
    for name in [*_ORDER, *layers]:
        values = [row.get(name) for row in rows]
        kind = "string" if name in _TEXT else "Int64" if name in _COUNT else None
        if name in ("doubtful", "joined"):
            columns[name] = pd.Series(values, dtype="bool")
        else:
            columns[name] = pd.Series(values, dtype=kind or "float64")
    return pd.DataFrame(columns)
