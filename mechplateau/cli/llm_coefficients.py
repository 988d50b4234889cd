"""`mechplateau llm --llc`: its options, and the learning coefficients of a series of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mechplateau.cli import bars
from mechplateau.cli.options import PATH_OPTION
from mechplateau.errors import UserError

if TYPE_CHECKING:
    from mechplateau.llm import SeriesAnalysis
    from mechplateau.training.executor import Executor
    from mechplateau.views import SectionView

Llc = Annotated[
    bool,
    typer.Option(
        "--llc", help="Also estimate the local learning coefficient of every checkpoint, with its verdict."
    ),
]
LlcText = Annotated[
    Path | None,
    typer.Option("--llc-text", help="The text whose loss it is about (default: the prompts).", **PATH_OPTION),
]
LlcRow = Annotated[
    int | None, typer.Option("--llc-row", help="Tokens a row of it (default: 128, or what the models take).")
]
LlcBatch = Annotated[int | None, typer.Option("--llc-batch", help="Rows a step (default: 32, or all).")]
LlcChains = Annotated[int, typer.Option("--llc-chains", help="Chains.")]
LlcDraws = Annotated[int, typer.Option("--llc-draws", help="Steps a chain that count.")]
LlcStepSize = Annotated[
    float | None,
    typer.Option("--llc-step-size", help="ε (default: the largest that the curvature allows)."),
]
LlcNBeta = Annotated[float | None, typer.Option("--llc-n-beta", help="nβ (default: n / ln n, n the rows).")]
LlcLocalization = Annotated[
    float, typer.Option("--llc-localization", help="γ, the pull back to the checkpoint's weights.")
]


@dataclass(frozen=True)
class LlcRequest:
    """What the options say; where they are of no use without --llc, so they are refused.

    Args:
        asked: --llc.
        identity_only: nothing is to be measured.
        text: the file, or None.
        row, batch, chains, draws, step_size, n_beta, localization: as the options.
    """

    asked: bool = False
    identity_only: bool = False
    text: Path | None = None
    row: int | None = None
    batch: int | None = None
    chains: int = 4
    draws: int = 200
    step_size: float | None = None
    n_beta: float | None = None
    localization: float = 100.0

    def __post_init__(self) -> None:
        if self.asked and self.identity_only:
            raise UserError("--llc: measures, and --identity-only measures nothing; give one of them")
        given: dict[str, Path | float | None] = {
            "--llc-text": self.text,
            "--llc-row": self.row,
            "--llc-batch": self.batch,
        }
        given |= {"--llc-step-size": self.step_size, "--llc-n-beta": self.n_beta}
        for option in (name for name, value in given.items() if value is not None and not self.asked):
            raise UserError(f"{option}: is for learning coefficients; add --llc")

    def words(self, prompts: list[str]) -> str:
        """The text.

        Raises:
            UserError: it cannot be read.
        """
        if self.text is None:
            return "\n".join(prompts)
        try:
            return self.text.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            raise UserError(f"--llc-text {self.text}: expected a text file, got none ({reason})") from None


def coefficients(
    series: str,
    analysis: SeriesAnalysis,
    request: LlcRequest,
    words: str,
    *,
    folder: Path,
    tokenizer: Path | None,
    stage: int | None,
    device: str,
    jobs: int | None,
    threads: int,
    executor: Executor | None,
) -> list[SectionView]:
    """Estimate them, write the tables and the figure; the page's sections."""
    from mechplateau.cli.estimates import print_estimates
    from mechplateau.llm import series_llc
    from mechplateau.llm.table import write_table
    from mechplateau.report.development import llc_section_of_series

    found = series_llc(
        series,
        analysis.table,
        words,
        folder=folder,
        tokenizer=tokenizer,
        stage=stage,
        row_length=request.row,
        batch_size=request.batch,
        chains=request.chains,
        draws=request.draws,
        step_size=request.step_size,
        n_beta=request.n_beta,
        localization=request.localization,
        device=device,
        jobs=jobs,
        threads=threads,
        executor=executor,
        progress=bars.shown,
    )
    write_table(folder / "series.parquet", found.beside(analysis.table))
    write_table(folder / "llc.parquet", found.found.table)
    section = llc_section_of_series(found)
    assert section.picture is not None
    section.picture.save(folder / "llc.pdf")
    print_estimates(found.found)
    return [section]
