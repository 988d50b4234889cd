"""The other side of `trackers`: reads a header and rows as lines of JSON, hands them to a tracker.

Run as `python -m mechplateau.training.tracker_process wandb FOLDER`. Without an account or a network,
Weights & Biases writes its files offline (`wandb sync` uploads them later) and never prompts for anything.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Literal


def main() -> None:
    name, folder = sys.argv[1:]
    lines = (json.loads(line) for line in sys.stdin)
    header = next(lines)
    {"wandb": _wandb, "tensorboard": _tensorboard}[name](header, _numbers(lines), folder)


def _numbers(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows without their undefined values: trackers would show these as 0, or drop the row."""
    for row in rows:
        yield {key: value for key, value in row.items() if value is not None}


def _wandb(header: dict[str, Any], rows: Iterator[dict[str, Any]], folder: str) -> None:
    import wandb

    # Where WANDB_MODE is set, wandb obeys it by itself.
    mode: Literal["online", "offline"] | None = None
    if not os.environ.get("WANDB_MODE"):
        mode = "online" if os.environ.get("WANDB_API_KEY") else "offline"
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", header["project"]),
        name=header["name"],
        config=header["config"],
        dir=folder,
        mode=mode,
        settings=wandb.Settings(init_timeout=30, console="off"),
    )
    for row in rows:
        run.log(row, step=row["step"])
    run.finish()


def _tensorboard(header: dict[str, Any], rows: Iterator[dict[str, Any]], folder: str) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(folder) as writer:
        writer.add_text("config", f"```\n{json.dumps(header['config'], indent=2)}\n```")
        for row in rows:
            for key, value in row.items():
                if key != "step":
                    writer.add_scalar(key, value, row["step"])


if __name__ == "__main__":
    main()
