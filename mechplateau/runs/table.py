"""The metrics table: rows are appended to a part file while a run is in progress, and compacted at its end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from mechplateau.errors import RunError
from mechplateau.files import explained, sync_to_disk, write_atomic, write_text
from mechplateau.measurements.columns import STEP, Column
from mechplateau.runs.layout import REMEDY

_KEY = "mechplateau.config_hash"


def append_row(path: Path, row: Mapping[str, float | int | None]) -> None:
    """Append one row as a line of JSON (numbers in full, null where undefined)."""
    with explained(path), path.open("a", encoding="utf-8") as file:
        file.write(_line(row))


def sync(path: Path) -> None:
    """Put what was appended on the disk, before a checkpoint that counts on it."""
    if path.exists():
        with explained(path):
            sync_to_disk(path)
            sync_to_disk(path.parent)  # the name too: the file may be new


def read_part(path: Path) -> list[dict[str, Any]]:
    """The complete rows of a part file; a last line that a kill cut off is left out."""
    if not path.exists():
        return []
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error})") from None
    rows = []
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if not line.endswith("\n"):
            break
        try:
            row = json.loads(line)
            if not isinstance(row.get("step"), int):
                raise ValueError("no step")
            rows.append(row)
        except (ValueError, AttributeError):
            raise RunError(f"{path}: line {number} is damaged; {REMEDY}") from None
    return rows


def hash_of(rows: Iterable[Mapping[str, Any]]) -> hashlib._Hash:
    """SHA-256 of these rows as a part file holds them; `add_to_hash` takes it further, row by row."""
    hashed = hashlib.sha256()
    for row in rows:
        add_to_hash(hashed, row)
    return hashed


def add_to_hash(hashed: hashlib._Hash, row: Mapping[str, Any]) -> None:
    """Make the hash of some rows that of the same rows and one more."""
    hashed.update(_line(row).encode())


def rewrite_part(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace a part file by these rows, atomically."""
    write_text(path, "".join(_line(row) for row in rows))


def compact(
    path: Path, rows: Sequence[Mapping[str, Any]], config_hash: str, columns: Sequence[Column]
) -> None:
    """Write the rows as a Parquet table that says which configuration's they are, atomically.

    Args:
        path: where.
        rows: the rows; undefined is None.
        config_hash: of the run's configuration.
        columns: of the table; each field of its schema carries its unit, definition and when it is undefined.
    """
    table = _table(rows, columns).replace_schema_metadata({_KEY: config_hash})

    def write(temporary: Path) -> None:
        # An open file: pyarrow takes some names (a:b, s3:x, ~) for addresses.
        with temporary.open("wb") as file:
            pq.write_table(table, file, write_page_checksum=True)

    write_atomic(path, write)


def frame_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> pd.DataFrame:
    """The rows as pandas shows the table: null is NaN in columns of numbers."""
    return _table(rows, columns).to_pandas()


def read_table(path: Path, config_hash: str) -> pd.DataFrame:
    """A compacted table of this configuration as pandas.

    Raises:
        RunError: the file is damaged, or another configuration's.
    """
    try:
        with path.open("rb") as file:  # open, as above
            table = pq.read_table(file, page_checksum_verification=True)
        found = table.to_pandas()
    except PermissionError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, str(error).splitlines()[0]) from None
    recorded = (table.schema.metadata or {}).get(_KEY.encode())
    if recorded is not None and recorded.decode() != config_hash:  # tables of early versions lack it
        raise RunError(
            f"{path}: belongs to another run than the config.yaml beside it; put the right one back"
        )
    missing = [name for name in ("step", "loss") if name not in found]
    if missing or found.empty:
        raise _damaged(path, f"without the column {missing[0]}" if missing else "without rows")
    return found


def _damaged(path: Path, what: str) -> RunError:
    return RunError(f"{path}: damaged ({what}); {REMEDY}")


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> pa.Table:
    """What the rows hold, in their order; a row of an earlier version may have names that are no column any more."""
    known = {column.name: column for column in columns}
    names = list(dict.fromkeys(name for row in rows for name in row) or [STEP.name])
    fields = [_field(known.get(name, Column(name, "", ""))) for name in names]
    arrays = [
        pa.array([row.get(name) for row in rows], type=field.type)
        for name, field in zip(names, fields, strict=True)
    ]
    return pa.table(arrays, schema=pa.schema(fields))


def _field(column: Column) -> pa.Field:
    said = {
        "unit": column.unit,
        "definition": column.definition,
        "undefined_when": column.undefined_when,
    }
    kind = pa.int64() if column.dtype == "int64" else pa.float64()
    return pa.field(column.name, kind, metadata={name: text for name, text in said.items() if text})
