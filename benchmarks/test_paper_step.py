"""The paper's step, its parts, and measuring: against the baseline that works as the paper's code does.

Sizes are the paper's (width 256, batch 256). Whole steps: each side runs in a process of its own, the authors' way as
shipped, ours under the training loop's own setting of memory; the processes take turns, on one thread (processor time)
and on two (wall time). Parts: both sides run alternately in this process, with torch's default threads. The table at
the end gives the ratios. Nothing here is asserted: a busy machine is not a failure.
"""

from __future__ import annotations

import numpy as np
import paper_baseline as baseline
import pytest
import torch
from side_by_side import TABLE, alternate, middle_turn
from sides import PRODUCT_GFLOP, Side, in_turns

from mechplateau import metrics
from mechplateau.config import RunConfig
from mechplateau.models import build_model, generate
from mechplateau.training.memory import freed_memory_kept
from mechplateau.training.optimizers import build_optimizer
from mechplateau.training.step import update

SIZES = baseline.Sizes()


@pytest.mark.parametrize("threads", [1, 2])
def test_whole_steps(benchmark, threads):
    """The step's limit is its matrix products at the speed of one large product, timed in the same turns.

    Both counts of the products are told: of every row of the batch, and with the first layer's queries, keys and
    values computed once for each token and position, as the step does. What is wanted is held to the first.
    """
    with Side("authors", threads) as authors, Side("ours", threads) as ours:
        works = {
            **{work: (ours, work) for work in ("product", "bare", "measured", "paper's samples")},
            "authors": (authors, "step"),
            "with figure": (authors, "with figure"),
        }
        seconds = dict(zip(works, in_turns(list(works.values()), rounds=7), strict=True))
        benchmark.pedantic(ours.seconds, ("measured",), rounds=3, iterations=1)
    on = f"{threads} thread{'s' * (threads > 1)}"

    def pair(reference, own, factor=1.0):
        return middle_turn([factor * time for time in seconds[reference]], seconds[own])

    def faster(name, reference, own, at_least):
        return TABLE.faster(f"{name}, {on}", reference_names[reference], pair(reference, own), at_least)

    reference_names = {"authors": "authors' way, no figure", "with figure": "authors' way, with its figure"}
    ratio = faster("whole step, everything measured on 64", "authors", "measured", 10)
    faster("whole step, everything measured on 64", "with figure", "measured", 10)
    faster("whole step, evaluation.samples: paper", "authors", "paper's samples", 7)
    gflop, with_table = baseline.step_gflop(SIZES)["blocks"], baseline.gflop_with_table(SIZES)
    for name, own, at_most in (("bare step", "bare", 1.03), ("step measured on 64", "measured", 1.2)):
        for count, wanted in ((gflop, at_most), (with_table, None)):
            times = pair("product", own, count / PRODUCT_GFLOP)
            what = "of all rows" if count == gflop else "with the first layer's table"
            TABLE.costs(f"{name}, {on}", f"{count:.1f} GFLOP {what}, at peak", times, wanted)
    TABLE.costs(f"step measured on 64, {on}", "bare step", pair("bare", "measured"), 1.15)
    benchmark.extra_info["ratio"] = round(ratio, 2)


class OurWay:
    """What the training loop does at a step."""

    def __init__(self) -> None:
        self.config = RunConfig.for_task("mws")
        self.task = self.config.task
        self.model = build_model(self.config.model, vocab_size=self.task.vocab_size, n_ctx=self.task.n_ctx)
        self.optimizer = build_optimizer(self.model, self.config.training)
        self.generator = torch.Generator().manual_seed(0)

    def sample(self, number):
        return self.task.sample(number, self.generator)

    def batch(self, number):
        return self.task.batch(number, self.generator)

    def train(self):
        return update(self.model, self.optimizer, self.batch(256), self.task.objective)


@pytest.fixture(scope="module", autouse=True)
def kept_memory():
    """As in the training loop, and for both sides, where they share this process."""
    with freed_memory_kept():
        yield


@pytest.fixture(scope="module")
def our_way():
    return OurWay()


def report(benchmark, ours, ratio):
    """Give pytest-benchmark's own table our side, with the ratio beside it."""
    benchmark.extra_info["ratio"] = round(ratio, 2)
    benchmark.pedantic(ours, rounds=3, iterations=1)


def test_generation(benchmark, our_way):
    torch.manual_seed(0)
    authors_model = baseline.PlainGPT.of(SIZES)
    prompts = our_way.sample(256)[:, : our_way.task.prompt_length]
    with torch.no_grad():
        ours = lambda: generate(our_way.model, prompts, 16)  # noqa: E731
        times = alternate(
            lambda: baseline.generate_reforward(authors_model, prompts, 16), ours, rounds=3, inner=3
        )
        ratio = TABLE.faster("generation of 16 tokens for 256 prompts", "full forward each token", times, 6)
        report(benchmark, ours, ratio)


@pytest.mark.parametrize("attention", ["linear", "softmax"])
@pytest.mark.parametrize("n_heads", [1, 4])
def test_long_generation(benchmark, attention, n_heads):
    """Of 256 tokens (T = 512) against 16 (T = 32), each for 64 prompts; the factor is that of their FLOPs.

    With softmax every new token reads all keys and values from memory, which takes longer than the FLOPs; the second
    row adds the time of reading as many bytes.
    """
    prompts, long_n = 64, 256

    def work(n):
        model_fields = {"n_heads": n_heads, "attention": attention}
        config = RunConfig.for_task("mws", task={"n": n}, model=model_fields)
        task = config.task
        model = build_model(config.model, vocab_size=task.vocab_size, n_ctx=task.n_ctx).eval()
        tokens = task.sample(prompts, torch.Generator().manual_seed(0))
        with torch.no_grad():
            seen = model.observe(tokens[:, :-1], at=())
        width = config.model.d_model
        flop = sum(24 * width**2 + 4 * width * position for position in range(n + 1, 2 * n))
        return torch.no_grad()(lambda: model.generate_on(seen, task.prompt_length, n)), flop

    (short, short_flop), (long, long_flop) = work(16), work(long_n)
    brief, lasting = alternate(short, long, rounds=3)
    scaled = brief * long_flop / short_flop
    name = f"generation at T = 512, {attention}, {n_heads} head{'s' * (n_heads > 1)}"
    at_most = 1.3 if attention == "linear" else None
    ratio = TABLE.costs(name, "that at T = 32, by FLOPs", (scaled, lasting), at_most)
    if attention == "softmax":
        kept = torch.randn(prompts * SIZES.d_model * long_n * 3 // 2)  # keys at a token in the middle

        def read():
            for _ in range(2 * (long_n - 1)):
                kept.sum()

        reading, _ = alternate(read, short, rounds=3)
        against = "that at T = 32, by FLOPs, and reading keys and values"
        TABLE.costs(name, against, (scaled + reading, lasting), 1.3)
    report(benchmark, long, ratio)


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
        batch, objective = our_way.batch(256), our_way.task.objective
        update(our_way.model, our_way.optimizer, batch, objective, precision="bfloat16")

    times = alternate(our_way.train, step, rounds=3)
    ratio = TABLE.faster("step in bfloat16 autocast", "step in float32", times, 1)
    report(benchmark, step, ratio)
