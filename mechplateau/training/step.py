"""One update: forward, next-token cross-entropy over the whole sequence, backward, clip, optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from mechplateau.models.records import Trainable
from mechplateau.training.targets import BatchTargets


@dataclass(frozen=True)
class Reward:
    """Attention progress as a training signal: weight · its mean over targets and layers is taken off the loss."""

    weight: float
    targets: BatchTargets


def next_token_loss(
    logits: Float[Tensor, "batch pos vocab"], tokens: Int[Tensor, "batch seq"]
) -> Float[Tensor, ""]:
    """Mean cross-entropy in nats over all positions, the prompt's too; `pos` is `seq − 1`.

    The prompt is random, so this never reaches 0.
    """
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def update(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    tokens: Int[Tensor, "batch seq"],
    clip_norm: float | None = None,
    precision: Literal["float32", "bfloat16"] = "float32",
    reward: Reward | None = None,
) -> Float[Tensor, ""]:
    """Train on one batch; returns its loss before the update (without any reward), still on the device.

    With bfloat16 the forward pass runs under autocast; the loss, the weights and the optimizer stay float32.
    """
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        if reward is None:
            logits, rewarded = model(tokens[:, :-1]), None
        else:
            seen = cast(Trainable, model).observe(tokens[:, :-1], metric_sets=reward.targets.sets, at=())
            logits, rewarded = seen.logits, reward.weight * reward.targets.mean_progress(seen)
    loss = next_token_loss(logits.float(), tokens)
    optimizer.zero_grad(set_to_none=True)
    (loss if rewarded is None else loss - rewarded).backward()
    if clip_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    optimizer.step()
    return loss.detach()
