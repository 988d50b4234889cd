"""The whole step of the experiment on a GPU: as the paper's code takes it, and ours, eager and as one graph.

On the baseline's plain-torch model, so that torch, triton and numpy are enough; and as the training loop of
mechplateau takes it, on a HookedTransformer, where that can be imported.
"""

from __future__ import annotations

import copy
import io
import statistics
import time
from collections.abc import Callable
from typing import Any

import fused_step
import numpy as np
import paper_baseline as baseline
import torch
from gpu_report import Section
from torch import Tensor

import mechplateau_kernels as mk

SIZES = baseline.Sizes()


def _model(sizes: baseline.Sizes, device: str) -> baseline.PlainGPT:
    torch.manual_seed(0)
    return baseline.PlainGPT.of(sizes).to(device)


def _milliseconds(step: Callable[[], object], rounds: int, warmup: int) -> float:
    """Median wall time; each step ends with its numbers on the host, so it includes the device's work."""
    for _ in range(warmup):
        step()
    torch.cuda.synchronize()
    samples = []
    for _ in range(rounds):
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        samples.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(samples)


def _numbers(loss: Tensor, row: dict[str, Tensor]) -> list[float]:
    """Every number of the row on the host, in one copy."""
    return torch.cat([x.flatten().float() for x in (loss, *row.values())]).tolist()


def times(
    section: Section, paper: dict[str, float], device: str = "cuda", sizes: baseline.Sizes = SIZES
) -> None:
    """Milliseconds of a step with all measurements, host copy included, at each of two amounts of measuring.

    The time of the paper's way goes into `paper` as well, for other models to be compared with.
    """
    rng = np.random.default_rng(0)
    model = _model(sizes, device)
    optimizer = torch.optim.Adam(model.parameters(), lr=sizes.learning_rate)
    history: list = []
    paper["ms"] = _milliseconds(
        lambda: baseline.whole_step(model, optimizer, rng, sizes, history), rounds=10, warmup=3
    )
    both, fresh = f"{sizes.batch} + {sizes.test_samples}", str(sizes.test_samples)
    section.rows.append({
        "model": "plain torch", "step": "the paper's way, eager, no figure", "measured on": both, "ms": paper["ms"],
    })  # fmt: skip
    section.notes.append("The plain model is that of benchmarks/paper_baseline.py. float32, nothing in tf32.")

    for name, measured in ((both, True), (fresh, False)):
        step = fused_step.Step(_model(sizes, device), sizes)

        def work(
            step: fused_step.Step = step, paper_samples: bool = measured
        ) -> tuple[Tensor, dict[str, Tensor]]:
            train = fused_step.sample(sizes, sizes.batch, device)
            test = fused_step.sample(sizes, sizes.test_samples, device)
            loss, row = step.whole(train, train if paper_samples else test)
            if paper_samples:
                row = {**row, "test_accuracy_out": step.generation_accuracy(test)}
            return loss, row

        eager = _milliseconds(lambda work=work: _numbers(*work()), rounds=20, warmup=3)
        # The one argument only tells Captured that this is work for the GPU.
        captured = mk.Captured(lambda _unused, work=work: work())
        unused = torch.zeros((), device=device)
        graph = _milliseconds(
            lambda captured=captured, unused=unused: _numbers(*captured(unused)), rounds=100, warmup=6
        )
        for kind, ms in (("ours, eager", eager), ("ours, one CUDA graph", graph)):
            section.rows.append({
                "model": "plain torch", "step": kind, "measured on": name, "ms": ms, "paper's / this": paper["ms"] / ms,
            })  # fmt: skip


def times_on_hooked(section: Section, paper: dict[str, float], device: str = "cuda") -> None:
    """As `times`, for what mechplateau's training loop does: update, and all measurements on fresh samples."""
    try:
        from mechplateau.config import RunConfig
        from mechplateau.measurements import Setting
        from mechplateau.models import build_model
        from mechplateau.training.graphed import GraphedMeasurement, GraphedUpdate
        from mechplateau.training.measure import Measurer
        from mechplateau.training.optimizers import build_optimizer
        from mechplateau.training.step import update
    except Exception as error:  # whatever keeps it from being imported, the rest of the report stands
        section.notes.append(
            f"Left out, mechplateau cannot be imported here: {type(error).__name__}: {error}"
        )
        return
    config = RunConfig.for_task("mws")
    task, torch_device = config.task, torch.device(device)
    measurer = Measurer(Setting(task, config.model, "final", torch_device))
    generator = torch.Generator(torch_device).manual_seed(0)

    def new_model() -> Any:
        return build_model(
            config.model, vocab_size=task.vocab_size, n_ctx=task.n_ctx,
            generator=torch.Generator().manual_seed(0), device=torch_device,
        )  # fmt: skip

    def training(graph: bool, measured: bool) -> Callable[[], object]:
        model = new_model()
        optimizer = build_optimizer(model, config.training, capturable=graph and torch_device.type == "cuda")
        captured = GraphedUpdate(model, optimizer, config.training, task.objective) if graph else None
        measure = (
            GraphedMeasurement(model, measurer) if measured else lambda batch: measurer.numbers(model, batch)
        )

        def step() -> object:
            batch = task.batch(config.training.batch_size, generator, torch_device)
            if captured is None:
                update(model, optimizer, batch, task.objective)
            else:
                captured(batch)
            model.eval()
            row = measurer.row_of(measure(task.batch(64, generator, torch_device)), 1)
            model.train()
            return row

        return step

    for kind, graph, measured in (
        ("ours, eager", False, False),
        ("ours, update as one CUDA graph", True, False),
        ("ours, update and measurement as CUDA graphs", True, True),
    ):
        ms = _milliseconds(training(graph, measured), rounds=20, warmup=6)
        row = {"model": "HookedTransformer", "step": kind, "measured on": "64", "ms": ms}
        # The paper's way was timed on the plain model, and is missing where that section failed.
        section.rows.append({**row, "paper's / this": paper["ms"] / ms if "ms" in paper else None})

    for where in ("final", "all"):
        model = new_model().eval()
        measurer = Measurer(Setting(task, config.model, where, torch_device))
        graphed = GraphedMeasurement(model, measurer)
        gaps = []
        for _ in range(8):  # the first calls are ordinary ones, the rest replays
            batch = task.batch(64, generator, torch_device)
            gap = (graphed(batch) - measurer.numbers(model, batch)).abs()
            gaps.append(gap.nan_to_num(torch.inf).max().item())
        section.rows.append({
            "model": "HookedTransformer", "step": f"measurement as a CUDA graph against ordinary calls, {where}",
            "largest difference": max(gaps), "ok": max(gaps) <= 1e-5,
        })  # fmt: skip


def trajectory(
    section: Section, device: str = "cuda", sizes: baseline.Sizes = SIZES, steps: int = 50
) -> None:
    """Graph and eager training agree over Adam steps with a rate change half-way and a save and load later on."""
    change, save = steps // 2, 3 * steps // 5
    batches = [
        baseline.make_batch_rowwise(np.random.default_rng(i), sizes.batch, sizes.n, sizes.k).to(device)
        for i in range(steps)
    ]

    def train(graph: bool) -> tuple[list[float], list[Tensor]]:
        step = fused_step.Step(_model(sizes, device), sizes, lr=1e-3)
        update: Callable[[Tensor], Tensor] = mk.Captured(step.update) if graph else step.update
        losses = []
        for i, batch in enumerate(batches):
            if i == change:
                step.learning_rate.fill_(3e-4)
                if device == "cpu":
                    step.optimizer.param_groups[0]["lr"] = 3e-4
            if i == save:
                step = _saved_and_loaded(step, sizes, device)
                update = mk.Captured(step.update) if graph else step.update
            losses.append(update(batch).clone())
        return [x.item() for x in losses], [p.detach() for p in step.model.parameters()]

    eager, graph = train(False), train(True)
    loss_gap = max(abs(x - y) for x, y in zip(eager[0], graph[0], strict=True))
    weight_gap = max((x - y).abs().max().item() for x, y in zip(eager[1], graph[1], strict=True))
    section.rows.append({
        "what": f"{steps} Adam steps, rate change at {change}, save and load at {save}",
        "largest loss difference": loss_gap, "largest weight difference": weight_gap,
        "first loss": eager[0][0], "last loss": eager[0][-1],
        "ok": loss_gap <= 1e-5 and weight_gap <= 1e-5 and eager[0][-1] < eager[0][0],
    })  # fmt: skip


def _saved_and_loaded(step: fused_step.Step, sizes: baseline.Sizes, device: str) -> fused_step.Step:
    """A new model and optimizer with the saved state, as a resumed run has them."""
    file = io.BytesIO()
    torch.save({"model": step.model.state_dict(), "optimizer": step.optimizer.state_dict()}, file)
    file.seek(0)
    state = torch.load(file, weights_only=True, map_location=device)
    model = copy.deepcopy(step.model)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    model.load_state_dict(state["model"])
    resumed = fused_step.Step(model, sizes, backend=step.backend)
    resumed.optimizer.load_state_dict(state["optimizer"])
    resumed.learning_rate.copy_(step.learning_rate)
    if device != "cpu":
        # The loaded group holds a copy of the rate; the one that is changed in place must be the one used.
        resumed.optimizer.param_groups[0]["lr"] = resumed.learning_rate
    return resumed
