"""Moving window sum at the paper's size against what the paper reports: `python benchmarks/fidelity.py`.

Trains what is missing (finished runs are reused) and prints the table that the README shows. The expected ranges
are those of the paper and of a run of its code: drop between steps 130 and 260, COS peak at least 0.93 before
it, attention progress up by at least 30 % half-way to the drop and at least 0.65 at the end, the copied output
right by step 110, all outputs right at the end.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from mechplateau.config import RunConfig
from mechplateau.runs import Run
from mechplateau.training import train


@dataclass(frozen=True)
class Fidelity:
    """What a moving-window-sum run is compared by. Steps are None where the event never comes."""

    seed: int
    drop: int | None
    cos_peak: float | None
    cos_peak_step: int | None
    apm_start: float | None
    apm_half_way: float | None
    apm_end: float | None
    copy_right: int | None
    repetition_peak: float | None
    accuracy_end: float | None

    @property
    def apm_rise(self) -> float | None:
        """Growth of attention progress from the start to half-way to the drop, relative."""
        return (
            None
            if self.apm_half_way is None or not self.apm_start
            else self.apm_half_way / self.apm_start - 1
        )


def fidelity_of(run: Run) -> Fidelity:
    """The numbers of a run: its signs, and `copy_right`, the first step from which y₀ stays ≥ 0.99 for three
    measurements in a row."""
    table, signs = run.metrics, run.signs
    right = (table["accuracy_out_0"] >= 0.99).rolling(3).sum().shift(-2) == 3
    return Fidelity(
        seed=run.config.seed,
        drop=signs.plateau.drop,
        cos_peak=signs.collapse.value,
        cos_peak_step=signs.collapse.step,
        apm_start=signs.progress_start.value,
        apm_half_way=signs.progress_half_way.value if signs.plateau.found else None,
        apm_end=signs.progress_end.value,
        copy_right=int(table["step"][right].iloc[0]) if right.any() else None,
        repetition_peak=signs.repetition.value,
        accuracy_end=signs.last("accuracy").value,
    )


def table_of(results: list[Fidelity]) -> str:
    """Markdown, one row a seed."""
    head = (
        "| seed | drop (step) | COS peak (step) | APM start → half-way to the drop → end | y₀ right from step "
        "| ρ peak | accuracy at the end |\n|---|---|---|---|---|---|---|"
    )
    rows = [
        f"| {r.seed} | {r.drop} | {_text(r.cos_peak)} ({r.cos_peak_step}) "
        f"| {_text(r.apm_start)} → {_text(r.apm_half_way)} → {_text(r.apm_end)} | {r.copy_right} "
        f"| {_text(r.repetition_peak, 2)} | {_text(r.accuracy_end)} |"
        for r in results
    ]
    return "\n".join([head, *rows])


def _text(value: float | None, digits: int = 3) -> str:
    return "undefined" if value is None else f"{value:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    parser.add_argument("--threads", type=int, default=None)
    arguments = parser.parse_args()
    runs = [
        train(RunConfig.for_task("mws", seed=seed), runs_dir=arguments.runs_dir, threads=arguments.threads)
        for seed in range(arguments.seeds)
    ]
    print(table_of([fidelity_of(run) for run in runs]))


if __name__ == "__main__":
    main()
