"""What Ray costs: the same runs in local processes and on a local Ray node, with as many at a time.

    python benchmarks/ray_overhead.py --runs 16 --seconds 10 --workers 2

The time of Ray's own start is printed apart and does not count. A trial on this machine finds how many steps make a run
as long as asked for. It needs an environment with Ray (`make test-ray` makes one).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from mechplateau.config import RunConfig
from mechplateau.training import train
from mechplateau.training.cluster.on_ray import RayCluster
from mechplateau.training.executor import Executor
from mechplateau.training.sweep import sweep

_TRIAL = 300
"""Steps by which the length of a run is found."""


def configs(runs: int, steps: int) -> list[RunConfig]:
    """Small runs that differ by their seed."""
    task = {"n": 8, "k": 2, "p": 17, "max_num": 16}
    training = {"steps": steps, "batch_size": 32}
    sizes = {"task": task, "model": {"d_model": 32}, "training": training, "evaluation": {"samples": 32}}
    return [RunConfig.for_task("mws", seed=seed, **sizes) for seed in range(runs)]


def steps_for(seconds: float) -> int:
    """Steps that take about so long, alone on one thread."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        train(configs(1, _TRIAL)[0], runs_dir=folder, threads=1)
        return max(1, int(_TRIAL * seconds / (time.perf_counter() - begin)))


def timed(runs: list[RunConfig], workers: int, executor: Executor | None) -> float:
    """Seconds that they take."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        results = sweep(runs, runs_dir=Path(folder), jobs=workers, threads=1, device="cpu", executor=executor)
        took = time.perf_counter() - begin
    if any(result.outcome != "finished" for result in results):
        raise SystemExit(f"a run failed: {[result.message for result in results]}")
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    runs = configs(asked.runs, steps_for(asked.seconds))
    before = os.getloadavg()[0]
    begin = time.perf_counter()
    with RayCluster() as cluster:
        print(f"Ray has started after {time.perf_counter() - begin:.1f} s.")
        there = timed(runs, asked.workers, cluster)
    here = timed(runs, asked.workers, None)
    print(
        f"{asked.runs} runs, {asked.workers} at a time: {here:.1f} s in local processes, {there:.1f} s on Ray, "
        f"ratio {there / here:.3f} (load {before:.1f} before, {os.getloadavg()[0]:.1f} after)."
    )


if __name__ == "__main__":
    main()
