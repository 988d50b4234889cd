"""A series of checkpoints from beginning to end: list, load one at a time, identify, measure, judge,
tabulate."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechplateau import signs
from mechplateau.devices import device_named
from mechplateau.errors import CheckpointError, ConfigError, counted
from mechplateau.files import local_path
from mechplateau.llm.config import SeriesConfig
from mechplateau.llm.identity import Identity
from mechplateau.llm.prompts import DEFAULT, choose, load_prompts
from mechplateau.llm.records import Recorder, broken_by, record_elsewhere
from mechplateau.llm.revisions import Listing, Revision, StepChoice, missing_steps
from mechplateau.llm.sources import Source, open_source
from mechplateau.llm.store import Example, StepRecord, Store
from mechplateau.llm.table import build_table, write_table
from mechplateau.llm.verdicts import Known, Verdict, judge
from mechplateau.progress import Progress, bars
from mechplateau.training.executor import Executor

if TYPE_CHECKING:
    import pandas as pd


MANY_STEPS = 32
"""More checkpoints of a hub repository than this are downloaded only if the steps are named."""

Prompts = str | Path | Sequence[str] | Sequence[Sequence[int]]


@dataclass(frozen=True)
class SeriesAnalysis:
    """What came out."""

    source: str
    config: SeriesConfig
    table: pd.DataFrame
    """One row a step; the columns are described in `mechplateau.llm.table`."""
    summary: tuple[str, ...]
    """The findings on the series as a whole, a sentence each."""
    examples: Mapping[str, tuple[Example, ...]]
    """Completions of the first prompts, by the label of the checkpoint."""
    identities: Mapping[str, Identity]
    """Hash of each tensor and sketch of each checkpoint that was read, by label."""
    folder: Path | None
    """Where the finished steps and the table are kept; None if nowhere."""


def analyze_series(
    source: str | Path | Source,
    config: SeriesConfig | None = None,
    *,
    prompts: Prompts = DEFAULT,
    steps: str | None = None,
    stage: int | None = None,
    tokenizer: str | Path | None = None,
    identity_only: bool = False,
    folder: str | Path | None = None,
    jobs: int | None = None,
    threads: int = 1,
    executor: Executor | None = None,
    progress: Progress | str | None = None,
) -> SeriesAnalysis:
    """Measure repetition and collapse along a series, and check that each checkpoint is what its name says.

    One checkpoint is in memory at a time. A revision that is missing or cannot be read is a row with the
    reason.

    Args:
        source: a folder of checkpoint folders, a preset (`pythia-14m`), or a repository of the hub.
        config: what to measure; None: the paper's settings.
        prompts: `default`, `arc-easy`, a text file with one prompt a line, or prompts as strings or as token
            ids.
        steps: `all`, or numbers and ranges such as `0,1,2,1000-4000`; None: all of a folder, the paper's of a
            preset.
        stage: which stage of a series in stages; None: the first.
        tokenizer: a folder with a tokenizer, where the checkpoints have none.
        identity_only: judge the checkpoints without measuring.
        folder: where to keep finished steps; a second call with the same settings continues from them.
        jobs: checkpoints that are done side by side, each in a process of its own; None: one after the other in this
            one, or with an `executor` as many as it has room for. Needs a folder. The numbers are the same to the bit
            with as many threads.
        threads: CPU threads of each such process.
        executor: who does them, such as `mechplateau.training.cluster.on_ray.RayCluster`.
        progress: makes a bar of checkpoints, as tqdm does (`mechplateau.progress`); "stderr": tqdm's own; None: silent.

    Raises:
        ConfigError: settings, steps or prompts that cannot be used.
        CheckpointError: no series there, or no checkpoint of it can be read.
        RunError: `folder` holds another analysis, or cannot be written.
    """
    config = config or SeriesConfig()
    opened, choice = open_source(str(source)) if isinstance(source, str | Path) else (source, None)
    if steps is not None:
        choice = StepChoice.parse(steps)
    listing = opened.listing(stage)
    choice = choice or _all_steps(opened, listing)
    chosen, absent = choice.pick(listing.revisions)
    if not chosen:
        raise ConfigError(
            f"steps: none of the requested steps is there; {opened.name} has {_span(listing.revisions)}"
        )
    texts = _prompts(prompts, config)
    if not texts and not identity_only:
        raise ConfigError("prompts: expected at least one, got none")
    store = Store(local_path(folder), _settings(opened, config, texts)) if folder is not None else None
    final = listing.final or listing.revisions[-1]
    labels = list(dict.fromkeys([*(revision.label for revision in chosen), final.label]))
    if executor is None:  # there it is the nodes that must have it
        device_named(config.device)
    job = Recorder(opened, config, texts, local_path(tokenizer) if tokenizer else None, identity_only, labels)

    measured = set() if identity_only else {revision.label for revision in chosen}
    broken: dict[str, str] = {}
    if jobs is not None or executor is not None:
        if store is None:
            raise ConfigError("folder: expected one, in which other processes leave what they find; got None")
        wanted = {label: label in measured for label in labels}
        broken = record_elsewhere(
            job, wanted, store, stage=stage, jobs=jobs, threads=threads, executor=executor, progress=progress
        )
    records = _records(job, labels, measured, store, broken, progress)
    if not records:
        raise CheckpointError(
            f"{opened.name}: none of {counted(len(labels), 'checkpoint')} can be read; {broken[labels[0]]}"
        )

    verdicts = _verdicts(listing, chosen, final, records)
    gaps = dict.fromkeys(absent, "requested, but there is no such revision")
    gaps |= dict.fromkeys(_inferred(choice, listing), "missing by the spacing of the others")
    rows = chosen if final in chosen else [*chosen, final]
    table = build_table(rows, gaps, records, broken, verdicts, final.label)
    if store is not None:
        write_table(store.table_path, table)
    return SeriesAnalysis(
        source=opened.name,
        config=config,
        table=table,
        summary=_summary(opened, listing, table, records, config, len(texts), identity_only),
        examples={label: record.examples for label, record in records.items() if record.examples},
        identities={label: record.identity for label, record in records.items()},
        folder=store.folder if store is not None else None,
    )


def analysis_folder(
    runs_dir: str | Path, source: str | Path | Source, config: SeriesConfig, prompts: Prompts
) -> Path:
    """Where an analysis belongs: `llm-` and the series' name, and a hash of the settings and
    prompts."""
    opened = open_source(str(source))[0] if isinstance(source, str | Path) else source
    text = _settings(opened, config, _prompts(prompts, config))
    # 60 characters, of up to 4 bytes, leave room below the 255 bytes of a file's name.
    name = re.sub(r"[^\w.-]+", "-", Path(opened.name).name)[:60]
    return local_path(runs_dir) / f"llm-{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _verdicts(
    listing: Listing, chosen: Sequence[Revision], final: Revision, records: Mapping[str, StepRecord]
) -> dict[str, Verdict]:
    """Whether each checkpoint that was read is what its name says."""
    known = {
        revision.label: Known(revision.label, revision.step, record.identity, record.prompt_ids)
        for revision in [*chosen, final]
        if (record := records.get(revision.label)) is not None
    }
    return judge(
        [known[revision.label] for revision in chosen if revision.label in known],
        known.get(final.label),
        last_label=listing.revisions[-1].label,
    )


def _all_steps(source: Source, listing: Listing) -> StepChoice:
    """All steps of a series that is not too long for it."""
    if len(listing.revisions) > MANY_STEPS:
        raise ConfigError(
            f"steps: {source.name} has {counted(len(listing.revisions), 'checkpoint')}; choose some of them "
            "(0,1,2,1000-4000), or all"
        )
    return StepChoice(everything=True)


def _records(
    job: Recorder,
    labels: Sequence[str],
    measured: set[str],
    store: Store | None,
    broken: dict[str, str],
    progress: Progress | str | None,
) -> dict[str, StepRecord]:
    """The record of each checkpoint that can be read; those that cannot are put into `broken`, with the reason.

    The final weights are measured only as a step of the series; otherwise they serve comparison.
    """
    records: dict[str, StepRecord] = {}
    with _quick_collection(), closing(bars(progress)(total=len(labels), desc="checkpoint")) as bar:
        for label in labels:
            bar.set_postfix_str(label)
            if label not in broken:
                try:
                    records[label] = job.record(label, label in measured, store)
                # Failures to write are RunErrors: this is the checkpoint's own folder.
                except (CheckpointError, OSError) as error:
                    broken[label] = broken_by(label, error)
                # A model in a reference cycle would keep its tensors until some later collection.
                gc.collect()
            bar.update(1)
    return records


@contextlib.contextmanager
def _quick_collection() -> Iterator[None]:
    """Exclude existing objects from garbage collections: with the libraries' objects, one takes half a
    second."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _prompts(prompts: Prompts, config: SeriesConfig) -> list[str] | list[list[int]]:
    """The chosen prompts, all of them strings or all of them lists of token ids; none if none are given."""
    given: Sequence[Any] = load_prompts(prompts) if isinstance(prompts, str | Path) else prompts
    chosen = choose(given, config.n_prompts, config.prompt_seed)
    strings = sum(isinstance(prompt, str) for prompt in chosen)
    if strings == len(chosen):
        return chosen
    try:
        if not strings:
            return [[int(token) for token in prompt] for prompt in chosen]
    except (TypeError, ValueError):
        pass
    raise ConfigError("prompts: expected strings only, or sequences of token ids only")


def _settings(source: Source, config: SeriesConfig, prompts: Sequence[Any]) -> str:
    """All that determines the numbers, as YAML; the batch size does not."""
    import yaml

    data = config.data()
    del data["batch_size"]
    digest = hashlib.sha256(json.dumps(list(prompts)).encode()).hexdigest()
    return yaml.safe_dump({"source": source.name, **data, "prompts_sha256": digest}, sort_keys=False)


def _inferred(choice: StepChoice, listing: Listing) -> list[int]:
    """Steps missing from the series by its own spacing, where the choice covers them."""
    steps = [revision.step for revision in listing.revisions if revision.step is not None]
    return [
        step
        for step in missing_steps(steps)
        if choice.everything or any(first <= step <= last for first, last in choice.ranges)
    ]


def _span(revisions: Iterable[Revision]) -> str:
    steps = [revision.step for revision in revisions if revision.step is not None]
    return f"{len(steps)} from step {min(steps)} to step {max(steps)}"


def _summary(
    source: Source,
    listing: Listing,
    table: pd.DataFrame,
    records: Mapping[str, StepRecord],
    config: SeriesConfig,
    n_prompts: int,
    identity_only: bool,
) -> tuple[str, ...]:
    doubtful = int((table["doubtful"] & table["step"].notna()).sum())
    absent = int(table["verdict"].isin(["missing", "broken"]).sum())
    known = int((table["step"].notna() & table["hash"].notna()).sum())
    sentences = [
        f"{counted(known, 'checkpoint')} read, {known - doubtful} of them with nothing speaking "
        f"against their names, {doubtful} doubtful; {absent} missing or broken."
    ]
    if not identity_only:
        how = (
            "greedy"
            if config.temperature is None
            else f"sampled at temperature {config.temperature:g}, seed {config.seed}"
        )
        suppressed = sorted({i for record in records.values() for i in record.suppressed})
        sentences.append(
            f"{counted(config.n_tokens, 'token')} after each of {counted(n_prompts, 'prompt')}, {how}, "
            f"in {config.dtype}; "
            f"ruled out: {'token ' + ', '.join(map(str, suppressed)) if suppressed else 'nothing'}."
        )
        sentences += _peak(table)
    if source.notice:
        sentences.append(source.notice + ".")
    if listing.left_out:
        sentences.append(
            f"Left out: {counted(len(listing.left_out), 'revision')} of other stages, whose steps count anew."
        )
    if listing.nameless:
        some = ", ".join(listing.nameless[:4]) + (" …" if len(listing.nameless) > 4 else "")
        sentences.append(f"Not looked at, as their names describe no step: {some}.")
    return tuple(sentences)


def _peak(table: pd.DataFrame) -> list[str]:
    """Where the collapse is strongest, and what became of it, over the checkpoints that are not doubtful."""
    rows = table[~table["doubtful"] & table["step"].notna() & table["cos_final"].notna()]
    if rows.empty:
        return []
    found = signs.peak(rows, "cos_final", signs.all_rows(rows))
    peak, last = rows[rows["step"] == found.step].iloc[0], rows.iloc[-1]
    later = (
        f"; at step {last['step']} it is {last['cos_final']:.2f} (repetition {_shown(last['repetition'])})"
        if last["step"] != peak["step"]
        else ""
    )
    return [
        f"Over the checkpoints that are not doubtful, COS is largest at step {peak['step']} ({peak['cos_final']:.2f}, "
        f"repetition {_shown(peak['repetition'])}){later}."
    ]


def _shown(value: float) -> str:
    return "undefined" if math.isnan(value) else f"{value:.2f}"


__all__ = ["SeriesAnalysis", "analysis_folder", "analyze_series"]
