"""`mechplateau llm …`: series of language-model checkpoints. Every heavy import is inside the command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mechplateau.cli import bars
from mechplateau.cli.executors import LOCAL, Address, Collect, ExecutorName, GpusPerRun, Place, Retries
from mechplateau.cli.llm_coefficients import (
    Llc,
    LlcBatch,
    LlcChains,
    LlcDraws,
    LlcLocalization,
    LlcNBeta,
    LlcRequest,
    LlcRow,
    LlcStepSize,
    LlcText,
    coefficients,
)
from mechplateau.errors import UserError
from mechplateau.files import local_path

if TYPE_CHECKING:
    import pandas as pd

    from mechplateau.llm import SeriesAnalysis
    from mechplateau.views import SectionView
    from mechplateau.views.llm_page import HeadsSection

DEMO = "demo"
HEAD_SEQUENCES = 4
"""Sequences on which heads are measured."""
LONGEST_COPY = 512
"""Random tokens that are given twice in each, at most."""


def _folder(text: str | Path) -> Path:
    """A folder's path; an empty name (of an unset variable, say) is an error."""
    if not str(text).strip():
        raise typer.BadParameter("expected a folder, got an empty name")
    return local_path(text)


def llm(
    series: Annotated[
        str,
        typer.Argument(
            metavar="SERIES",
            help="pythia-14m … pythia-2.8b, olmo2-7b, a repository of the Hugging Face hub (owner/name), a folder "
            "with one checkpoint folder a step, or demo: a small model trained here, without any network.",
        ),
    ],
    prompts: Annotated[
        str, typer.Option(help="default (100 questions), arc-easy, or a text file with one prompt a line.")
    ] = "default",
    n_prompts: Annotated[int, typer.Option(help="At most this many prompts.")] = 100,
    prompt_seed: Annotated[
        int | None, typer.Option(help="Choose the prompts at random with this seed (default: the first).")
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(
            help="all, or numbers and ranges: 0,1,2,1000-4000 (default: a folder's all, the paper's)."
        ),
    ] = None,
    stage: Annotated[
        int | None, typer.Option(help="Stage of a series in stages (default: the first).")
    ] = None,
    n_tokens: Annotated[int, typer.Option(help="Tokens generated after each prompt.")] = 8,
    temperature: Annotated[
        float | None, typer.Option(help="Sample at this temperature (default: greedy).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    batch_size: Annotated[int, typer.Option(help="Prompts run together.")] = 32,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            parser=_folder,
            metavar="FOLDER",
            help="A folder with the tokenizer for all checkpoints, where they have none of their own or not this one.",
        ),
    ] = None,
    identity_only: Annotated[
        bool, typer.Option("--identity-only", help="Check the checkpoints, measure nothing.")
    ] = False,
    heads: Annotated[
        bool, typer.Option("--heads", help="Also measure what every head attends to, and from which step on.")
    ] = False,
    llc: Llc = False,
    llc_text: LlcText = None,
    llc_row: LlcRow = None,
    llc_batch: LlcBatch = None,
    llc_chains: LlcChains = 4,
    llc_draws: LlcDraws = 200,
    llc_step_size: LlcStepSize = None,
    llc_n_beta: LlcNBeta = None,
    llc_localization: LlcLocalization = 100.0,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Checkpoints at a time, each in a process of its own (default: one after the other in this one; "
            "on Ray as many as it has room for)."
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads (default: all; with --jobs cores / jobs; on Ray 1).")
    ] = None,
    runs_dir: Annotated[
        Path, typer.Option(parser=_folder, metavar="FOLDER", help="Where the analysis is kept.")
    ] = Path("runs"),
    executor: ExecutorName = LOCAL,
    address: Address = None,
    gpus_per_run: GpusPerRun = None,
    collect: Collect = False,
    retries: Retries = None,
) -> None:
    """Measure repetition and collapse along a series of checkpoints, and check that each is what its name says.

    Finished checkpoints are kept. Rerun the same command to resume after Ctrl-C.
    """
    from mechplateau.llm import SeriesConfig, analysis_folder, analyze_series, load_prompts
    from mechplateau.runs import Run

    if Run.exists(series):
        raise UserError(
            f"{series}: a run of mechplateau, not a series of language models; use `mechplateau llc {series}` for its "
            "learning coefficients, `mechplateau show` and `report` for the rest"
        )
    place = Place(executor, address, gpus_per_run, collect, retries, device)
    request = LlcRequest(
        llc,
        identity_only,
        llc_text,
        llc_row,
        llc_batch,
        llc_chains,
        llc_draws,
        llc_step_size,
        llc_n_beta,
        llc_localization,
    )
    config = SeriesConfig.parse(
        {
            "n_prompts": n_prompts,
            "prompt_seed": prompt_seed,
            "n_tokens": n_tokens,
            "temperature": temperature,
            "seed": seed,
            "dtype": dtype,
            "device": device,
            "batch_size": batch_size,
        }
    )
    if threads is not None:
        _use_threads(threads)
    texts = [] if identity_only else load_prompts(prompts)
    if series == DEMO and not Path(series).is_dir():
        series = str(_train_demo(runs_dir / "demo-series"))
    words = request.words(texts) if llc else ""
    folder = analysis_folder(runs_dir, series, config, texts)
    sections: list[SectionView] = []
    with place.joined() as cluster:
        analysis = analyze_series(
            series,
            config,
            prompts=texts,
            steps=steps,
            stage=stage,
            tokenizer=tokenizer,
            identity_only=identity_only,
            folder=folder,
            jobs=jobs,
            threads=place.threads(threads, jobs),
            executor=cluster,
            progress=bars.shown,
        )
        if llc:
            sections += coefficients(
                series,
                analysis,
                request,
                words,
                folder=folder,
                tokenizer=tokenizer,
                stage=stage,
                device=device,
                jobs=jobs,
                threads=place.threads(threads, jobs),
                executor=cluster,
            )
    section = _heads(series, analysis, stage, device, folder) if heads and not identity_only else None
    page = _pages(analysis, folder, section, sections, identity_only)
    _print(analysis)
    print(f"Table: {folder / 'series.parquet'}")
    if section is not None:
        print(f"Heads: {folder / 'heads.parquet'}")
    print(f"Page: {page}")


def _use_threads(threads: int) -> None:
    """Have torch use so many CPU threads in this process."""
    import torch

    from mechplateau.training.loop import check_threads

    check_threads(threads)
    torch.set_num_threads(threads)


def _pages(
    analysis: SeriesAnalysis,
    folder: Path,
    section: HeadsSection | None,
    sections: Sequence[SectionView],
    identity_only: bool,
) -> Path:
    """Write the page of an analysis and, if it was measured, its figure; returns the page."""
    from mechplateau.views.llm_page import save_series
    from mechplateau.views.llm_series import plot_series

    page = save_series(
        folder / "page.html",
        analysis.table,
        title=Path(analysis.source).name if Path(analysis.source).is_dir() else analysis.source,
        summary=analysis.summary,
        examples={label: [(e.prompt, e.tokens) for e in some] for label, some in analysis.examples.items()},
        heads=section,
        sections=sections,
    )
    if not identity_only:
        plot_series(analysis.table).save(folder / "figure.pdf")
    return page


def _heads(
    series: str, analysis: SeriesAnalysis, stage: int | None, device: str, folder: Path
) -> HeadsSection:
    """What every head attends to on repeated random tokens: the table is written, the figure too."""
    from mechplateau.circuits import attention_scores, repeated_tokens
    from mechplateau.circuits.token_sets import READY_MADE
    from mechplateau.llm import births, series_heads
    from mechplateau.llm.table import write_table
    from mechplateau.views.llm_heads import plot_heads
    from mechplateau.views.llm_page import HeadsSection

    def tool(model: Any) -> pd.DataFrame:
        length = min(model.cfg.n_ctx // 2, LONGEST_COPY)
        tokens = repeated_tokens(model.cfg.d_vocab, length=length, batch=HEAD_SEQUENCES)
        return attention_scores(model, tokens).assign(length=length)

    settings = (
        f"repeated_tokens, {HEAD_SEQUENCES} of at most 2 x {LONGEST_COPY}, seed 0: {', '.join(READY_MADE)}"
    )
    table = series_heads(
        series,
        analysis.table,
        tool,
        settings=settings,
        stage=stage,
        device=device,
        folder=folder / "heads",
        progress=bars.shown,
    )
    write_table(folder / "heads.parquet", table)
    plot_heads(table, analysis.table).save(folder / "heads.pdf")
    doubtful = set(analysis.table.loc[analysis.table["doubtful"], "label"])
    born = births(table[~table["label"].isin(doubtful)])
    _print_births(born)
    note = (
        f"On {HEAD_SEQUENCES} sequences of {int(table['length'].max())} random tokens, given twice: the mean share of "
        "a head's attention, over the positions that have such a token before them."
    )
    return HeadsSection(table, born, note)


def _print_births(born: pd.DataFrame) -> None:
    import pandas as pd
    from rich.console import Console

    from mechplateau.cli.tables import print_table

    console = Console()
    if born.empty:
        console.print("No head puts a fifth of its attention on any of the sets.")
        return
    lines = [
        (
            f"L{row['layer']}H{row['head']}",
            str(row["set"]).replace("_", " "),
            str(row["born"]),
            f"{row['most']:.2f}",
            str(row["most_at"]),
        )
        for row in born.to_dict("records")
    ]
    columns = ["head", "attends to", "born", "largest share", "at step"]
    print_table(pd.DataFrame(lines, columns=columns), console, right=("head", *columns[2:]))


def _train_demo(folder: Path) -> Path:
    from mechplateau.llm import DemoConfig, train_demo

    return train_demo(folder, DemoConfig(), progress=bars.shown)


def _print(analysis: SeriesAnalysis) -> None:
    import pandas as pd
    from rich.console import Console
    from rich.text import Text

    from mechplateau.cli.tables import print_table
    from mechplateau.llm.table import PLAIN_NOTES

    lines = [
        (
            str(row["label"]) if pd.isna(row["step"]) else str(row["step"]),
            row["verdict"],
            *(
                "–" if pd.isna(row[name]) else f"{row[name]:.3f}"
                for name in ("cos_final", "repetition", "entropy", "loss")
            ),
        )
        for _, row in analysis.table.iterrows()
    ]
    columns = ["step", "verdict", "COS", "repetition", "entropy", "loss"]
    table = pd.DataFrame(lines, columns=columns)
    alarming = set(table["verdict"]) - {"ok", "final"}
    console = Console()
    print_table(table, console, right=("step", *columns[2:]), alarming=alarming)
    for _, row in analysis.table.iterrows():
        if row["note"] not in PLAIN_NOTES:
            # The note of a missing step names it.
            note = row["note"] if pd.isna(row["label"]) else f"{row['label']}: {row['note']}"
            console.print(Text(note), soft_wrap=True)
    for sentence in analysis.summary:
        console.print(Text(sentence), soft_wrap=True)
