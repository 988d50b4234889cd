"""Checks on two models that are compared: they must differ, but both or neither have processed weights."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from mechplateau.errors import UserError
from mechplateau.models.weights import plain_names

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

_MEANT = "or say identity=True if that is what you want"


def require_other_activations(
    recipient: HookedTransformer,
    donor: HookedTransformer,
    inputs: Int[Tensor, "batch pos"],
    donor_inputs: Int[Tensor, "batch pos"],
) -> None:
    """Raise where one model would be patched with what it computes itself; warn where two models are equal.

    Inputs are compared as a whole: some equal rows among others that differ pass.

    Raises:
        UserError: recipient and donor are one model, and all that it sees is the same.
    """
    if not torch.equal(inputs.cpu(), donor_inputs.cpu()):
        return
    if _is_one(recipient, donor):
        raise UserError(
            "recipient and donor are one model that sees the same tokens (all but the last of each sequence), so that "
            f"no patch changes anything; give another model, or donor_tokens that differ, {_MEANT}"
        )
    # Equal weights may still compute something else: under a hook, or an intervention.
    if same_weights(recipient, donor) and torch.equal(recipient(inputs[:1]).cpu(), donor(inputs[:1]).cpu()):
        warnings.warn(
            "recipient and donor have equal weights and see the same tokens, so that no patch changes anything: the "
            f"same checkpoint twice? Give another one, {_MEANT}",
            stacklevel=4,  # past this function, the sweep and torch.no_grad's wrapper
        )


def require_other_weights(recipient: HookedTransformer, donor: HookedTransformer) -> None:
    """Raise where a model's weights would be moved into itself; warn where the donor's are equal to it.

    Raises:
        UserError: recipient and donor are one model.
    """
    if _is_one(recipient, donor):
        raise UserError(
            "recipient and donor are one model, so that moving weights changes nothing; give another model, "
            f"{_MEANT}"
        )
    if same_weights(recipient, donor):
        warnings.warn(
            "recipient and donor have equal weights, so that moving them changes nothing: the same checkpoint twice? "
            f"Give another one, {_MEANT}",
            stacklevel=4,
        )


def _is_one(recipient: HookedTransformer, donor: HookedTransformer) -> bool:
    """Whether both are one model, compiled or not."""
    return getattr(recipient, "_orig_mod", recipient) is getattr(donor, "_orig_mod", donor)


def same_weights(one: HookedTransformer, other: HookedTransformer) -> bool:
    """Whether all parameters are equal to the bit."""
    ours, theirs = (plain_names(dict(model.named_parameters())) for model in (one, other))
    return ours.keys() == theirs.keys() and all(
        parameter.shape == theirs[name].shape and torch.equal(parameter.cpu(), theirs[name].cpu())
        for name, parameter in ours.items()
    )


def require_alike_written(recipient: HookedTransformer, donor: HookedTransformer) -> None:
    """Raise where one model's weights were processed (folded, centered) and the other's were not.

    They may compute the same, but their activations and weights do not mean the same.

    Raises:
        UserError: names what differs.
    """
    ours, theirs = (
        (
            getattr(getattr(model, "cfg", None), "normalization_type", None),
            getattr(model, "weights_processed", None),
        )
        for model in (recipient, donor)
    )
    if ours[0] != theirs[0] or (None not in (ours[1], theirs[1]) and ours[1] != theirs[1]):
        raise UserError(
            "recipient and donor write the same functions differently (norms "
            f"{ours[0]} and {theirs[0]}; weights processed: {ours[1]} and {theirs[1]}), so that nothing of one means "
            "the same in the other; process both or neither"
        )
