"""Learning coefficients over a series of language-model checkpoints, on a text of one's choice.

1. The text becomes tokens once, cut into rows of equal length; every checkpoint sees the same rows, in the same order,
   with the same noise. A checkpoint whose own tokenizer gives other tokens is left out: its losses would be of other
   data.
2. nβ is n / ln n, n the rows, unless it is given. The trivial loss is the entropy of the tokens' frequencies: the loss
   of a model that does not look at its input.
3. Each checkpoint's result is a note in the analysis's folder, with the hash of the weights that it is of.

Cost: `mechplateau.development.llc` times the checkpoints, and 20 products with the Hessian each for the step size.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mechplateau.development.data import Batches, Rows
from mechplateau.development.learning_coefficient import default_n_beta
from mechplateau.development.llc_table import LlcTable
from mechplateau.development.over_checkpoints import (
    Settings,
    make_note,
    over_checkpoints,
    plain_parts,
    workers,
)
from mechplateau.errors import CheckpointError, ConfigError, UserError
from mechplateau.files import local_path
from mechplateau.llm.heads import ABSENT
from mechplateau.llm.records import checkpoint_files
from mechplateau.llm.sources import Source, open_source
from mechplateau.objectives import Batch, NextToken, TokenBatch
from mechplateau.progress import Progress
from mechplateau.runs.notes import Notes
from mechplateau.schema import whole_number
from mechplateau.training.executor import Executor, job_function

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor, nn

    from mechplateau.development.weights import Losses, Parts

ROW = 128
"""Tokens a row, unless it is given."""
BATCH = 32
"""Rows a batch, at most, unless it is given."""


@dataclass(frozen=True)
class SeriesCoefficients:
    """What came out.

    Attributes:
        found: one line a checkpoint that was measured.
        rows: rows of the data; `row_length` tokens each.
        left_out: checkpoints whose tokenizer gives other tokens.
    """

    found: LlcTable
    rows: int
    row_length: int
    left_out: tuple[str, ...]

    def beside(self, table: pd.DataFrame) -> pd.DataFrame:
        """The series' table with four more columns: llc (λ̂, paired), llc_loss (L(w*)), llc_mean_loss (E[L]) and
        llc_verdict; null where nothing was measured."""
        own = self.found.table.set_index("step")
        named = {
            "llc": "paired",
            "llc_loss": "loss",
            "llc_mean_loss": "mean_loss",
            "llc_verdict": "verdict",
        }
        measured = table["hash"].notna()
        return table.assign(
            **{name: table["step"].map(own[column]).where(measured) for name, column in named.items()}
        )


def series_llc(
    source: str | Path,
    table: pd.DataFrame,
    text: str | Sequence[int],
    *,
    folder: str | Path,
    tokenizer: str | Path | None = None,
    stage: int | None = None,
    row_length: int | None = None,
    step_size: float | None = None,
    n_beta: float | None = None,
    localization: float = 100.0,
    chains: int = 4,
    draws: int = 200,
    burn_in: int = 0,
    seed: int = 0,
    batch_size: int | None = None,
    elasticity: bool = True,
    parts: Parts | None = None,
    device: str = "cpu",
    jobs: int | None = None,
    threads: int = 1,
    executor: Executor | None = None,
    progress: Progress | str | None = None,
) -> SeriesCoefficients:
    """The local learning coefficient at the checkpoints of an analyzed series, each with its verdict.

    Args:
        source: as for `analyze_series`.
        table: of the analysis: `step`, `label`, `verdict`, `doubtful`, `hash`; what was not read, is doubtful, or is no
            step of the series is left out.
        text: the data, as text or as token ids.
        folder: where each checkpoint's result is kept; a second call continues from them.
        tokenizer: a folder with a tokenizer, where the checkpoints have none.
        stage: of a series in stages.
        row_length: tokens a row, at least 2; None: 128, or as many as the models take.
        batch_size: rows a batch; None: 32, or all of them.
        step_size: ε; None: the largest that is safe at all of these checkpoints.
        n_beta: nβ; None: n / ln n, n the rows.
        localization, chains, draws, burn_in, seed, elasticity, parts: as for `mechplateau.development.llc`; parts by
            the names that transformers has for them.
        device, jobs, threads, executor: as for `mechplateau.development.llc_over_run`.
        progress: makes bars, as tqdm does (`mechplateau.progress`); "stderr": tqdm's own; None: silent.

    Raises:
        ConfigError: text or sizes that make no sense.
        CheckpointError: no checkpoint can be measured.
        UserError: settings that make no sense.
    """
    opened = open_source(str(source))[0]
    opened.listing(stage)
    rows = table[
        table["step"].notna() & ~table["verdict"].isin(ABSENT) & table["hash"].notna() & ~table["doubtful"]
    ]
    steps = {int(row["step"]): str(row["label"]) for _, row in rows.iterrows()}
    if not steps:
        raise CheckpointError(f"{opened.name}: no checkpoint to measure")
    ids, left_out = _tokens(opened, text, local_path(tokenizer) if tokenizer else None, steps)
    if not steps:
        raise CheckpointError(f"{opened.name}: no checkpoint to measure; each has another tokenizer")
    length = _row_length(opened, next(iter(steps.values())), row_length)
    n = len(ids) // length
    if n < 2:
        raise ConfigError(
            f"llc: expected a text of at least 2 rows of {length} tokens, got {len(ids)} tokens; give a longer text "
            "(--llc-text), or shorter rows (--llc-row)"
        )
    of_series = _OfSeries(
        opened.name,
        stage,
        device,
        ids[: n * length],
        length,
        steps,
        {int(row["step"]): str(row["hash"]) for _, row in rows.iterrows()},
        str(local_path(folder)),
    )
    settings: Settings = {
        "step_size": step_size,
        "n_beta": default_n_beta(n) if n_beta is None else float(n_beta),
        "localization": localization,
        "chains": chains,
        "draws": draws,
        "burn_in": burn_in,
        "seed": seed,
        "batch_size": min(BATCH, n) if batch_size is None else whole_number(batch_size, "batch_size"),
        "elasticity": elasticity,
        "parts": plain_parts(parts),
    }
    of_series.data(
        settings["batch_size"], seed
    )  # a batch that is larger than the text is said before anything begins
    found = over_checkpoints(
        of_series, list(steps), settings, by=workers(jobs, threads, executor), progress=progress
    )
    return SeriesCoefficients(found, n, length, tuple(left_out))


@dataclass(frozen=True)
class _OfSeries:
    """A series' checkpoints, as `over_checkpoints` asks for them."""

    source: str
    stage: int | None
    device: str
    tokens: Sequence[int] = field(repr=False)
    row_length: int
    labels: Mapping[int, str]
    contents: Mapping[int, str]
    analysis: str
    function = "llc_of_series"
    # What transformers' modules do inside is not made for vmap.
    stacked = False

    @cached_property
    def _rows(self) -> Tensor:
        return torch.tensor(self.tokens, dtype=torch.int64).view(-1, self.row_length)

    @property
    def losses(self) -> Losses:
        return _losses

    @cached_property
    def trivial_loss(self) -> float:
        counts = self._rows[:, 1:].flatten().unique(return_counts=True)[1].double()
        shares = counts / counts.sum()
        return float(-(shares * shares.log()).sum())

    @property
    def arguments(self) -> Mapping[str, Any]:
        names = ("source", "stage", "device", "tokens", "row_length", "labels", "contents", "analysis")
        return {name: getattr(self, name) for name in names}

    def model(self, step: int) -> nn.Module:
        from mechplateau.llm.loading import load_model
        from mechplateau.llm.weights import read_weights

        opened = open_source(self.source)[0]
        opened.listing(self.stage)  # the hub's commits are known by it
        folder = opened.fetch(self.labels[step])
        model = load_model(folder, read_weights(folder), device=self.device)
        return model.requires_grad_(True)

    def data(self, batch_size: int, seed: int) -> Batches:
        return Rows(self._rows, batch_size, seed=seed)

    def notes(self, kind: str, settings: Settings) -> Notes:
        digest = hashlib.sha256(json.dumps(list(self.tokens)).encode()).hexdigest()
        data = {"tokens_sha256": digest, "row_length": self.row_length}
        return _NotesOfContent(Path(self.analysis), kind, {**settings, **data}, self.source, self.contents)

    def reads(self, step: int) -> tuple[Path, ...]:
        return checkpoint_files(open_source(self.source)[0], self.labels[step])


class _NotesOfContent(Notes):
    """Notes that count only for the weights that they were made of."""

    def __init__(
        self, root: Path, kind: str, settings: Settings, source: str, contents: Mapping[int, str]
    ) -> None:
        super().__init__(root, kind, settings, source)
        self._contents = contents

    def read(self, step: int) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        found = super().read(step)
        if found is None or found[0].pop("content", None) != self._contents[step]:
            return None
        return found

    def write(self, step: int, numbers: Mapping[str, Any], arrays: Mapping[str, Any] | None = None) -> None:
        super().write(step, {**numbers, "content": self._contents[step]}, arrays)


@job_function(_OfSeries.function)
def _llc_of_series(
    folder: Path,
    threads: int,
    *,
    kind: str,
    step: int,
    settings: Settings,
    h_max: float | None,
    **series: Any,
) -> None:
    """The note of one checkpoint of a series; the analysis's folder need not be seen here."""
    series_checkpoints = _OfSeries(**series)
    make_note(series_checkpoints, folder, threads, kind=kind, step=step, settings=settings, h_max=h_max)


def _losses(model: Any, tokens: Tensor) -> Tensor:
    """Next-token losses of a language model of transformers on whole rows."""
    batch: Batch = TokenBatch(tokens)
    return NextToken().losses(model(input_ids=batch.inputs, use_cache=False).logits.float(), batch)


def _tokens(
    source: Source, text: str | Sequence[int], tokenizer: Path | None, steps: dict[int, str]
) -> tuple[list[int], list[str]]:
    """The data as token ids; the checkpoints whose tokenizers give others are taken out of `steps` and named."""
    from mechplateau.llm.loading import quiet
    from mechplateau.llm.tokens import Tokenization

    if not isinstance(text, str):
        return [int(token) for token in text], []
    if not text.strip():
        raise ConfigError("llc: expected a text, got an empty one")
    with quiet():  # a text is longer than what the models take at once
        tokenization = Tokenization(source, [text], tokenizer, list(steps.values()))
        of = {step: tokenization.of(label) for step, label in steps.items()}
    first = next(iter(of.values()))
    left_out = [step for step, tokens in of.items() if tokens.digest != first.digest]
    return first.ids[0], [steps.pop(step) for step in left_out]


def _row_length(source: Source, label: str, asked: int | None) -> int:
    """Tokens a row: what was asked for, where the models take so many."""
    config = json.loads((source.fetch(label) / "config.json").read_text(encoding="utf-8"))
    known = [config[name] for name in ("max_position_embeddings", "n_positions", "n_ctx") if name in config]
    most = int(known[0]) if known else None
    length = min(ROW, most or ROW) if asked is None else whole_number(asked, "llc_row")
    if length < 2 or (most is not None and length > most):
        raise UserError(
            f"llc: expected rows of 2 to {most or 'any number of'} tokens, as the models take; got {length}"
        )
    return length


__all__ = ["SeriesCoefficients", "series_llc"]
