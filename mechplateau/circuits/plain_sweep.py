"""`patch_sweep` on any model with hook points: one whole forward a patch, scored by the task's objective.

For models that are no HookedTransformers, and data that are no sequences of tokens. What is saved elsewhere by running
only a part of the forward depends on causal attention and next-token scores.

Cost: one forward a hook, head and position; of estimates, one forward and one backward in all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from mechplateau.circuits.gradients import by_patch, first_order_changes, of_objective
from mechplateau.circuits.patching import Patch, activations, run_patched
from mechplateau.circuits.scoring import example_measures
from mechplateau.objectives import Batch, Objective
from mechplateau.progress import Progress

if TYPE_CHECKING:
    from transformer_lens import HookedRootModule

Key = tuple[str, int | None, int | None]


def plain_sweep(
    recipient: HookedRootModule,
    donor: HookedRootModule,
    batch: Batch,
    donor_batch: Batch,
    objective: Objective,
    rows: Sequence[int],
    hooks: Sequence[str],
    heads_of: Callable[[str, Tensor], list[int | None]],
    positions: tuple[int, ...] | None,
    method: str,
    progress: Progress,
) -> tuple[Mapping[Key, list[np.ndarray]], Mapping[Key, list[np.ndarray]], np.ndarray, np.ndarray]:
    """Measures of the patched recipient, their estimated changes, and measures of the recipient and of the donor.

    Args:
        recipient, donor: models of one kind and shape.
        batch: what the recipient sees and both are scored on.
        donor_batch: what the donor sees.
        objective: of the task.
        rows: entries that are scored.
        hooks: names of hook points.
        heads_of: hook, activation → the heads that are patched one at a time, or [None].
        positions: patched one at a time; None: all at once.
        method: "exact", "gradient" or "both".
        progress: makes a bar of patches.

    Returns:
        (hook, head, position) → one array `[3, batch]`; the same of estimates, `[2, batch]`; and one array `[3, batch]`
        for each model without patches. What the method leaves out is empty.
    """
    given = activations(donor, donor_batch.inputs, hooks)

    def measured(outputs) -> np.ndarray:
        return example_measures(outputs, batch, objective, rows)

    base, best = measured(recipient(batch.inputs)), measured(donor(donor_batch.inputs))
    heads = {hook: heads_of(hook, given[hook]) for hook in hooks}
    places: Sequence[int | None] = (None,) if positions is None else positions
    estimates: dict[Key, list[np.ndarray]] = {}
    if method != "exact":
        changes = first_order_changes(recipient, batch.inputs, given, of_objective(objective, batch, rows))
        estimates = {key: [one] for key, one in by_patch(changes, heads, positions).items()}
    if method == "gradient":
        return {}, estimates, base, best
    total = sum(len(heads[hook]) for hook in hooks) * len(places)
    found: dict[Key, list[np.ndarray]] = {}
    with closing(progress(total=total, desc="patching")) as bar:
        for hook in hooks:
            for head in heads[hook]:
                for position in places:
                    patch = Patch(hook, given[hook], None if position is None else (position,), head)
                    found[hook, head, position] = [measured(run_patched(recipient, batch.inputs, [patch]))]
                    bar.update(1)
    return found, estimates, base, best


__all__ = ["plain_sweep"]
