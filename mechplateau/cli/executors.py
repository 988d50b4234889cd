"""Where a command's runs are done: processes on this machine, or a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from mechplateau.errors import UserError

if TYPE_CHECKING:
    from mechplateau.training.executor import Executor

LOCAL, RAY = "local", "ray"

ExecutorName = Annotated[
    str,
    typer.Option(
        "--executor", metavar="local|ray", help="Processes on this machine, or tasks of a Ray cluster."
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="Ray: the cluster to join, HOST:PORT or auto (default: RAY_ADDRESS; without it one is started here).",
        metavar="HOST:PORT",
    ),
]
GpusPerRun = Annotated[
    float | None,
    typer.Option(
        help="Ray: share of a GPU for each run, such as 0.25 (default: 1 with --device cuda, else 0)."
    ),
]
Collect = Annotated[
    bool,
    typer.Option(
        "--collect",
        help="Ray: nodes do not see the folder of runs; each run is brought back as it saves, and checked.",
    ),
]
Retries = Annotated[
    int | None,
    typer.Option(
        help="Ray: how often a run is resumed elsewhere after its worker or node is lost (default: 3)."
    ),
]


@dataclass(frozen=True)
class Place:
    """The options of these commands, checked.

    Args:
        executor: local or ray.
        address, gpus_per_run, collect, retries: for Ray only.
        device: where each run computes.
    """

    executor: str = LOCAL
    address: str | None = None
    gpus_per_run: float | None = None
    collect: bool = False
    retries: int | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.executor not in (LOCAL, RAY):
            raise UserError(f"--executor: expected {LOCAL} or {RAY}, got {self.executor!r}")
        given = {
            "--address": self.address is not None,
            "--gpus-per-run": self.gpus_per_run is not None,
            "--collect": self.collect,
            "--retries": self.retries is not None,
        }
        if not self.on_ray:
            for option in (name for name, there in given.items() if there):
                raise UserError(f"{option}: is for a Ray cluster; add --executor ray")
        elif self.device not in ("cpu", "cuda"):
            raise UserError(
                f"--device: expected cpu or cuda with --executor ray, which chooses the GPU; got {self.device!r}"
            )
        elif self.device == "cuda" and self.gpus_per_run == 0:
            raise UserError("--gpus-per-run: expected more than 0 with --device cuda, got 0")

    @property
    def on_ray(self) -> bool:
        return self.executor == RAY

    def threads(self, threads: int | None, jobs: int | None) -> int:
        """CPU threads of each run; UserError where torch cannot use so many."""
        from mechplateau.training.executor import cores
        from mechplateau.training.loop import check_threads

        check_threads(threads)
        if threads is not None:
            return threads
        return 1 if self.on_ray else max(1, cores() // (jobs or 1))

    @contextmanager
    def joined(self) -> Iterator[Executor | None]:
        """The executor, ready for jobs; None: local processes.

        Raises:
            UserError: Ray is not installed, or no cluster answers.
        """
        if not self.on_ray:
            yield None
            return
        from mechplateau.training.cluster.on_ray import RETRIES, RayCluster

        gpus = self.gpus_per_run if self.gpus_per_run is not None else float(self.device == "cuda")
        retries = RETRIES if self.retries is None else self.retries
        with RayCluster(self.address, gpus_per_run=gpus, collect=self.collect, retries=retries) as cluster:
            yield cluster
