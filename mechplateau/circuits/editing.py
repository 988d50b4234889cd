"""Run a model with edited activations; an edit that has no effect is an error.

The base of every patch and ablation here. Cost: one forward pass. An edit whose hook never fires, or that
changes a shape, is an error; hooks are gone afterwards, also after an exception. For edits that should stay on,
use TransformerLens's own `model.hooks`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechplateau.circuits.scoring import seen_by
from mechplateau.errors import UserError

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

Edit = tuple[str, Callable[[Tensor], Tensor]]
"""A hook's name and what to make of its activation."""

_BY_HEAD_AND_QUERY = ("hook_pattern", "hook_attn_scores")
_BY_POSITION_AND_HEAD = (
    *("hook_q", "hook_k", "hook_v", "hook_z", "hook_result", "hook_rot_q", "hook_rot_k"),
    *("hook_q_input", "hook_k_input", "hook_v_input", "hook_attn_in"),
)


@torch.no_grad()
def run_edited(
    model: HookedTransformer, inputs: Int[Tensor, "batch pos"], edits: Sequence[Edit]
) -> Float[Tensor, "batch pos vocab"]:
    """Logits with edited activations.

    Args:
        model: any HookedTransformer.
        inputs: what the model sees.
        edits: applied where their hooks fire; several on one hook, in their order.

    Raises:
        UserError: a hook that this model has not, that never fired, an edit that changed a shape, or inputs that the
            model cannot take (see `seen_by`).
    """
    fired: set[str] = set()

    def hook_for(name: str, edit: Callable[[Tensor], Tensor]):
        def hook(activation: Tensor, hook) -> Tensor:
            fired.add(name)
            edited = edit(activation)
            if not isinstance(edited, Tensor):
                raise UserError(
                    f"{name}: the edit returned {type(edited).__name__}; expected the edited activation, a tensor"
                )
            require_same_shape(name, edited, activation)
            return edited

        return hook

    inputs = seen_by(model, inputs)
    for edit in edits:
        if not (isinstance(edit, tuple) and len(edit) == 2 and callable(edit[1])):
            raise UserError(
                f"edits: expected pairs (hook, function of its activation), got {type(edit).__name__}"
            )
        require_hook(model, edit[0])
    with model.hooks(fwd_hooks=[(name, hook_for(name, edit)) for name, edit in edits]):
        logits = model(inputs)
    if silent := sorted({name for name, _ in edits} - fired):
        raise UserError(f"{', '.join(silent)} never fired in this forward, so the edit did nothing")
    return logits


def require_hook(model: HookedTransformer, name: str) -> None:
    """Raise UserError where the model has no hook of that name (naming those most alike) or has it switched off."""
    if name not in model.hook_dict:
        alike = difflib.get_close_matches(name, model.hook_dict, n=3, cutoff=0.3)
        raise UserError(f"no hook {name!r} in this model; the nearest are {', '.join(alike) or 'none'}")
    try:
        model.check_hooks_to_add(model.hook_dict[name], name, None)
    except AssertionError as error:
        raise UserError(f"{name} never fires in this model: {' '.join(str(error).split())}") from None


def require_same_shape(name: str, given: Tensor, expected: Tensor) -> None:
    """Raise UserError, naming both shapes, where an activation would be replaced by one of another shape."""
    if given.shape != expected.shape:
        raise UserError(
            f"{name}: expected an activation of shape {list(expected.shape)}, got {list(given.shape)}"
        )


def position_axis(hook: str) -> int:
    """The axis of an activation that counts positions (of the queries, for attention patterns)."""
    return 2 if _last(hook) in _BY_HEAD_AND_QUERY else 1


def head_axis(hook: str) -> int | None:
    """The axis of an activation that counts heads; None where it has none."""
    if _last(hook) in _BY_HEAD_AND_QUERY:
        return 1
    return 2 if _last(hook) in _BY_POSITION_AND_HEAD else None


def layer_of(hook: str) -> int | None:
    """The layer a hook belongs to; None before the first and after the last."""
    parts = hook.split(".")
    return int(parts[1]) if parts[0] == "blocks" else None


def _last(hook: str) -> str:
    return hook.rpartition(".")[2]
