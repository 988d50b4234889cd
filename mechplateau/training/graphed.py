"""The update and the measurements as CUDA graphs: a few launches a step instead of hundreds.

Off unless requested. A graph repeats exactly the kernels it was captured with, so it is captured anew when an
intervention comes or goes, and not at all while a hook of the user's is on the model: hooks are Python, which a
graph would silently leave out. Data are made outside: every step has its own seed, which a graph would
freeze.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

import mechplateau_kernels as mk
from mechplateau.config import RunConfig, TrainingConfig
from mechplateau.errors import UserError
from mechplateau.interventions import ProgressReward
from mechplateau.objectives import Batch, Objective
from mechplateau.training.measure import Measurer
from mechplateau.training.step import update

logger = logging.getLogger("mechplateau")


class GraphedUpdate:
    """`update` on one model and optimizer, replayed as a CUDA graph where that is safe.

    Args:
        model: on a CUDA device.
        optimizer: built with `capturable=True`.
        config: clipping and precision.
        objective: what is minimized.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        config: TrainingConfig,
        objective: Objective,
    ):
        self._model = model
        self._optimizer = optimizer
        self._config = config
        self._objective = objective
        self._noticed = False
        self.forget()

    def forget(self) -> None:
        """Capture anew at the next calls: what the model computes has changed."""
        self._kind: Batch | None = None
        self._captured: mk.Captured[Tensor] = mk.Captured(self._on_tensors)

    def __call__(self, batch: Batch) -> Float[Tensor, ""]:
        """Train on one batch; returns its loss before the update, still on the device."""
        if has_hooks(self._model):
            if not self._noticed:
                logger.warning(
                    "the model carries hooks, which a CUDA graph would leave out: steps run without one"
                )
                self._noticed = True
            self.forget()
            return self._eager(batch)
        self._kind = batch
        return self._captured(*batch.tensors())

    def _on_tensors(self, *tensors: Tensor) -> Tensor:
        return self._eager(_of(self._kind, tensors))

    def _eager(self, batch: Batch) -> Tensor:
        config = self._config
        return update(
            self._model, self._optimizer, batch, self._objective, config.clip_norm, config.precision
        )


class GraphedMeasurement:
    """`Measurer.numbers` on one model, replayed as a CUDA graph where that is safe.

    Args:
        model: on a CUDA device.
        measurer: of the task; if Ω differs between sequences, ordinary calls are made.
    """

    def __init__(self, model: nn.Module, measurer: Measurer):
        self._model = model
        self._measurer = measurer
        self.forget()

    def forget(self) -> None:
        """Capture anew at the next calls: what the model computes has changed."""
        self._kinds: tuple[Batch, ...] = ()
        self._captured: mk.Captured[Tensor] = mk.Captured(self._on_tensors)

    def __call__(self, *batches: Batch) -> Float[Tensor, " numbers"]:
        """The numbers, still on the device."""
        if has_hooks(self._model) or not self._measurer.fixed_shapes:
            self.forget()
            return self._eager(*batches)
        self._kinds = batches
        return self._captured(*(tensor for batch in batches for tensor in batch.tensors()))

    def _on_tensors(self, *tensors: Tensor) -> Tensor:
        rest = list(tensors)
        batches = []
        for kind in self._kinds:
            own = len(kind.tensors())
            batches.append(_of(kind, rest[:own]))
            rest = rest[own:]
        return self._eager(*batches)

    def _eager(self, *batches: Batch) -> Tensor:
        return self._measurer.numbers(self._model, *batches)


def _of(kind: Batch | None, tensors: Sequence[Tensor]) -> Batch:
    """A batch like the last one, in the graph's own memory."""
    assert kind is not None
    return kind.of(tensors)


def check_graph(device: torch.device, config: RunConfig) -> None:
    """Raise UserError where a CUDA graph cannot hold the update."""
    if device.type != "cuda":
        raise UserError(
            f"--cuda-graph: needs a CUDA device, got {device}; leave it out, or give --device cuda"
        )
    optimizer = config.training.optimizer
    if optimizer not in ("adam", "adamw"):
        raise UserError(f"--cuda-graph: works with adam and adamw, got {optimizer}; leave it out")
    if any(isinstance(intervention, ProgressReward) for intervention in config.interventions):
        raise UserError("--cuda-graph: a progress_reward changes its weight from step to step; leave one out")


def has_hooks(model: nn.Module) -> bool:
    """Whether any module of the model carries a hook, TransformerLens's or PyTorch's own."""
    return any(
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks
        for m in model.modules()
    )
