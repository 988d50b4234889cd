"""Put components of one checkpoint's weights into another: which one, moved from after the plateau, removes it?

Each component is moved by itself into the recipient ("moved"), and kept the recipient's own while all others are the
donor's ("kept"): a component that is enough shows in the first, one that is needed in the second.

Cost: two forwards a component. For activations instead of weights use `patch_sweep`; to train on from a transplanted
model use `transfer`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from mechplateau.circuits._sameness import require_alike_written, require_other_weights
from mechplateau.circuits.patch_results import recovered
from mechplateau.circuits.scoring import (
    MEASURES,
    checked_rows,
    example_measures,
    inputs_of,
    objective_for,
    standard_error,
)
from mechplateau.errors import UserError
from mechplateau.models.config import ModelConfigBase
from mechplateau.models.gpt import hooked_components
from mechplateau.models.kinds import Slot, by_module, kind_of
from mechplateau.models.weights import plain_names
from mechplateau.objectives import Batch, Objective, TokenBatch
from mechplateau.schema import whole_number

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


def components(model: HookedTransformer) -> Mapping[str, tuple[Slot, ...]]:
    """The components that are moved, as the model's kind names them.

    Of a HookedTransformer: embeddings, norms, attention as a whole, as QK and OV, by head, and MLPs.

    A head's OV leaves the layer's output bias b_O out, which belongs to no head.
    """
    names = list(_parameters(model))
    config = getattr(model, "model_config", None)
    if isinstance(config, ModelConfigBase):
        return kind_of(config).components(config, names)
    if not hasattr(model, "cfg"):
        return by_module(names)
    # Grouped keys are shared by heads, so no head has a QK of its own there.
    grouped = model.cfg.n_key_value_heads is not None
    return hooked_components(names, model.cfg.n_layers, 1 if grouped else model.cfg.n_heads)


@torch.no_grad()
def patch_parameters(
    recipient: HookedTransformer,
    donor: HookedTransformer,
    tokens: Int[Tensor, "batch seq"] | Batch,
    *,
    objective: Objective | None = None,
    rows: Sequence[int] | None = None,
    moved: Mapping[str, Sequence[Slot]] | None = None,
    identity: bool = False,
) -> pd.DataFrame:
    """Move components of the donor's weights into the recipient, one at a time, and all but one.

    The recipient's weights are the same to the bit afterwards, also after an exception.

    Args:
        recipient, donor: models of the same shapes.
        tokens: whole sequences; or a task's batch, for any kind of model.
        objective: of the task; None: the next token.
        rows: positions that are scored (a task's `output_rows`); None: all.
        moved: label → slots, at least one each; None: `components(recipient)`.
        identity: allow recipient and donor to be one model (nothing changes then: a check), or, in a loop over
            checkpoints that meets the recipient's own, do not warn of it.

    Returns:
        one line a component and mode: component, mode ("moved", "kept"), the three measures of `score` (means over
        sequences and rows), and `recovered_…` and `…_se` of each, and n, as in `patch_sweep`. The first two lines, of
        components "recipient" and "donor" with a null mode, are the models themselves.

    Raises:
        UserError: the models' parameters differ in name or shape (named with both), a slot is not there, nothing is to
            be moved, one's weights were processed and the other's not, or recipient and donor are one model, without
            `identity`.

    Warns:
        UserWarning: recipient and donor are two models of equal weights.
    """
    batch = tokens if isinstance(tokens, Batch) else TokenBatch(tokens)
    aim = objective_for(batch, objective)
    if isinstance(tokens, Batch):
        batch = batch.to(next(recipient.parameters()).device)
        inputs = batch.inputs
    else:
        inputs = inputs_of(recipient, tokens)
        inputs_of(donor, tokens)
        batch = TokenBatch(tokens.to(inputs.device))
    scored = checked_rows(rows, batch.targets.shape[1])
    own, given = _parameters(recipient), _parameters(donor)
    _require_alike(own, given)
    require_alike_written(recipient, donor)
    if not identity:
        require_other_weights(recipient, donor)
    chosen = components(recipient) if moved is None else moved
    _check_moved(chosen, own)
    every: set[Slot] = {(name, None) for name in own}

    def measured(model: HookedTransformer) -> np.ndarray:
        """`[3, batch]`: means over rows."""
        return example_measures(model(inputs), batch, aim, scored)

    base, best = measured(recipient), measured(donor)
    lines: list[tuple[str, str, np.ndarray]] = []
    for label, slots in chosen.items():
        with _swapped(own, given, slots):
            lines.append((label, "moved", measured(recipient)))
        with _swapped(own, given, every, keep=slots):
            lines.append((label, "kept", measured(recipient)))
    return _table(base, best, lines).assign(n=len(tokens))


def _check_moved(moved: object, own: Mapping[str, Tensor]) -> None:
    """Raises UserError where these are not labels of slots that a model with the parameters `own` has."""
    if not isinstance(moved, Mapping):
        raise UserError(f"moved: expected label → pairs (weights, head or None), got {type(moved).__name__}")
    if not moved or not all(moved.values()):
        raise UserError("moved: expected at least one label, and weights for each, got none")
    for label, slots in moved.items():
        if any(isinstance(slot, str) or len(slot) != 2 for slot in slots):
            raise UserError(f"{label}: expected pairs (weights, head or None), got {list(slots)}")
        for name, head in slots:
            head = head if head is None else whole_number(head, f"{label}: head")
            if name not in own or (head is not None and not 0 <= head < own[name].shape[0]):
                raise UserError(
                    f"{label}: no such weights {name!r}{'' if head is None else f', head {head}'}"
                )


def _table(base: np.ndarray, best: np.ndarray, lines: list[tuple[str, str, np.ndarray]]) -> pd.DataFrame:
    """What `patch_parameters` returns, but for `n`: `lines` are label, mode and measures, `[3, batch]` each."""
    each = np.array([base, best, *(measures for _, _, measures in lines)])
    values, errors = each.mean(axis=-1), standard_error(each - base, axis=-1)
    table = pd.DataFrame(
        {
            "component": ["recipient", "donor", *(label for label, _, _ in lines)],
            "mode": pd.array([None, None, *(mode for _, mode, _ in lines)], dtype="string"),
            **{name: values[:, i] for i, name in enumerate(MEASURES)},
        }
    )
    for i, name in enumerate(MEASURES):
        table[f"recovered_{name}"] = recovered(values[:, i], base[i], best[i])
    for i, name in enumerate(MEASURES):
        table[f"{name}_se"] = errors[:, i]
    return table


@contextmanager
def _swapped(
    own: Mapping[str, Tensor],
    given: Mapping[str, Tensor],
    slots: Sequence[Slot] | set[Slot],
    keep: Sequence[Slot] = (),
) -> Iterator[None]:
    """The donor's weights in these slots, except for those kept, until the context is left."""
    touched = {name for name, _ in slots}
    before = {name: own[name].clone() for name in touched}
    try:
        for name, head in slots:
            _slot(own[name], head).copy_(_slot(given[name], head))
        for name, head in keep:
            _slot(own[name], head).copy_(_slot(before[name], head))
        yield
    finally:
        for name, tensor in before.items():
            own[name].copy_(tensor)


def _slot(tensor: Tensor, head: int | None) -> Tensor:
    return tensor if head is None else tensor[head]


def _parameters(model: HookedTransformer) -> dict[str, Tensor]:
    return plain_names({name: parameter.detach() for name, parameter in model.named_parameters()})


def _require_alike(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    problems = [f"{name} is in one only" for name in sorted(set(own) ^ set(given))]
    problems += [
        f"{name} has shape {list(own[name].shape)} in the recipient and {list(given[name].shape)} in the donor"
        for name in own
        if name in given and own[name].shape != given[name].shape
    ]
    if problems:
        raise UserError(f"weights can be moved between models of the same shapes only: {'; '.join(problems)}")
