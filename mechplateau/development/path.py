"""The path of training in a few dimensions: principal components of checkpoints' weights, or of their hidden states.

Components come from the Gram matrix between checkpoints, so that memory is checkpoints², however many weights there
are. Smooth random walks give arcs as well (Antognini & Sohl-Dickstein 2018): an arc alone says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mechplateau.errors import UserError


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Where each checkpoint is, after the mean over checkpoints was taken off.

    Attributes:
        positions: `[checkpoint, component]`, in the unit of what was given. Each component's sign is such that the
            last checkpoint is on the positive side.
        shares: `[component]`, of the variance over checkpoints.
        steps: `[checkpoint]`, the distance of each from the one before; NaN for the first.
    """

    positions: np.ndarray
    shares: np.ndarray
    steps: np.ndarray


def trajectory(checkpoints: Sequence[Mapping[str, Tensor] | Tensor], *, components: int = 3) -> Trajectory:
    """Principal components over checkpoints.

    Args:
        checkpoints: for each, weights by name (those that are real numbers are used), or one tensor such as the
            hidden states on fixed inputs; all of the same names and shapes.
        components: how many, at most one less than checkpoints.

    Raises:
        UserError: fewer than two checkpoints, other names or shapes, or values that are not finite.
    """
    if len(checkpoints) < 2:
        raise UserError(f"checkpoints: expected at least 2, got {len(checkpoints)}")
    if not 1 <= components < len(checkpoints):
        raise UserError(f"components: expected 1 to {len(checkpoints) - 1}, got {components}")
    named = [_named(checkpoint) for checkpoint in checkpoints]
    shapes = [{name: list(tensor.shape) for name, tensor in one.items()} for one in named]
    for index, own in enumerate(shapes):
        if own != shapes[0]:
            names = sorted(name for name in {**own, **shapes[0]} if own.get(name) != shapes[0].get(name))
            raise UserError(
                f"checkpoints: number {index} differs from the first in shape or name of {names[0]}"
            )
    count = len(named)
    gram = np.zeros((count, count))
    for name in shapes[0]:  # one parameter of all checkpoints at a time
        rows = torch.stack([one[name].detach().reshape(-1).double().cpu() for one in named])
        if not bool(rows.isfinite().all()):
            raise UserError(f"checkpoints: {name} holds values that are not finite")
        rows -= rows.mean(dim=0)
        gram += (rows @ rows.T).numpy()
    values, vectors = np.linalg.eigh(gram)
    values, vectors = values[::-1].clip(0), vectors[:, ::-1]
    positions = vectors[:, :components] * np.sqrt(values[:components])
    positions *= np.where(positions[-1] < 0, -1.0, 1.0)
    total = values.sum()
    squared = np.diag(gram)
    gaps = squared[1:] + squared[:-1] - 2 * np.diag(gram, 1)
    return Trajectory(
        positions=positions,
        shares=values[:components] / total if total > 0 else np.full(components, np.nan),
        steps=np.concatenate([[np.nan], np.sqrt(gaps.clip(0))]),
    )


def _named(checkpoint: Mapping[str, Tensor] | Tensor) -> dict[str, Tensor]:
    if isinstance(checkpoint, Tensor):
        return {"values": checkpoint}
    return {name: tensor for name, tensor in checkpoint.items() if tensor.is_floating_point()}
