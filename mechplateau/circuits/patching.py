"""Put activations of one forward into another: of another checkpoint, another run, other tokens.

For a single question ("does the attention output of the last step, in the model of step 150, solve the task?").
Cost: one forward to keep the activations, one to run with them. For all hooks and positions at once use
`patch_sweep`, which is several times faster than a loop of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechplateau.circuits.editing import (
    head_axis,
    position_axis,
    require_hook,
    require_same_shape,
    run_edited,
)
from mechplateau.circuits.scoring import checked_rows, seen_by
from mechplateau.errors import UserError
from mechplateau.schema import whole_number

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


@dataclass(frozen=True)
class Patch:
    """An activation, or part of one, to be put in place of a model's own.

    Attributes:
        hook: TransformerLens's name of the hook point.
        value: the donor's whole activation there, in the shape of the recipient's.
        positions: only these positions (of the queries, for attention patterns); None: all.
        head: only this head; None: all.
    """

    hook: str
    value: Tensor
    positions: tuple[int, ...] | None = None
    head: int | None = None

    def __call__(self, activation: Tensor) -> Tensor:
        """The activation with the donor's part in it, a new tensor.

        Raises:
            UserError: another shape than the donor's, or a position or head that is not there.
        """
        require_same_shape(self.hook, self.value, activation)
        where = part_of(self.hook, activation, self.positions, self.head)
        patched = activation.clone()
        patched[where] = self.value.to(activation.device, activation.dtype)[where]
        return patched


def part_of(
    hook: str, activation: Tensor, positions: Sequence[int] | None, head: int | None
) -> tuple[slice | Tensor, ...]:
    """The index of some positions and one head of an activation.

    Raises:
        UserError: they are not there, or the activation has no heads.
    """
    where: list[slice | Tensor] = [slice(None)] * activation.dim()
    if positions is not None:
        axis = position_axis(hook)
        chosen = checked_rows(positions, activation.shape[axis], f"{hook}: positions")
        where[axis] = torch.tensor(chosen, device=activation.device)
    if head is not None:
        axis_of_heads = head_axis(hook)
        n_heads = 0 if axis_of_heads is None else activation.shape[axis_of_heads]
        head = whole_number(head, f"{hook}: head")
        if axis_of_heads is None or not 0 <= head < n_heads:
            raise UserError(f"{hook}: expected a head below {n_heads}, got {head}")
        where[axis_of_heads] = slice(head, head + 1)
    return tuple(where)


@torch.no_grad()
def activations(
    model: HookedTransformer, inputs: Int[Tensor, "batch pos"], hooks: Sequence[str]
) -> Mapping[str, Tensor]:
    """Activations at the named hooks, and no others, in one forward.

    Raises:
        UserError: a hook that this model has not, or that does not fire, or inputs that the model cannot take.
    """
    if isinstance(hooks, str):
        raise UserError(f"hooks: expected a list of names, got {hooks!r}")
    for hook in hooks:
        require_hook(model, hook)
    _, cache = model.run_with_cache(seen_by(model, inputs), names_filter=list(hooks))
    kept = getattr(cache, "cache_dict", cache)
    if silent := [hook for hook in hooks if hook not in kept]:
        raise UserError(
            f"{', '.join(silent)} never fired in this forward; a setting of the model switches it off"
        )
    return {hook: kept[hook] for hook in hooks}


def run_patched(
    model: HookedTransformer, inputs: Int[Tensor, "batch pos"], patches: Sequence[Patch]
) -> Float[Tensor, "batch pos vocab"]:
    """Logits with the patches in place.

    Patching a model's own activations changes no bit against the same hooks doing nothing.

    Raises:
        UserError: a patch that does not fit, or whose hook never fired.
    """
    if not all(isinstance(patch, Patch) and isinstance(patch.value, Tensor) for patch in patches):
        raise UserError(
            f"patches: expected a list of Patch, each with a tensor, got "
            f"{', '.join(type(patch).__name__ for patch in patches)}"
        )
    return run_edited(model, inputs, [(patch.hook, patch) for patch in patches])
