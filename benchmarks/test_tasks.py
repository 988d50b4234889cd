"""Every task at the paper's size: what measuring adds to a step, and how fast sequences are made.

Nothing here is asserted: a busy machine is not a failure.
"""

from __future__ import annotations

import statistics
import time

import pytest
import torch
from side_by_side import TABLE, alternate

from mechplateau.config import RunConfig
from mechplateau.measurements import Setting
from mechplateau.models import build_model
from mechplateau.tasks import MovingWindowSum, SequenceTask, task_class, task_names
from mechplateau.training.measure import Measurer
from mechplateau.training.memory import freed_memory_kept
from mechplateau.training.optimizers import build_optimizer
from mechplateau.training.step import update

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", [n for n in task_names() if issubclass(task_class(n), SequenceTask)])
def test_measuring_at_every_step(benchmark, name):
    config = RunConfig.for_task(name)
    task = config.task
    model = build_model(config.model, vocab_size=task.vocab_size, n_ctx=task.n_ctx)
    optimizer = build_optimizer(model, config.training)
    measurer = Measurer(Setting(task, config.model))
    generator = torch.Generator().manual_seed(0)

    def train():
        batch = task.batch(config.training.batch_size, generator)
        update(model, optimizer, batch, task.objective, config.training.clip_norm)

    def measured():
        train()
        model.eval()
        measurer.row(model, 1, task.batch(64, generator))
        model.train()

    with freed_memory_kept():
        times = alternate(train, measured, rounds=11)
        ratio = TABLE.costs(f"{name}: step measured on 64", "step without measurements", times, 1.3)
        benchmark.extra_info["ratio"] = round(ratio, 2)
        benchmark.pedantic(measured, rounds=2, iterations=1)


def test_sampling_on_one_core(benchmark):
    """A million sequences a second, in batches of 4,096, is what is wanted."""
    task, generator = MovingWindowSum(), torch.Generator().manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds = []
        for _ in range(15):
            begin = time.perf_counter()
            task.sample(4096, generator)
            seconds.append(time.perf_counter() - begin)
        own = statistics.median(seconds)
        TABLE.faster("mws: 4,096 sequences on one core", "a million a second", (4096 / 1e6, own), 1)
        benchmark.pedantic(lambda: task.sample(4096, generator), rounds=5, iterations=1)
    finally:
        torch.set_num_threads(threads)
