"""Ways of doing one step, each in a process of its own, timed in turns.

In one process the ways would share what one of them sets: the training loop keeps freed memory (see
`mechplateau.training.memory`), which would speed the authors' way up as well. Between two works a process waits, and
costs nothing.

`python benchmarks/sides.py OTHER_CHECKOUT` compares this checkout with another one, task by task.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

HERE = Path(__file__).resolve()
PRODUCT = 2048
"""Rows and columns of the product whose speed counts as the machine's peak."""
PRODUCT_GFLOP = 2 * PRODUCT**3 / 1e9

Works = dict[str, Callable[[], object]]


class Side:
    """A process that does works by name, one at a time.

    Args:
        name: "authors" or "ours".
        threads: of torch.
        task: whose step ours takes.
        checkout: where ours is imported from.
    """

    def __init__(self, name: str, threads: int, task: str = "mws", checkout: Path = HERE.parents[1]):
        paths = [str(checkout), str(checkout / "kernels"), *filter(None, [os.environ.get("PYTHONPATH")])]
        # A benchmark of an earlier checkout is this one's: only what it imports is the other's.
        self._process = subprocess.Popen(
            [sys.executable, str(HERE), "--serve", name, "--threads", str(threads), "--task", task],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(threads)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        # Two threads that wait for each other burn processor time: their wall time counts.
        self._clock = "cpu" if threads == 1 else "wall"

    def seconds(self, work: str) -> float:
        """Do it once; processor seconds on one thread, wall seconds on several."""
        return self._ask(work)[self._clock]

    def memory(self) -> float:
        """MiB that the process has held at most so far."""
        return self._ask("memory")["memory"]

    def _ask(self, work: str) -> dict[str, float]:
        to, back = cast(IO[str], self._process.stdin), cast(IO[str], self._process.stdout)
        answer = ""
        with suppress(BrokenPipeError):
            to.write(work + "\n")
            to.flush()
            answer = back.readline()
        if not answer:
            raise RuntimeError(f"the process died at {work!r}; its message is above")
        return json.loads(answer)

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError):
            cast(IO[str], self._process.stdin).close()
        self._process.wait()
        cast(IO[str], self._process.stdout).close()


def in_turns(works: Sequence[tuple[Side, str]], rounds: int) -> list[list[float]]:
    """Seconds of each work, `[work][round]`, done one after the other `rounds` times, and once before to warm up."""
    seconds: list[list[float]] = [[] for _ in works]
    for turn in range(rounds + 1):
        for times, (side, work) in zip(seconds, works, strict=True):
            taken = side.seconds(work)
            if turn:
                times.append(taken)
    return seconds


def authors_works() -> Works:
    """The authors' step as they ship it, with its figure and without."""
    import numpy as np
    import paper_baseline as baseline
    import torch

    torch.manual_seed(0)
    sizes = baseline.Sizes()
    model = baseline.PlainGPT.of(sizes)
    optimizer = torch.optim.Adam(model.parameters(), lr=sizes.learning_rate)
    rng, history = np.random.default_rng(0), []
    figure = Path(f"/tmp/sides-{os.getpid()}.png")

    def with_figure() -> None:
        baseline.whole_step(model, optimizer, rng, sizes, history, figure)
        figure.unlink()

    return {
        "step": lambda: baseline.whole_step(model, optimizer, rng, sizes, history),
        "with figure": with_figure,
    }


def our_works(name: str) -> Works:
    """What the training loop does at a step of a task, under the loop's own setting of memory."""
    import torch

    from mechplateau.config import RunConfig
    from mechplateau.models import build_model
    from mechplateau.training.measure import Measurer
    from mechplateau.training.memory import freed_memory_kept
    from mechplateau.training.optimizers import build_optimizer
    from mechplateau.training.step import update

    freed_memory_kept().__enter__()
    config = RunConfig.for_task(name)
    task = config.task
    model = build_model(config.model, vocab_size=task.vocab_size, n_ctx=task.n_ctx)
    optimizer = build_optimizer(model, config.training)
    try:
        from mechplateau.measurements import Setting

        measurer = Measurer(Setting(task, config.model))
    except ImportError:  # an earlier checkout
        measurer = Measurer(task, config.model.n_layers, "final", torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, PRODUCT, PRODUCT)
    # An earlier checkout's tasks have neither batches nor objectives.
    draw = getattr(task, "batch", task.sample)
    minimized = [task.objective] if hasattr(task, "objective") else []

    def bare(*measured_on: Any) -> None:
        batch = draw(config.training.batch_size, generator)
        update(model, optimizer, batch, *minimized, config.training.clip_norm)
        if measured_on:
            model.eval()
            measurer.row(
                model,
                1,
                *(batch if number is None else draw(number, generator) for number in measured_on),
            )
            model.train()

    return {
        "product": lambda: left @ right,
        "bare": bare,
        "measured": lambda: bare(64),
        "paper's samples": lambda: bare(None, 64),
    }


def serve(works: Works) -> None:
    """Do what the lines of the standard input name, and answer each with what it took."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints goes elsewhere
    for line in sys.stdin:
        if line.strip() == "memory":
            answer = {"memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
        else:
            cpu, wall = time.process_time(), time.perf_counter()
            works[line.strip()]()
            answer = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def compare(other: Path, tasks: Sequence[str], threads: int, rounds: int) -> None:
    """Print a table: a step of each task, there and here."""
    print(f"{threads} thread(s), medians of {rounds} turns, milliseconds; {other} against {HERE.parents[1]}")
    print("| task | bare step | measured step | there / here | most memory (MiB) |\n|---|---|---|---|---|")
    for task in tasks:
        with Side("ours", threads, task, other) as there, Side("ours", threads, task) as here:
            works = [(side, work) for work in ("bare", "measured") for side in (there, here)]
            seconds = in_turns(works, rounds)
            bare, measured = (
                " → ".join(f"{1e3 * statistics.median(times):.1f}" for times in pair)
                for pair in (seconds[:2], seconds[2:])
            )
            ratios = (
                statistics.median(one / another for one, another in zip(*pair, strict=True))
                for pair in (seconds[:2], seconds[2:])
            )
            memory = " → ".join(f"{side.memory():.0f}" for side in (there, here))
        print(
            f"| {task} | {bare} | {measured} | {' and '.join(f'{r:.2f}×' for r in ratios)} | {memory} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, nargs="?", help="the folder of another checkout")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--task", help="one task only")
    parser.add_argument("--serve", choices=["authors", "ours"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        import torch

        torch.set_num_threads(arguments.threads)
        serve(authors_works() if arguments.serve == "authors" else our_works(arguments.task))
        return
    if arguments.other is None:
        parser.error("the folder of another checkout is missing")
    from mechplateau.tasks import task_names

    tasks = task_names() if arguments.task is None else [arguments.task]
    compare(arguments.other.resolve(), tasks, arguments.threads, arguments.rounds)


if __name__ == "__main__":
    main()
