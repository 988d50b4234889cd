"""Optimizers and learning-rate schedules of the paper's set-ups."""

from __future__ import annotations

import math

import torch
from torch import nn

from mechplateau.config import TrainingConfig
from mechplateau.models.kinds import kind_of_module
from mechplateau.training.muon import MuonAndAdamW


def build_optimizer(
    model: nn.Module, config: TrainingConfig, *, capturable: bool = False
) -> torch.optim.Optimizer:
    """The optimizer of a configuration over the model's trainable parameters.

    With `capturable` (Adam and AdamW on a CUDA device), a CUDA graph can hold its step: learning rates are then
    tensors on the device, changed in place by `set_learning_rate`.

    AdamW decays the weights of linear layers only (as the model's kind names them, embeddings left out), or with
    `decay: all` everything; Adam's and SGD's decay is L2 on everything. Adam and AdamW run fused. Muon: see
    `mechplateau.training.muon`.
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    everything = [parameter for _, parameter in named]
    if config.optimizer == "sgd":
        return torch.optim.SGD(
            everything, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
        )
    if config.optimizer == "muon":
        return MuonAndAdamW(named, kind_of_module(model).roles, config)
    rate = torch.tensor(config.lr, device=everything[0].device) if capturable else config.lr
    if config.optimizer == "adam":
        return torch.optim.Adam(
            everything,
            lr=rate,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=True,
            capturable=capturable,
        )
    roles = kind_of_module(model).roles
    decayed = {name for name, _ in named if config.decay == "all" or roles.decayed(name)}
    groups = [
        {"params": [p for name, p in named if name in decayed], "weight_decay": config.weight_decay},
        {"params": [p for name, p in named if name not in decayed], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=rate, betas=config.betas, eps=config.eps, fused=True, capturable=capturable
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of every group (times the group's own `rate_ratio`), in place where it is a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate * group.get("rate_ratio", 1.0)


def learning_rate(config: TrainingConfig, step: int) -> float:
    """Learning rate of the update from `step` to `step + 1`.

    Warm-up is linear, lr · step / warmup_steps, so that the first update has rate 0; the cosine then goes from
    lr at warmup_steps to 0 at the last step: lr · (1 + cos(π · (step − w) / (steps − w))) / 2. For one_cycle see
    `_one_cycle`.
    """
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "one_cycle":
        return _one_cycle(config, step)
    if step < config.warmup_steps:
        return config.lr * step / config.warmup_steps
    if config.schedule == "warmup":
        return config.lr
    progress = (step - config.warmup_steps) / (config.steps - config.warmup_steps)
    return config.lr * (1 + math.cos(math.pi * progress)) / 2


def _one_cycle(config: TrainingConfig, step: int) -> float:
    """Linear from lr / div_factor to lr, which is reached at pct_start · steps − 1; then linear down to
    lr / (div_factor · final_div_factor) at the last update, steps − 1.

    Equal to torch's OneCycleLR with `anneal_strategy="linear"`. A rise of no length is at its end at once.
    """
    first = config.lr / config.div_factor
    top, last = config.pct_start * config.steps - 1, config.steps - 1
    if step <= top:
        return first + (config.lr - first) * (step / top if top > 0 else 1.0)
    fall = (step - top) / (last - top) if last > top else 1.0
    return config.lr + (first / config.final_div_factor - config.lr) * fall
