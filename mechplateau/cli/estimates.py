"""Learning coefficients on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mechplateau.development import LlcTable


def print_estimates(estimates: LlcTable) -> None:
    """The estimates as a table, then why each has its verdict."""
    import pandas as pd
    from rich.console import Console

    from mechplateau.cli.tables import print_table
    from mechplateau.report.development import cell

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
    lines = estimates.table.to_dict("records")
    cells = [[cell(line[column]) for column in columns.values()] for line in lines]
    console = Console()
    table = pd.DataFrame(cells, columns=list(columns))
    print_table(table, console, right=[name for name in columns if name != "verdict"])
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
