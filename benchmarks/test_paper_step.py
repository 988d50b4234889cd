"""The paper's step, its parts, and measuring: against the baseline that works as the paper's code does.

Sizes are the paper's (width 256, batch 256). Both sides run alternately in this process, with torch's default
threads, and the table at the end gives the ratios. Nothing here is asserted: a busy machine is not a failure.
"""

from __future__ import annotations

import numpy as np
import paper_baseline as baseline
import pytest
import torch
from side_by_side import TABLE, alternate

from mechplateau import metrics
from mechplateau.config import RunConfig
from mechplateau.models import build_model, generate
from mechplateau.training.measure import Measurer
from mechplateau.training.memory import freed_memory_kept
from mechplateau.training.optimizers import build_optimizer
from mechplateau.training.step import update

SIZES = baseline.Sizes()
CPU = torch.device("cpu")


class PaperWay:
    """The baseline's step and what it needs."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = baseline.PlainGPT.of(SIZES)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=SIZES.learning_rate)
        self.rng = np.random.default_rng(0)
        self.history: list = []

    def whole_step(self, figure=None):
        return baseline.whole_step(self.model, self.optimizer, self.rng, SIZES, self.history, figure)


class OurWay:
    """What the training loop does at a step."""

    def __init__(self) -> None:
        self.config = RunConfig.for_task("mws")
        self.task = self.config.task
        self.model = build_model(self.config.model, vocab_size=self.task.vocab_size, n_ctx=self.task.n_ctx)
        self.optimizer = build_optimizer(self.model, self.config.training)
        self.measurer = Measurer(self.task, 1, "final", CPU)
        self.generator = torch.Generator().manual_seed(0)
        self.batch = self.sample(256)

    def sample(self, number):
        return self.task.sample(number, self.generator)

    def train(self):
        self.batch = self.sample(256)
        return update(self.model, self.optimizer, self.batch)

    def measure(self, paper=False):
        self.model.eval()
        row = (
            self.measurer.row(self.model, 1, self.batch, self.sample(64))
            if paper
            else self.measurer.row(self.model, 1, self.sample(64))
        )
        self.model.train()
        return row

    def whole_step(self, paper=False):
        self.train()
        return self.measure(paper)


@pytest.fixture(scope="module", autouse=True)
def kept_memory():
    """As in the training loop, and for both sides, since they share a process."""
    with freed_memory_kept():
        yield


@pytest.fixture(scope="module")
def paper_way():
    return PaperWay()


@pytest.fixture(scope="module")
def our_way():
    return OurWay()


def report(benchmark, ours, ratio):
    """Give pytest-benchmark's own table our side, with the ratio beside it."""
    benchmark.extra_info["ratio"] = round(ratio, 2)
    benchmark.pedantic(ours, rounds=3, iterations=1)


def test_whole_step(benchmark, paper_way, our_way):
    times = alternate(paper_way.whole_step, our_way.whole_step, rounds=3, inner=3)
    ratio = TABLE.faster("whole step, everything measured on 64", "paper's way, no figure", times, 6)
    report(benchmark, our_way.whole_step, ratio)


def test_whole_step_with_figure(benchmark, paper_way, our_way, tmp_path):
    figure = tmp_path / "figure.png"
    times = alternate(lambda: paper_way.whole_step(figure), our_way.whole_step, rounds=3, inner=3)
    ratio = TABLE.faster("whole step, everything measured on 64", "paper's way, with its figure", times, 7)
    report(benchmark, our_way.whole_step, ratio)


def test_whole_step_measured_on_the_papers_samples(benchmark, paper_way, our_way):
    times = alternate(paper_way.whole_step, lambda: our_way.whole_step(paper=True), rounds=3, inner=2)
    ratio = TABLE.faster("whole step, evaluation.samples: paper", "paper's way, no figure", times, 4)
    report(benchmark, lambda: our_way.whole_step(paper=True), ratio)


def test_bare_step_against_its_matrix_products(benchmark, our_way):
    """The products' time is 38.65 GFLOP at the peak of a 2048³ product, measured in turns with the step."""
    left, right = torch.randn(2048, 2048), torch.randn(2048, 2048)
    product_gflop = 2 * 2048**3 / 1e9
    step_gflop = sum(v for k, v in baseline.step_gflop(SIZES).items() if k == "blocks")
    product, step = alternate(lambda: left @ right, our_way.train, rounds=9)
    times = (product * step_gflop / product_gflop, step)
    ratio = TABLE.costs("step without measurements", "its matrix products at peak", times, 1.65)
    report(benchmark, our_way.train, ratio)


def test_measuring_at_every_step(benchmark, our_way):
    times = alternate(our_way.train, our_way.whole_step, rounds=9)
    ratio = TABLE.costs("step measured on 64", "step without measurements", times, 1.25)
    report(benchmark, our_way.whole_step, ratio)


def test_generation(benchmark, paper_way, our_way):
    prompts = our_way.sample(256)[:, : our_way.task.prompt_length]
    with torch.no_grad():
        ours = lambda: generate(our_way.model, prompts, 16)  # noqa: E731
        times = alternate(
            lambda: baseline.generate_reforward(paper_way.model, prompts, 16), ours, rounds=3, inner=3
        )
        ratio = TABLE.faster("generation of 16 tokens for 256 prompts", "full forward each token", times, 6)
        report(benchmark, ours, ratio)


@pytest.mark.parametrize(("what", "at_least"), [("full matrix", 8), ("mean", 15)])
def test_cosine(benchmark, what, at_least):
    import mechplateau_kernels as mk

    hidden = torch.randn(256, 16, 256, generator=torch.Generator().manual_seed(0))
    ours = {
        "full matrix": lambda: metrics.cosine_matrix(hidden),
        "mean": lambda: mk.mean_pairwise_cosine(hidden, exclude=(0,)),
    }[what]
    times = alternate(lambda: baseline.cosine_double_loop(hidden), ours, rounds=7, inner=10)
    ratio = TABLE.faster(f"COS of 256 × 16 hidden states, {what}", "Python double loop", times, at_least)
    report(benchmark, ours, ratio)


def test_data(benchmark, our_way):
    rng = np.random.default_rng(0)
    ours = lambda: our_way.sample(256)  # noqa: E731
    times = alternate(lambda: baseline.make_batch_rowwise(rng, 256), ours, rounds=9, inner=20)
    ratio = TABLE.faster("data, 256 sequences", "numpy row by row", times, 20)
    report(benchmark, ours, ratio)


def test_bfloat16(benchmark, our_way):
    """Autocast of the forward pass, against float32: whether it gains depends on the processor."""

    def step():
        update(our_way.model, our_way.optimizer, our_way.sample(256), precision="bfloat16")

    times = alternate(our_way.train, step, rounds=3)
    ratio = TABLE.faster("step in bfloat16 autocast", "step in float32", times, 1)
    report(benchmark, step, ratio)
