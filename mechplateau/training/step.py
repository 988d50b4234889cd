"""One update: forward, the objective's loss over the batch, backward, clip, optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mechplateau.measurements.targets import BatchTargets
from mechplateau.models.records import Trainable
from mechplateau.objectives import Batch, Objective


@dataclass(frozen=True)
class Reward:
    """Attention progress as a training signal: weight · its mean over targets and layers is taken off the loss."""

    weight: float
    targets: BatchTargets


def update(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    objective: Objective,
    clip_norm: float | None = None,
    precision: Literal["float32", "bfloat16"] = "float32",
    reward: Reward | None = None,
) -> Float[Tensor, ""]:
    """Train on one batch; returns its loss before the update (without any reward), still on the device.

    With bfloat16 the forward pass runs under autocast; the loss, the weights and the optimizer stay float32.
    """
    with torch.autocast(batch.inputs.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        if reward is None:
            outputs, rewarded = model(batch.inputs), None
        else:
            seen = cast(Trainable, model).observe(batch.inputs, metric_sets=reward.targets.sets, at=())
            outputs, rewarded = seen.outputs, reward.weight * reward.targets.mean_progress(seen)
    loss = objective.loss(outputs.float(), batch)
    optimizer.zero_grad(set_to_none=True)
    (loss if rewarded is None else loss - rewarded).backward()
    if clip_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    optimizer.step()
    return loss.detach()
