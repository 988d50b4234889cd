"""One checkpoint of a series from its files to its record: here, or by a job elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechplateau.errors import CheckpointError, ConfigError, UserError
from mechplateau.files import write_text
from mechplateau.llm.config import SeriesConfig
from mechplateau.llm.sources import FolderSource, HubSource, Source, open_source
from mechplateau.llm.store import Example, StepRecord, Store
from mechplateau.llm.tokens import tokenizer_files
from mechplateau.progress import Progress, bars
from mechplateau.training.executor import Executor, Job, JobResult, job_function, submit
from mechplateau.training.loop import torch_threads

if TYPE_CHECKING:
    from torch import Tensor

    from mechplateau.llm.tokens import PromptTokens

N_EXAMPLES = 4
"""Prompts whose completions are kept."""
_BROKEN = "broken.txt"
"""In a job's folder, instead of a record: why the checkpoint cannot be read."""


class Recorder:
    """Turns one checkpoint into a record."""

    def __init__(
        self,
        source: Source,
        config: SeriesConfig,
        prompts: Sequence[Any],
        tokenizer: Path | None,
        identity_only: bool,
        labels: Sequence[str],
    ) -> None:
        from mechplateau.llm.tokens import Tokenization

        self.source, self.config, self.prompts = source, config, prompts
        self.tokenizer, self.labels = tokenizer, list(labels)
        self.tokenization = None if identity_only else Tokenization(source, prompts, tokenizer, labels)

    def record(self, label: str, measured: bool, store: Store | None) -> StepRecord:
        """The stored record of a checkpoint, or a new one, stored.

        Raises:
            CheckpointError: the checkpoint cannot be had, read or run.
        """
        version = self.source.version(label)
        tokens = self.tokenization.of(label) if measured and self.tokenization is not None else None
        stored = store.load(label, version) if store is not None else None
        # Another tokenizer gives other numbers.
        if stored is not None and (tokens is None or stored.prompt_ids == tokens.digest):
            return stored
        record = self.new(label, version, tokens)
        if store is not None:
            store.save(label, record)
        return record

    def kept(self, label: str, measured: bool, store: Store) -> bool:
        """Whether `record` would find a stored one; also where it would raise, which it is left to do."""
        try:
            tokens = self.tokenization.of(label) if measured and self.tokenization is not None else None
            stored = store.load(label, self.source.version(label))
        except (CheckpointError, OSError):
            return True
        return stored is not None and (tokens is None or stored.prompt_ids == tokens.digest)

    def new(self, label: str, version: str, prompts: PromptTokens | None) -> StepRecord:
        """A record of a checkpoint, measured on these prompts; None: of its identity only."""
        from mechplateau.llm.generation import generate
        from mechplateau.llm.identity import identify
        from mechplateau.llm.loading import end_of_text, load_model
        from mechplateau.llm.measures import measure
        from mechplateau.llm.weights import read_checkpoint

        folder = self.source.fetch(label)
        checkpoint = read_checkpoint(folder)
        identity = identify(checkpoint.tensors)
        if identity.nonfinite:
            raise CheckpointError(f"{folder}: infinite or NaN weights in {', '.join(identity.nonfinite[:3])}")
        notes = checkpoint.notes
        if prompts is None:
            return StepRecord(version, identity, None, notes=notes)
        config = self.config
        model = load_model(folder, checkpoint.tensors, dtype=config.dtype, device=config.device)
        del checkpoint
        suppressed = end_of_text(model, prompts.tokenizer)
        generation = generate(
            model,
            prompts.ids,
            n_tokens=config.n_tokens,
            suppress=suppressed,
            batch_size=config.batch_size,
            temperature=config.temperature,
            seed=config.seed,
        )
        return StepRecord(
            version,
            identity,
            measure(generation),
            prompts.digest,
            tuple(self._examples(prompts, generation.tokens)),
            tuple(suppressed),
            (*notes, *prompts.notes),
        )

    def _examples(self, prompts: PromptTokens, tokens: Tensor) -> Iterator[Example]:
        for prompt, row in zip(self.prompts[:N_EXAMPLES], tokens[:N_EXAMPLES].tolist(), strict=True):
            written = prompt if isinstance(prompt, str) else " ".join(map(str, prompt))
            yield Example(written, tuple(prompts.text(token) for token in row))


def record_elsewhere(
    recorder: Recorder,
    labels: Mapping[str, bool],
    store: Store,
    *,
    stage: int | None,
    jobs: int | None,
    threads: int,
    executor: Executor | None,
    progress: Progress | str | None,
) -> dict[str, str]:
    """Have other processes make the records that are missing, and keep them.

    Args:
        recorder: what it takes.
        labels: checkpoints, each with whether it is measured or only identified.
        store: where records are kept.
        stage: of a series in stages.
        jobs, threads, executor: as for `analyze_series`.
        progress: makes a bar.

    Returns:
        the checkpoints that cannot be read, and why.

    Raises:
        ConfigError: a source that another process cannot open by its name.
        UserError: a job failed otherwise; the others' records are kept.
    """
    if not isinstance(recorder.source, FolderSource | HubSource):
        raise ConfigError(
            f"source: expected a folder, a preset or a repository for other processes, got {recorder.source.name}"
        )
    missing = [label for label, measured in labels.items() if not recorder.kept(label, measured, store)]
    work = {
        label: Job(
            "llm_record",
            {
                "source": recorder.source.name,
                "stage": stage,
                "config": recorder.config.data(),
                "prompts": list(recorder.prompts) if labels[label] else None,
                "tokenizer": str(recorder.tokenizer) if recorder.tokenizer is not None else None,
                "labels": recorder.labels,
                "label": label,
                "version": recorder.source.version(label),
                "settings": store.settings,
            },
            store.draft(label),
            threads,
            reads=_files(recorder, label),
        )
        for label in missing
    }
    broken = {}
    with closing(bars(progress)(total=len(work), desc="checkpoint")) as bar:

        def ended(result: JobResult) -> None:
            bar.update(1)

        try:
            results = submit(list(work.values()), workers=jobs, executor=executor, on_result=ended)
        finally:
            for label, job in work.items():
                if (job.folder / _BROKEN).is_file():
                    broken[label] = (job.folder / _BROKEN).read_text(encoding="utf-8")
                store.take(label)
                shutil.rmtree(job.folder, ignore_errors=True)
    for label, result in zip(work, results, strict=True):
        if result.outcome == "failed":
            said = result.message.removeprefix("mechplateau: ")
            raise UserError(f"{label}: {said}; rerun the same command to resume")
    return broken


@job_function("llm_record")
def _llm_record(
    folder: Path,
    threads: int,
    *,
    source: str,
    stage: int | None,
    config: Mapping[str, Any],
    prompts: Sequence[Any] | None,
    tokenizer: str | None,
    labels: Sequence[str],
    label: str,
    version: str,
    settings: str,
) -> None:
    """Record one checkpoint in a folder of its own."""
    opened = open_source(source)[0]
    opened.listing(stage)  # the hub's commits are known by it
    recorder = Recorder(
        opened,
        SeriesConfig.parse(config),
        prompts or (),
        Path(tokenizer) if tokenizer is not None else None,
        prompts is None,
        labels,
    )
    try:
        with torch_threads(threads):
            tokens = None if recorder.tokenization is None else recorder.tokenization.of(label)
            record = recorder.new(label, version, tokens)
    except (CheckpointError, OSError) as error:
        write_text(folder / _BROKEN, broken_by(label, error))
    else:
        Store(folder, settings).save(label, record)


def broken_by(label: str, error: CheckpointError | OSError) -> str:
    """Why a checkpoint cannot be read, in a line."""
    if isinstance(error, OSError) and not isinstance(error, CheckpointError):
        return f"{error.filename or label}: cannot be read ({error.strerror or error})"
    return str(error)


def checkpoint_files(source: Source, label: str) -> tuple[Path, ...]:
    """The files of a checkpoint that lies in a folder; of the hub's none, which a node fetches itself."""
    if not isinstance(source, FolderSource):
        return ()
    return tuple(path for path in (source.path / label).iterdir() if path.is_file())


def _files(recorder: Recorder, label: str) -> tuple[Path, ...]:
    """What a job reads: the checkpoint, and the tokenizers that may stand in for its own."""
    source = recorder.source
    folders = [] if recorder.tokenizer is None else [recorder.tokenizer]
    if isinstance(source, FolderSource):
        folders += [source.path, *(source.path / other for other in recorder.labels)]
    own = checkpoint_files(source, label)
    return tuple(dict.fromkeys([*own, *(path for folder in folders for path in tokenizer_files(folder))]))
