"""The training loop: one for every task, model and set-up.

After every update it measures, appends a row, and saves, as the configuration says (what is needed to resume, also by
the clock). It never plots, and measuring never changes what is trained.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

import mechplateau_kernels as mk
from mechplateau.config import RunConfig
from mechplateau.devices import TRAINABLE, device_named
from mechplateau.errors import UserError
from mechplateau.files import first_line, local_path
from mechplateau.interventions import Handle, Intervention, ProgressReward
from mechplateau.measurements import Setting
from mechplateau.measurements.inside import pictures
from mechplateau.models.kinds import build, kind_of
from mechplateau.models.versions import check_hooked_transformer
from mechplateau.models.weights import load_weights, parameters_of
from mechplateau.objectives import Batch
from mechplateau.progress import Bar, Progress, bars
from mechplateau.runs import Run, RunWriter, is_finished, load_run
from mechplateau.runs.checkpoints import flatten_state, unflatten_state
from mechplateau.runs.environment import describe_environment
from mechplateau.signs import is_solved
from mechplateau.tasks import SequenceTask
from mechplateau.training.graphed import GraphedMeasurement, GraphedUpdate, check_graph
from mechplateau.training.interrupt import RunInterrupted, interruptible
from mechplateau.training.measure import PAPER_FRESH, Measurer
from mechplateau.training.memory import check_memory, freed_memory_kept, too_little_explained
from mechplateau.training.optimizers import build_optimizer, learning_rate, set_learning_rate
from mechplateau.training.seeding import generator_for
from mechplateau.training.step import Reward, update

logger = logging.getLogger("mechplateau")

MOST_THREADS = 1024
SAVED_EVERY = 120.0
"""Seconds after which a run saves what it needs to resume, however far apart its checkpoints are."""

Row = dict[str, float | int | None]


class Listener(Protocol):
    """Called after every step; trackers and progress displays are listeners. It must not raise."""

    def on_step(self, step: int, row: Row | None) -> None:
        """`step` updates are done; `row` is what was measured there, if it was."""


class _Counting:
    """Counts updates into a bar, beginning where the run was saved."""

    def __init__(self, bar: Bar):
        self.bar = bar
        self.counted = 0

    def on_step(self, step: int, row: Row | None) -> None:
        self.bar.update(step - self.counted)
        self.counted = step


def train(
    config: RunConfig,
    *,
    runs_dir: str | Path = "runs",
    device: str = "cpu",
    threads: int | None = None,
    listeners: Sequence[Listener] = (),
    cuda_graph: bool = False,
    progress: Progress | str | None = "notebook",
) -> Run:
    """Train a run to its end, or resume it where it was saved; a finished run is returned as it is.

    On a CPU, a run is bitwise the same for a configuration and a number of threads, however often it was
    interrupted or killed.

    Args:
        config: what to run.
        runs_dir: where run folders lie; the folder's name is the configuration's.
        device: "cpu", "cuda", "cuda:1".
        threads: CPU threads; None: as many as the run used before, or torch's default for a new one.
        listeners: called after every step.
        cuda_graph: run the update and the measurements as a CUDA graph each (Adam, AdamW). The numbers are
            those of ordinary steps up to rounding.
        progress: makes a bar of updates, as tqdm does (`mechplateau.progress`); by default there is one in a notebook.

    Raises:
        RunInterrupted: the user pressed Ctrl-C, or the process got SIGTERM or SIGHUP; everything is saved. It is a
            KeyboardInterrupt, not an Exception.
        RunError: the folder cannot be written, another process works on it, it is of another configuration, or what
            lies in it contradicts itself (then nothing in it was changed); memory ran out.
        CheckpointError: a checkpoint in the folder of an unfinished run is damaged or not the run's own.
        UserError: the device is not there, or the model is larger than its memory.
    """
    folder = local_path(runs_dir)
    finished = is_finished(folder / config.run_name, config)
    # A finished run needs nothing that this machine might not have.
    torch_device = torch.device("cpu") if finished else check_request(config, device, threads, cuda_graph)
    with RunWriter(config, folder) as writer:
        if not writer.finished:
            number = threads if threads is not None else writer.recorded_threads()
            last = min(config.training.steps, config.training.stop_at or config.training.steps)
            with (
                closing(bars(progress)(total=last, desc=config.run_name)) as bar,
                torch_threads(number),
                freed_memory_kept(),
                too_little_explained(),
            ):
                _Trainer(config, writer, torch_device, cuda_graph).run([*listeners, _Counting(bar)])
        return load_run(writer.layout.root)


def check_threads(threads: int | None) -> None:
    """Raise UserError where torch cannot use so many."""
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise UserError(f"threads: expected 1 to {MOST_THREADS}, got {threads}")


def check_request(
    config: RunConfig, device: str, threads: int | None = None, cuda_graph: bool = False
) -> torch.device:
    """The device, after a check that everything `train` was called with is possible here; else a UserError."""
    check_hooked_transformer("training")
    torch_device = device_named(device, TRAINABLE)
    if isinstance(config.task, SequenceTask):
        config.task.labels_of(())
    check_threads(threads)
    kind = kind_of(config.model)
    if config.training.optimizer == "muon" and not any(
        map(kind.roles.matrix, kind.trained(config.model, config.task))
    ):
        raise UserError(
            f"training.optimizer: muon trains matrices of attention and MLP, and a model of kind {kind.name} has none "
            "in its roles; use adam, adamw or sgd"
        )
    if config.training.precision == "bfloat16" and not bfloat16_gains(torch_device):
        raise UserError(
            "training.precision: bfloat16 is only slower here: this processor has no instructions for it "
            "(AVX512-BF16, AMX); use float32"
        )
    try:
        kernels = mk.backend_report(torch_device)
    except ValueError as error:  # MECHPLATEAU_KERNELS holds no name of a backend
        raise UserError(str(error)) from None
    if kernels["requested"] == "triton" and kernels["why_not_triton"]:
        raise UserError(
            f"MECHPLATEAU_KERNELS=triton: Triton cannot run here ({kernels['why_not_triton']}); use auto or torch"
        )
    if cuda_graph:
        check_graph(torch_device, config)
    check_memory(config, torch_device)
    config.task.prepare()
    check_task(config, torch_device)
    _ = config.columns  # two measurements may have a column of one name
    return torch_device


def check_task(config: RunConfig, device: torch.device) -> None:
    """Raise UserError where a task of the user's own makes data that its model or its objective cannot take."""
    task = config.task
    if type(task).__module__.startswith("mechplateau."):
        return
    try:
        batch = task.batch(2, torch.Generator(device).manual_seed(0), device)
        model = build(config.model, task, device=device)
        with torch.no_grad():
            loss = task.objective.loss(model(batch.inputs), batch)
        if loss.numel() != 1:
            raise ValueError(f"the objective's loss is {list(loss.shape)}, expected one number")
    except UserError:
        raise
    except Exception as error:  # whatever the task's code, or the model on its data, raises
        raise UserError(
            f"task.name: {task.name} does not work with a batch of 2 ({type(error).__name__}: {first_line(error)}); "
            "check its _batch or _sample against its sizes, the model and the objective"
        ) from error


class _Trainer:
    """The state of one training session."""

    def __init__(self, config: RunConfig, writer: RunWriter, device: torch.device, cuda_graph: bool):
        self.config = config
        self.task = config.task
        self.objective = config.task.objective
        self.writer = writer
        self.device = device
        self.step = 0
        self.model = build(
            config.model,
            self.task,
            generator=kind_of(config.model).initial_generator(config.seed)
            or generator_for(config.seed, "init", 0, torch.device("cpu")),
            device=device,
        )
        self.optimizer = build_optimizer(self.model, config.training, capturable=cuda_graph)
        self.graph = (
            GraphedUpdate(self.model, self.optimizer, config.training, self.objective) if cuda_graph else None
        )
        self.resumed = writer.resume_step is not None
        if self.resumed:
            tensors, description = writer.resume_tensors()
            self.step = description["step"]
            load_weights(self.model, _part(tensors, "model."), str(writer.layout.resume(self.step)))
            groups = self.optimizer.state_dict()["param_groups"]
            state = unflatten_state(_part(tensors, "optimizer."))
            self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        self.measurer = Measurer(
            Setting(self.task, config.model, config.evaluation.locations, device),
            config.evaluation.measurements,
        )
        self.graphed_measurement = GraphedMeasurement(self.model, self.measurer) if cuda_graph else None
        self.cadence = writer.cadence
        self.progress = self.measurer.setting.targets
        self.attached: dict[Intervention, Handle] = {}
        self.saved_at = time.monotonic()
        self.solved: int | None = None
        self.diverged = any(row.get("loss") is None for row in writer.rows)
        for row in writer.rows:
            self._note_solved(row)

    def run(self, listeners: Sequence[Listener]) -> None:
        training = self.config.training
        self.writer.begin(self._environment())
        with interruptible() as wish, self._interventions():
            self._intervene()
            if not self.resumed or self.writer.lacks(self.step):
                self._after_step(listeners)
            while not self._stops():
                if wish.is_set():
                    self._save(keep=False)
                    self.writer.interrupt(self.step)
                    raise RunInterrupted(self.writer.layout.root, self.step)
                set_learning_rate(self.optimizer, learning_rate(training, self.step))
                self._update(self._training_batch(self.step + 1))
                self.step += 1
                self._intervene()
                self._after_step(listeners)
        stopped = not self.cadence.ends(self.step, self.solved)
        self.writer.finish(self.step, self._environment(), stopped)

    def _update(self, batch: Batch) -> None:
        if self.graph is not None:
            self.graph(batch)
        else:
            training = self.config.training
            update(
                self.model,
                self.optimizer,
                batch,
                self.objective,
                training.clip_norm,
                training.precision,
                self._reward(batch),
            )

    def _reward(self, batch: Batch) -> Reward | None:
        """The weight on attention progress of the coming update, if there is any."""
        rewards = [one for one in self.attached if isinstance(one, ProgressReward)]
        weights = [weight for reward in rewards if (weight := reward.weight_at(self.step))]
        if not weights:
            return None
        return Reward(sum(weights), self.progress.of(batch))

    def _stops(self) -> bool:
        """Whether the last step is done, or the step at which a solved run may end or the run is to stop."""
        return self.cadence.stops(self.step, self.solved)

    def _note_solved(self, row: Mapping[str, Any]) -> None:
        accuracy = row.get("accuracy")
        if self.solved is None and is_solved(accuracy):
            self.solved = int(row["step"])

    def _note_divergence(self, row: Mapping[str, Any]) -> None:
        if row.get("loss") is None and not self.diverged:
            self.diverged = True
            logger.warning(
                "%s: the loss at step %d is not a finite number: training has diverged",
                self.writer.layout.root,
                self.step,
            )

    def _environment(self) -> dict[str, object]:
        return {**describe_environment(self.device), "cuda_graph": self.graph is not None}

    def _after_step(self, listeners: Sequence[Listener]) -> None:
        row = None
        if self.cadence.measures(self.step) and not self.writer.has_row(self.step):
            row = self._measure()
            self.writer.append(row)
            self._note_solved(row)
            self._note_divergence(row)
        if self.cadence.keeps(self.step) or self._stops():
            self._save(keep=True)
        elif time.monotonic() - self.saved_at >= SAVED_EVERY:
            self._save(keep=False)
        for listener in listeners:
            listener.on_step(self.step, row)

    def _measure(self) -> Row:
        with _evaluating(self.model):
            batches = [self._evaluation_batch()]
            if self.config.evaluation.samples == "paper":
                batches.insert(0, self._training_batch(max(self.step, 1)))
            if self.graphed_measurement is not None:
                return self.measurer.row_of(self.graphed_measurement(*batches), self.step)
            return self.measurer.row(self.model, self.step, *batches)

    def _save(self, keep: bool) -> None:
        maps = None
        if keep:
            with _evaluating(self.model):
                maps = pictures(self.model, self._evaluation_batch(), self.measurer.setting)
        state = flatten_state(self.optimizer.state_dict())
        self.writer.save(self.step, parameters_of(self.model), state, maps, keep)
        self.saved_at = time.monotonic()

    def _training_batch(self, step: int) -> Batch:
        generator = generator_for(self.config.seed, "train", step, self.device)
        return self.task.batch(self.config.training.batch_size, generator, self.device)

    def _evaluation_batch(self) -> Batch:
        samples = self.config.evaluation.samples
        generator = generator_for(self.config.seed, "eval", self.step, self.device)
        return self.task.evaluation_batch(
            PAPER_FRESH if samples == "paper" else samples, generator, self.device
        )

    def _intervene(self) -> None:
        """Attach and detach what begins and ends at the present step."""
        before = dict(self.attached)
        for intervention in list(self.attached):
            if not intervention.active(self.step):
                self.attached.pop(intervention).remove()
        for intervention in self.config.interventions:
            if intervention.active(self.step) and intervention not in self.attached:
                # A run that resumes at this very step did its `begin` before it was saved.
                if self.step == intervention.start and not (
                    self.resumed and self.step == self.writer.resume_step
                ):
                    intervention.begin(self.model, self.task)
                self.attached[intervention] = intervention.attach(self.model, self.task)
        if self.attached != before:
            for graph in (self.graph, self.graphed_measurement):
                if graph is not None:
                    graph.forget()

    @contextmanager
    def _interventions(self) -> Iterator[None]:
        """Interventions, which are detached at the end in any case."""
        try:
            yield
        finally:
            while self.attached:
                self.attached.popitem()[1].remove()


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@contextmanager
def torch_threads(number: int | None) -> Iterator[None]:
    """Torch's own threads, as many as before afterwards; None: left alone."""
    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def bfloat16_gains(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 natively."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            return torch.cuda.is_bf16_supported(including_emulation=False)
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _part(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


__all__ = ["Listener", "Row", "train"]
