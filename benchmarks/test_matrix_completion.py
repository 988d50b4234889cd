"""Matrix completion: a step against plain torch, what measuring costs, nuclear norm against cvxpy, the paper's size.

Sizes of the step are those of the preset small. Both sides of a pair take turns in this process, on one thread,
in processor time, under the training loop's own setting of memory. Nothing here is asserted: a busy machine is no
failure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import matrix_baseline as baseline
import pytest
import torch
from side_by_side import TABLE, middle_turn

from mechplateau.config import RunConfig
from mechplateau.measurements import Setting
from mechplateau.metrics.nuclear_norm import complete
from mechplateau.models.kinds import build
from mechplateau.training.arithmetic import tflop_of_a_step
from mechplateau.training.measure import Measurer
from mechplateau.training.memory import freed_memory_kept
from mechplateau.training.optimizers import build_optimizer
from mechplateau.training.step import update

SIZES = baseline.Sizes()
CONFIG = RunConfig.for_task("matrix_completion", preset="small")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with freed_memory_kept():
        yield
    torch.set_num_threads(threads)


class Ours:
    """What the training loop does at a step."""

    def __init__(self, config: RunConfig = CONFIG):
        self.config, self.task = config, config.task
        self.model = build(config.model, config.task)
        self.optimizer = build_optimizer(self.model, config.training)
        self.generator = torch.Generator().manual_seed(0)
        self.measurer = Measurer(Setting(config.task, config.model))

    def batch(self):
        return self.task.batch(self.config.training.batch_size, self.generator)

    def step(self):
        return update(self.model, self.optimizer, self.batch(), self.task.objective)

    def measure(self, n: int = 64):
        return self.measurer.row(self.model, 1, self.task.batch(n, self.generator))


def turns(
    reference: Callable[[], object], ours: Callable[[], object], *, rounds: int = 15, inner: int = 20
) -> tuple[float, float]:
    """Processor seconds of one call of each, in the turn of which their ratio is the median."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 1):
        for work, times in zip((reference, ours), seconds, strict=True):
            begin = time.process_time()
            for _ in range(inner):
                work()
            if turn:
                times.append((time.process_time() - begin) / inner)
    return middle_turn(*seconds)


def test_step(benchmark):
    ours, data = Ours(), Ours()
    plain = baseline.PlainEncoder(SIZES)
    fused = torch.optim.Adam(plain.parameters(), lr=SIZES.learning_rate, fused=True)

    def plain_step():
        batch = data.batch()
        baseline.plain_step(plain, fused, batch.inputs, batch.targets)

    ratio = TABLE.costs(
        "matrix completion: step", "plain torch, fused Adam", turns(plain_step, ours.step), 1.05
    )
    pairs = baseline.products(SIZES)
    times = turns(lambda: baseline.all_products(pairs), ours.step)
    TABLE.costs("matrix completion: step", "its matrix products, at their sizes", times)
    benchmark.extra_info["ratio"] = round(ratio, 2)
    benchmark.pedantic(ours.step, rounds=5, iterations=1)


def test_step_as_the_authors_do(benchmark):
    """Their cadence on both sides: losses of the batch and of 64 fresh matrices, at every step."""
    ours, data = Ours(), Ours()
    theirs = baseline.PlainEncoder(SIZES, explicit=True)
    optimizer = torch.optim.Adam(theirs.parameters(), lr=SIZES.learning_rate)

    def their_step():
        batch, fresh = data.batch(), data.batch()
        baseline.authors_step(theirs, optimizer, batch.inputs, batch.targets, (fresh.inputs, fresh.targets))

    def our_step():
        ours.step()
        ours.measure()

    times = turns(their_step, our_step, rounds=7)
    ratio = TABLE.costs(
        "matrix completion: step, all measured on 64", "the authors' way, three losses", times
    )
    benchmark.extra_info["ratio"] = round(ratio, 2)
    benchmark.pedantic(our_step, rounds=5, iterations=1)


@pytest.mark.parametrize("n", [64, 256])
def test_measuring_at_the_presets_cadence(benchmark, n):
    ours, bare = Ours(), Ours()
    every = CONFIG.evaluation.every

    def steps(side: Ours):
        for _ in range(every):
            side.step()

    def measured():
        steps(ours)
        ours.measure(n)

    times = turns(lambda: steps(bare), measured, rounds=7, inner=1)
    name = f"matrix completion: {every} steps and one measurement of {n}"
    ratio = TABLE.costs(name, f"{every} steps", times, 1.25)
    benchmark.extra_info["ratio"] = round(ratio, 2)
    benchmark.pedantic(ours.measure, (n,), rounds=5, iterations=1)


def test_nuclear_norm(benchmark):
    """256 matrices at once against cvxpy one by one, of which 16 are timed; equal to 1e-3 before it counts."""
    cvxpy = pytest.importorskip("cvxpy")
    batch = RunConfig.for_task("matrix_completion").task.batch(256, seed=0)
    x, seen = batch.targets.view(-1, 7, 7), batch.observed.view(-1, 7, 7)

    def one(index: int):
        z, mask = cvxpy.Variable((7, 7)), seen[index].double().numpy()
        equal = cvxpy.multiply(mask, z) == mask * x[index].double().numpy()
        cvxpy.Problem(cvxpy.Minimize(cvxpy.normNuc(z)), [equal]).solve(solver=cvxpy.CLARABEL)
        return torch.from_numpy(z.value)

    ours, _ = complete(x, seen)
    assert max(float((one(i) - ours[i]).abs().max()) for i in range(16)) < 1e-3
    one_by_one, together = turns(
        lambda: [one(i) for i in range(16)], lambda: complete(x, seen), rounds=3, inner=1
    )
    times = (16 * one_by_one, together)  # 16 times 16 are 256
    ratio = TABLE.faster("nuclear norm of 256 7 × 7 matrices", "cvxpy, one by one", times, 1)
    benchmark.extra_info["ratio"] = round(ratio, 2)
    benchmark.pedantic(lambda: complete(x, seen), rounds=2, iterations=1)


def test_one_step_of_the_papers_size(benchmark):
    """A smoke step at batch 8; its rate, and what a whole step of the paper would take at it."""
    config = RunConfig.for_task("matrix_completion", training={"batch_size": 8})
    ours = Ours(config)
    benchmark.pedantic(ours.step, rounds=1, iterations=1)
    begin = time.process_time()
    ours.step()
    seconds = time.process_time() - begin
    whole = tflop_of_a_step(RunConfig.for_task("matrix_completion"))
    rate = tflop_of_a_step(config) / seconds
    TABLE.notes.append(
        f"The paper's size takes {whole:.3g} TFLOP a step of 256 matrices. A step of 8 ran at {rate * 1000:.0f} "
        f"GFLOP/s on one thread ({seconds:.2g} s); at that rate a step of 256 takes {whole / rate:.0f} s."
    )
