"""Tables on record: what a finished run's numbers were read from, so that a better definition needs no new training.

`results/tables/RECIPE_SEED_SCALE.parquet` beside `runs.csv`: the columns that a study's numbers look at, as float32
(the step as int64), compressed with zstd, with the configuration's hash. A line's numbers are read off this table, so
that they can be read again, to the last digit.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from mechplateau.config import RunConfig
from mechplateau.errors import UserError
from mechplateau.files import write_atomic
from mechplateau.studies.numbers import Numbers

LARGEST = 30 * 1024
"""Bytes that a table of up to `ROWS` rows may take on record; a longer one in proportion."""
ROWS = 401
"""Of the paper's moving window sum, measured at every step."""
_HASH = "mechplateau.config_hash"


@dataclass(frozen=True)
class Reading:
    """How a study's numbers are read off a table alone.

    Attributes:
        columns: of all the columns of a run's table, those that are looked at. Takes the configuration, too.
        numbers: the numbers of such a table.
        beside: the numbers that are read off other files in the folder of results. Takes the folder, recipe and seed.
    """

    columns: Callable[[RunConfig, Sequence[str]], Sequence[str]]
    numbers: Callable[[pd.DataFrame, RunConfig], Numbers]
    beside: Callable[[Traversable | Path, str, int], Numbers] = lambda results, recipe, seed: {}


def recorded_table(reading: Reading, metrics: pd.DataFrame, config: RunConfig) -> pd.DataFrame:
    """The part of a run's table that is put on record: `step`, then what the numbers look at, as float32."""
    wanted = reading.columns(config, [str(name) for name in metrics.columns])
    names = ["step", *(name for name in metrics.columns if name in set(wanted) - {"step"})]
    return metrics[names].astype({name: np.float32 for name in names if name != "step"})


def packed(table: pd.DataFrame, config_hash: str) -> bytes:
    """A table on record as the bytes of its file.

    Raises:
        UserError: it takes more than `LARGEST` bytes, for its length.
    """
    arrow = pa.Table.from_pandas(table, preserve_index=False).replace_schema_metadata({_HASH: config_hash})
    file = io.BytesIO()
    # Shares of a batch take few values: a dictionary holds them; of the others, bytes of one kind lie together.
    few = [name for name in table.columns if table[name].nunique() < len(table) / 2]
    pq.write_table(
        arrow,
        file,
        compression="zstd",
        compression_level=19,
        write_statistics=False,
        use_dictionary=few,
        use_byte_stream_split=[name for name in table.columns if name not in few and name != "step"],
    )
    data = file.getvalue()
    most = LARGEST * max(len(table), ROWS) // ROWS
    if len(data) > most:
        raise UserError(
            f"a table of {len(table)} rows and {table.shape[1]} columns takes {len(data)} bytes, more than {most}; "
            "measure less often, or record fewer columns"
        )
    return data


def table_name(recipe: str, seed: int, scale: str) -> str:
    """The file's name of a table on record."""
    return f"{recipe}_{seed}_{scale}.parquet"


def write_recorded(folder: Path, name: str, data: bytes) -> None:
    """Put a packed table into a study's results."""
    write_atomic(folder / "tables" / name, lambda temporary: temporary.write_bytes(data))


def read_recorded(results: Traversable | Path, name: str, config_hash: str) -> pd.DataFrame | None:
    """A table on record; None where there is none.

    Raises:
        UserError: it is another configuration's.
    """
    file = results / "tables" / name
    if not file.is_file():
        return None
    arrow = pq.read_table(io.BytesIO(file.read_bytes()))
    recorded = (arrow.schema.metadata or {}).get(_HASH.encode(), b"").decode()
    if recorded != config_hash:
        raise UserError(f"{file}: is of configuration {recorded}, not {config_hash}; record the run again")
    return arrow.to_pandas()
