"""One update: forward, next-token cross-entropy over the whole sequence, backward, clip, optimizer."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn


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
) -> Float[Tensor, ""]:
    """Train on one batch; returns its loss before the update, still on the device.

    With bfloat16 the forward pass runs under autocast; the loss, the weights and the optimizer stay float32.
    """
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        logits = model(tokens[:, :-1])
    loss = next_token_loss(logits.float(), tokens)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    if clip_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    optimizer.step()
    return loss.detach()
