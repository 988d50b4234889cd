"""Learning coefficients on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mechplateau.development import LlcTable


def print_estimates(estimates: LlcTable) -> None:
    """The estimates as a table, then why each has its verdict."""
    from rich.console import Console
    from rich.table import Table

    from mechplateau.report.development import cell

    table = Table(box=None, padding=(0, 2, 0, 0))
    columns = {
        "step": "step",
        "L(w*)": "loss",
        "E[L]": "mean_loss",
        "λ̂": "paired",
        "chain sd": "chain_sd",
        "elasticity": "elasticity",
        "distance": "distance",
        "verdict": "verdict",
    }
    for name in columns:
        table.add_column(name, justify="left" if name == "verdict" else "right", no_wrap=True)
    lines = estimates.table.to_dict("records")
    for line in lines:
        table.add_row(*(cell(line[column]) for column in columns.values()))
    console = Console()
    console.print(table)
    for line in lines:
        console.print(f"{line['step']}: {line['reason']}.", markup=False, highlight=False, soft_wrap=True)
    first = lines[0]
    console.print(
        f"nβ {cell(first['n_beta'])}, ε {cell(first['step_size'])}, γ {cell(first['localization'])}, "
        f"trivial loss {cell(first['trivial_loss'])}. {estimates.beside_the_loss}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
