"""Regression in context and language models: the training step, what measuring adds, and a run from end to end.

The plain sides are what one writes in torch: linear layers, torch's LayerNorm and Adam, all tokens through all layers.
Nothing here is asserted: a busy machine is not a failure. Times are those of the processor, one thread.

A turn of the regression step is ten steps, one after the other as in training: after a turn of the other side, the
first finds its memory cold.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from side_by_side import TABLE, alternate
from torch import Tensor, nn

from mechplateau import RunConfig, train
from mechplateau.measurements import Setting
from mechplateau.models.kinds import build
from mechplateau.training.measure import Measurer
from mechplateau.training.memory import freed_memory_kept
from mechplateau.training.optimizers import build_optimizer
from mechplateau.training.step import update

CPU = torch.device("cpu")


class PlainBlock(nn.Module):
    """Pre-LayerNorm attention and MLP, added to twice the stream."""

    def __init__(self, fused: bool, width: int = 64, heads: int = 4):
        super().__init__()
        self.fused, self.heads = fused, heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.ln1(x)).chunk(3, -1)
        )
        if self.fused:
            z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            scores = (q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])).masked_fill(future, -torch.inf)
            z = scores.softmax(-1) @ v
        mid = x + self.out(z.transpose(1, 2).flatten(2))
        return x + mid + self.mlp(self.ln2(mid))


class PlainRegressor(nn.Module):
    def __init__(self, fused: bool):
        super().__init__()
        self.tokens, self.positions = nn.Linear(5, 64, bias=False), nn.Parameter(torch.randn(16, 64))
        self.blocks = nn.Sequential(PlainBlock(fused), PlainBlock(fused))
        self.ln, self.read = nn.LayerNorm(64), nn.Linear(64, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        stream = self.blocks(self.tokens(inputs) + self.positions)
        return self.read(self.ln(stream))[:, ::2, 0]


def stepper(model: nn.Module, config: RunConfig, optimizer: torch.optim.Optimizer):
    task, generator = config.task, torch.Generator().manual_seed(0)

    def step():
        batch = task.batch(config.training.batch_size, generator)
        update(model, optimizer, batch, task.objective, config.training.clip_norm)

    return step


def ten(step):
    def steps():
        for _ in range(10):
            step()

    return steps


@pytest.mark.parametrize("fused", [True, False], ids=["fused attention", "softmax of scores"])
def test_a_regression_step(benchmark, fused):
    config = RunConfig.for_task("in_context_regression", preset="lr-true")
    plain, ours = PlainRegressor(fused), build(config.model, config.task)
    reference = stepper(plain, config, torch.optim.Adam(plain.parameters(), lr=1e-3))
    own = stepper(ours, config, build_optimizer(ours, config.training))
    how = "fused attention" if fused else "softmax of scores"
    with freed_memory_kept():
        times = alternate(ten(reference), ten(own), rounds=15, clock=time.process_time)
        TABLE.faster("lr-true: ten steps", f"plain torch step, all tokens, {how}", times, 1.3)
        benchmark.pedantic(own, rounds=3, iterations=1)


def test_a_regression_step_beside_the_authors(monkeypatch):
    """Their model and update, on our batches; ICL_FOLDER is a checkout of timaeus-research/icl, branch `submission`."""
    folder = os.environ.get("ICL_FOLDER")
    if folder is None:
        pytest.skip("ICL_FOLDER: no checkout of the authors' code")
    monkeypatch.syspath_prepend(str(Path(folder) / "src"))
    from icl.regression.model import InContextRegressionTransformer

    config = RunConfig.for_task("in_context_regression", preset="lr-true")
    task, generator = config.task, torch.Generator().manual_seed(0)
    model = InContextRegressionTransformer(
        task_size=task.d, max_examples=task.n_pairs, embed_size=64, mlp_size=64, num_heads=4, num_layers=2
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def theirs():
        batch = task.batch(config.training.batch_size, generator)
        xs, ys = batch.x, batch.targets[..., None]
        loss = F.mse_loss(ys, model(xs, ys))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    ours = build(config.model, task)
    own = stepper(ours, config, build_optimizer(ours, config.training))
    with freed_memory_kept():
        times = alternate(ten(theirs), ten(own), rounds=15, clock=time.process_time)
    TABLE.costs("lr-true: ten steps", "the authors' own step (icl)", times)


@pytest.mark.parametrize(
    ("task", "preset", "every"),
    # Updates for each measured row, as the presets have it on the whole (lr-true: until index 12,221).
    [("in_context_regression", "lr-true", 160), ("text", "lm-bigram", 40), ("text", "lm-induction", 34)],
)
def test_what_measuring_adds(benchmark, task, preset, every):
    config = RunConfig.for_task(task, preset=preset)
    model = build(config.model, config.task)
    step = stepper(model, config, build_optimizer(model, config.training))
    measurer = Measurer(Setting(config.task, config.model))

    def updates():
        for _ in range(every):
            step()

    def measured():
        updates()
        measurer.row(model, 1, config.task.evaluation_batch(config.evaluation.samples))

    with freed_memory_kept():
        times = alternate(updates, measured, rounds=5, clock=time.process_time)
        TABLE.costs(f"{preset}: {every} steps, measured", f"{every} steps", times, 1.25)
        benchmark.pedantic(step, rounds=3, iterations=1)


def test_a_language_run_from_end_to_end(benchmark, tmp_path):
    """The preset itself, all of its steps, rows and checkpoints; once, since it takes a minute."""
    whole = RunConfig.for_task("text", preset="lm-induction")
    whole.task.prepare()

    def plain(steps: int):
        model = build(whole.model, whole.task)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.005, weight_decay=0.05)
        generator = torch.Generator().manual_seed(0)
        for _ in range(steps):
            batch = whole.task.batch(whole.training.batch_size, generator)
            loss = whole.task.objective.loss(model(batch.inputs), batch)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

    def ours(steps: int):
        train(whole.with_(training={"steps": steps}), runs_dir=tmp_path / f"{steps}", threads=1)

    for side in (plain, ours):
        side(20)
    moments = [time.process_time()]
    for side in (plain, ours):
        side(whole.training.steps)
        moments.append(time.process_time())
    times = (moments[1] - moments[0], moments[2] - moments[1])
    TABLE.costs("lm-induction: a run, measured and saved", "its plain training loop", times, 1.5)
    benchmark.pedantic(lambda: None, rounds=1, iterations=1)
