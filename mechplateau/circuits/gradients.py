"""Attribution patching: every patch of a sweep to first order, from one forward and one backward.

For an activation a of the recipient and a' of the donor, patching changes a measure m by about (a' − a) · ∂m/∂a, summed
over what is patched, with the gradient taken in the recipient. It is exact where the rest of the model is linear in
the activation, and can be far off elsewhere: through saturated softmaxes, LayerNorms of large changes, early layers.
Compare with the exact sweep before you trust it: `patch_sweep(..., method="both")` does, and reports how well it ranks.

Cost: one forward and one backward for all hooks, heads and positions together.

Source: Nanda 2023, Attribution patching; Kramár et al. 2024 (arXiv 2403.00745) on where it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechplateau.circuits.editing import head_axis, position_axis
from mechplateau.circuits.scoring import example_losses
from mechplateau.objectives import Batch, NextToken, Objective

if TYPE_CHECKING:
    from transformer_lens import HookedRootModule

LINEARIZED = ("loss", "logit_difference")
"""The measures that have a gradient (accuracy has none)."""


Measures = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""From a model's outputs to loss and logit difference of each example, differentiable; None: there is no such thing."""


def first_order_changes(
    recipient: HookedRootModule, inputs: Tensor, given: Mapping[str, Tensor], measures: Measures
) -> dict[str, Float[Tensor, "2 batch pos head"]]:
    """About what patching each position (and head) of each activation does to each example's measures.

    Args:
        recipient: the model that is patched.
        inputs: what it sees.
        given: hook → the donor's activation.
        measures: of its outputs.

    Returns:
        hook → changes of loss and logit difference (NaN where it has none); the last axis has length 1 where the
        activation has no heads. Sum over positions, heads or both for a patch of several.
    """
    kept: dict[str, Tensor] = {}

    def keep(activation: Tensor, hook) -> Tensor:
        # Where nothing before it needs a gradient (weights that are frozen, the first hook), it is a leaf.
        kept[hook.name] = activation if activation.requires_grad else activation.clone().requires_grad_()
        return kept[hook.name]

    with torch.enable_grad(), recipient.hooks(fwd_hooks=[(name, keep) for name in given]):
        loss, difference = measures(recipient(inputs))
        changes = [_changes(kept, given, loss)]
        if difference is None:
            changes.append({name: torch.full_like(one, torch.nan) for name, one in changes[0].items()})
        else:
            changes.append(_changes(kept, given, difference))
    return {name: torch.stack([each[name] for each in changes]) for name in given}


def of_next_tokens(right: Int[Tensor, "batch rows"], rows: Sequence[int]) -> Measures:
    """The measures of next-token logits: means over the rows.

    Args:
        right: the right next tokens at the scored rows.
        rows: the scored positions.
    """

    def measures(outputs: Tensor) -> tuple[Tensor, Tensor]:
        logits = outputs[:, list(rows)].double()
        loss = NextToken().losses(logits, Batch(right, right)).mean(dim=1)
        of_right = logits.gather(-1, right[..., None])[..., 0]
        others = (logits.sum(-1) - of_right) / max(logits.shape[-1] - 1, 1)
        return loss, (of_right - others).mean(dim=1)

    return measures


def of_objective(objective: Objective, batch: Batch, rows: Sequence[int]) -> Measures:
    """The loss by any objective, over these entries; only next tokens have a logit difference."""
    if isinstance(objective, NextToken):
        return of_next_tokens(batch.targets[:, list(rows)], rows)
    return lambda outputs: (example_losses(outputs, batch, objective, rows), None)


def by_patch(
    changes: Mapping[str, Tensor],
    heads: Mapping[str, Sequence[int | None]],
    positions: tuple[int, ...] | None,
) -> dict[tuple[str, int | None, int | None], np.ndarray]:
    """(hook, head, position) → the estimated changes `[2, batch]` of that patch."""
    found = {}
    for name, change in changes.items():
        for head in heads[name]:
            of_head = change.sum(dim=-1) if head is None else change[..., head]
            for position in (None,) if positions is None else positions:
                one = of_head.sum(dim=-1) if position is None else of_head[..., position]
                found[name, head, position] = one.cpu().numpy()
    return found


def _changes(kept: Mapping[str, Tensor], given: Mapping[str, Tensor], measure: Tensor) -> dict[str, Tensor]:
    names = list(given)
    # The sum over examples, whose gradients do not mix.
    gradients = torch.autograd.grad(
        measure.sum(), [kept[name] for name in names], retain_graph=True, allow_unused=True
    )
    return {
        name: _by_place(name, _product(given[name], kept[name].detach(), gradient))
        for name, gradient in zip(names, gradients, strict=True)
    }


def _product(given: Tensor, own: Tensor, gradient: Tensor | None) -> Tensor:
    if gradient is None:  # nothing after it reads the activation
        return torch.zeros_like(own, dtype=torch.float64)
    # Masked scores are −inf in both: no change, whatever the gradient.
    change = torch.where(given == own, 0.0, given - own)
    return change.double() * gradient.double()


def _by_place(hook: str, product: Tensor) -> Float[Tensor, "batch pos head"]:
    """Summed over all but sequence, position and head."""
    position, head = position_axis(hook), head_axis(hook)
    if head is None:
        product, head = product.unsqueeze(product.dim()), product.dim()
    return product.movedim((0, position, head), (0, 1, 2)).flatten(3).sum(dim=-1)
