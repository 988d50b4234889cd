"""The table that all ablations return: loss and accuracy at each position, without and with the edit."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from mechplateau.circuits.scoring import Scores, standard_error
from mechplateau.errors import UserError
from mechplateau.schema import whole_number

METHODS = ("zero", "mean", "resample")


def effect_table(labels: Mapping[str, object], plain: Scores, edited: Scores) -> pd.DataFrame:
    """One line a position: the labels, position, loss, loss_ablated, accuracy, accuracy_ablated, and of the two changes
    (ablated minus plain) the standard errors over sequences, paired: loss_se, accuracy_se; n: how many sequences."""
    errors = standard_error(edited.each - plain.each, axis=1)
    columns = {
        **{name: [value] * len(plain.rows) for name, value in labels.items()},
        "position": list(plain.rows),
        "loss": plain.loss,
        "loss_ablated": edited.loss,
        "accuracy": plain.accuracy,
        "accuracy_ablated": edited.accuracy,
        "loss_se": errors[0],
        "accuracy_se": errors[1],
        "n": plain.each.shape[1],
    }
    return pd.DataFrame(columns)


def ablation(method: str, seed: int, inputs: Int[Tensor, "batch pos"]) -> Callable[[Tensor], Tensor]:
    """The replacement for an activation, computed along its first axis, the batch.

    zero: nothing; mean: its mean over the batch; resample: that of another sequence, each sequence's drawn
    once, never its own.

    Args:
        method: which of them.
        seed: of resample.
        inputs: what the model sees.

    Raises:
        UserError: no such method; mean or resample over sequences that are all the same, or only one, which would
            put back what is there.
    """
    if method not in METHODS:
        raise UserError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
    if method != "zero" and bool((inputs == inputs[:1]).all()):
        raise UserError(
            f"{method}: expected at least 2 different sequences, got {len(inputs)}"
            f"{'' if len(inputs) == 1 else ' of which all are equal'}"
        )

    def replacement(activation: Tensor) -> Tensor:
        if method == "zero":
            return torch.zeros_like(activation)
        if method == "mean":
            return activation.mean(dim=0, keepdim=True).expand_as(activation)
        return activation[others(len(activation), seed).to(activation.device)]

    return replacement


def others(batch: int, seed: int) -> Tensor:
    """For each sequence another one: a random cycle through all of them.

    Raises:
        UserError: there is only one.
    """
    if batch < 2:
        raise UserError("resample: expected at least 2 sequences, got 1")
    cycle = torch.randperm(batch, generator=torch.Generator().manual_seed(whole_number(seed, "seed")))
    target = torch.empty_like(cycle)
    target[cycle] = cycle.roll(1)
    return target
