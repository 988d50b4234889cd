"""Attribution patching: every patch of a sweep to first order, from one forward and one backward.

For an activation a of the recipient and a' of the donor, patching changes a measure m by about (a' − a) · ∂m/∂a, summed
over what is patched, with the gradient taken in the recipient. It is exact where the rest of the model is linear in
the activation, and can be far off elsewhere: through saturated softmaxes, LayerNorms of large changes, early layers.
Compare with the exact sweep before you trust it: `patch_sweep(..., method="both")` does, and tells how well it ranks.

Cost: one forward and one backward for all hooks, heads and positions together.

Source: Nanda 2023, Attribution patching; Kramár et al. 2024 (arXiv 2403.00745) on where it fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechplateau.circuits.editing import head_axis, position_axis
from mechplateau.objectives import Batch, NextToken

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

LINEARIZED = ("loss", "logit_difference")
"""The measures that have a gradient (accuracy has none)."""


def first_order_changes(
    recipient: HookedTransformer,
    inputs: Int[Tensor, "batch pos"],
    given: Mapping[str, Tensor],
    right: Int[Tensor, "batch rows"],
    rows: Sequence[int],
) -> dict[str, Float[Tensor, "2 batch pos head"]]:
    """About what patching each position (and head) of each activation does to each sequence's measures.

    Args:
        recipient: the model that is patched.
        inputs: what it sees.
        given: hook → the donor's activation.
        right: the right next tokens at the scored rows.
        rows: the scored positions.

    Returns:
        hook → changes of loss and logit difference, means over the rows; the last axis has length 1 where the
        activation has no heads. Sum over positions, heads or both for a patch of several.
    """
    kept: dict[str, Tensor] = {}

    def keep(activation: Tensor, hook) -> Tensor:
        # Where nothing before it needs a gradient (weights that are frozen, the first hook), it is a leaf.
        kept[hook.name] = activation if activation.requires_grad else activation.clone().requires_grad_()
        return kept[hook.name]

    with torch.enable_grad(), recipient.hooks(fwd_hooks=[(name, keep) for name in given]):
        logits = recipient(inputs)[:, list(rows)].double()
        changes = [_changes(kept, given, measure) for measure in _measures(logits, right)]
    return {name: torch.stack([each[name] for each in changes]) for name in given}


def _measures(
    logits: Float[Tensor, "batch rows vocab"], right: Int[Tensor, "batch rows"]
) -> tuple[Tensor, Tensor]:
    """Loss and logit difference: means over rows, summed over sequences (whose gradients do not mix)."""
    loss = NextToken().losses(logits, Batch(right, right)).mean(dim=1).sum()
    of_right = logits.gather(-1, right[..., None])[..., 0]
    others = (logits.sum(-1) - of_right) / max(logits.shape[-1] - 1, 1)
    return loss, (of_right - others).mean(dim=1).sum()


def _changes(kept: Mapping[str, Tensor], given: Mapping[str, Tensor], measure: Tensor) -> dict[str, Tensor]:
    names = list(given)
    gradients = torch.autograd.grad(
        measure, [kept[name] for name in names], retain_graph=True, allow_unused=True
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
