"""Patch every hook, position and head of one checkpoint with another's activations: what carries the difference?

For "which component, moved from after the plateau to during it, removes the plateau": recipient = the model on
the plateau, donor = the solved one. Each entry of the result is one forward in which one activation, at one position
(and head), is the donor's.

Cost: a small part of a forward per hook and position (`patch_sweep` shows how far it is). What is saved, and
exact up to rounding, for any causal HookedTransformer:

1.  Layers before the hook are not run again, nor are positions before the patched one: keys and values of the
    recipient are used instead.
2.  In the last layer, whatever comes after the keys and values acts on each position by itself. Patching all
    positions in one forward then gives, row by row, the answers of patching each position alone.
3.  Past the last attention only rows that are scored are computed, and several positions share one forward.

`method="gradient"` estimates all of them from one forward and one backward instead, "both" puts the estimate beside the
exact numbers (`mechplateau.circuits.gradients`).

Memory: the activations of `batch_size` sequences at the hooks patched, and a forward of at most `memory_limit` bytes.
For single patches, or to see the logits, use `run_patched`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mechplateau.circuits._resuming import Resumer, acts_on_its_own_position
from mechplateau.circuits._sameness import require_alike_written, require_other_activations
from mechplateau.circuits.editing import head_axis, require_hook
from mechplateau.circuits.gradients import by_patch, first_order_changes, of_next_tokens
from mechplateau.circuits.patch_results import Each, Key, PatchResult, means_over_rows, result_of
from mechplateau.circuits.patching import Patch, activations
from mechplateau.circuits.plain_sweep import plain_sweep
from mechplateau.circuits.scoring import (
    checked_rows,
    inputs_of,
    measures_of,
    objective_for,
)
from mechplateau.errors import UserError
from mechplateau.objectives import Batch, Objective, TokenBatch, tokens_of
from mechplateau.progress import Progress, bars
from mechplateau.schema import whole_number

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

METHODS = ("exact", "gradient", "both")


@torch.no_grad()
def patch_sweep(
    recipient: HookedTransformer,
    donor: HookedTransformer,
    tokens: Int[Tensor, "batch seq"] | Batch,
    *,
    donor_tokens: Int[Tensor, "batch seq"] | Batch | None = None,
    objective: Objective | None = None,
    rows: Sequence[int] | None = None,
    hooks: Sequence[str] | None = None,
    positions: Sequence[int] | str = "each",
    by_head: bool = True,
    method: str = "exact",
    batch_size: int = 64,
    memory_limit: float = 5e8,
    identity: bool = False,
    progress: Progress | str | None = "stderr",
) -> PatchResult:
    """Patch the donor's activations into the recipient, one at a time.

    Args:
        recipient, donor: models of the same shapes: checkpoints of one run or of two.
        tokens: whole sequences; both models see them (64 are plenty). Or a task's batch, for any kind of model: then
            every patch is a whole forward.
        donor_tokens: other sequences for the donor, of the same shape; the right tokens are those of `tokens`. Within
            one model they must differ from `tokens` in at least one sequence before its last token.
        objective: of the task; None: the next token.
        rows: positions that are scored (a task's `output_rows`); None: all.
        hooks: different names of hook points; None: every one that fires in this model.
        positions: "each", some, or "all": the whole activation at once.
        by_head: one head at a time, where an activation has heads.
        method: "exact"; "gradient": to first order, with accuracies undefined; "both": exact, with the estimates as
            `loss_gradient` and `logit_difference_gradient` beside, and their rank correlation.
        batch_size: sequences at a time.
        memory_limit: bytes that one forward's activations may take, about.
        identity: allow a model to be patched with what it computes itself (which changes nothing: a check), or, in a
            loop over checkpoints that meets the donor's own, do not warn of it.
        progress: makes a bar, as tqdm does (`mechplateau.progress`); "stderr": tqdm's own; None: silent.

    Raises:
        UserError: an unknown hook, one that never fires, tokens or rows that do not fit, activations of different
            shapes (named with both), one model with processed weights and one without, or one model as recipient and
            donor with equal tokens, without `identity`.

    Warns:
        UserWarning: recipient and donor are two models of equal weights that see equal tokens.
    """
    if isinstance(tokens, Batch):
        if not isinstance(tokens, TokenBatch) or not hasattr(recipient, "cfg") or objective is not None:
            chosen = _Chosen(rows, hooks, positions, by_head, method, identity, progress)
            return _plain(recipient, donor, tokens, donor_tokens, objective_for(tokens, objective), chosen)
        tokens = tokens.tokens
    if isinstance(donor_tokens, Batch):
        donor_tokens = tokens_of(donor_tokens)
    inputs, donor_inputs = _inputs(recipient, donor, tokens, donor_tokens)
    require_alike_written(recipient, donor)
    if not identity:
        require_other_activations(recipient, donor, inputs, donor_inputs)
    scored = checked_rows(rows, inputs.shape[1])
    if whole_number(batch_size, "batch_size") < 1:
        raise UserError(f"batch_size: expected at least 1 sequence, got {batch_size}")
    names = _hooks(hooks, recipient, donor, inputs)
    patched_at = _positions(positions, inputs.shape[1])
    _check_method(method)
    make_bar, bar = bars(progress), None

    totals: dict[Key, list[Each]] = {}
    estimates: dict[Key, list[Each]] = {}
    base: list[Each] = []
    best: list[Each] = []
    with ExitStack() as stack:
        for first in range(0, len(inputs), batch_size):
            part = slice(first, first + batch_size)
            right = TokenBatch(tokens[part].to(inputs.device)).targets[:, list(scored)]
            given = activations(donor, donor_inputs[part], names)
            best.append(_summed(donor(donor_inputs[part]), scored, right))
            heads = {name: _heads(name, given[name], by_head) for name in names}
            if method != "exact":
                changes = first_order_changes(recipient, inputs[part], given, of_next_tokens(right, scored))
                for key, one in by_patch(changes, heads, patched_at).items():
                    estimates.setdefault(key, []).append(one)
            if method == "gradient":
                base.append(_summed(recipient(inputs[part]), scored, right))
                continue
            batch = _Batch(Resumer(recipient, inputs[part], scored, memory_limit), right)
            base.append(batch.base.sum(axis=-1))
            cost = {name: batch.cost(name, patched_at) for name in names}
            if bar is None:
                whole = sum(cost[name] * len(heads[name]) for name in names) * len(inputs) // len(right)
                bar = stack.enter_context(closing(make_bar(total=whole, desc="patching")))
            for name in names:
                for head in heads[name]:
                    for position, each in batch.patched(name, given[name], head, patched_at):
                        totals.setdefault((name, head, position), []).append(each)
                    bar.update(cost[name])
    return result_of(
        totals, estimates, means_over_rows(base, len(scored)), means_over_rows(best, len(scored)), len(scored)
    )


@dataclass(frozen=True)
class _Chosen:
    """The arguments of a sweep that runs whole forwards."""

    rows: Sequence[int] | None
    hooks: Sequence[str] | None
    positions: Sequence[int] | str
    by_head: bool
    method: str
    identity: bool
    progress: Progress | str | None


def _plain(
    recipient: HookedTransformer,
    donor: HookedTransformer,
    batch: Batch,
    donor_batch: object,
    objective: Objective,
    chosen: _Chosen,
) -> PatchResult:
    """The sweep on a model of any kind."""
    _check_method(chosen.method)
    device = next(recipient.parameters()).device
    batch = batch.to(device)
    other = batch if donor_batch is None else donor_batch
    if not isinstance(other, Batch) or other.inputs.shape != batch.inputs.shape:
        raise UserError(
            f"donor_tokens: expected a batch of inputs {list(batch.inputs.shape)}, as the other one"
        )
    other = other.to(device)
    require_alike_written(recipient, donor)
    if not chosen.identity:
        require_other_activations(recipient, donor, batch.inputs, other.inputs)
    rows = checked_rows(chosen.rows, batch.targets.shape[1])
    names = _hooks(chosen.hooks, recipient, donor, batch.inputs)
    totals, estimates, base, best = plain_sweep(
        recipient,
        donor,
        batch,
        other,
        objective,
        rows,
        names,
        lambda hook, activation: _heads(hook, activation, chosen.by_head),
        _positions(chosen.positions, batch.inputs.shape[1]),
        chosen.method,
        bars(chosen.progress),
    )
    return result_of(totals, estimates, base, best, 1)


def _inputs(
    recipient: HookedTransformer,
    donor: HookedTransformer,
    tokens: Int[Tensor, "batch seq"],
    donor_tokens: Int[Tensor, "batch seq"] | None,
) -> tuple[Tensor, Tensor]:
    """What each model sees: its sequences without their last token; both models can take both."""
    inputs = inputs_of(recipient, tokens)
    donor_inputs = inputs if donor_tokens is None else inputs_of(donor, donor_tokens)
    if donor_inputs.shape != inputs.shape:
        raise UserError(
            f"donor_tokens: expected {list(tokens.shape)}, as tokens, "
            f"got {[len(donor_inputs), donor_inputs.shape[1] + 1]}"
        )
    inputs_of(donor, tokens)
    return inputs, donor_inputs


def _check_method(method: str) -> None:
    if method not in METHODS:
        raise UserError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")


def _hooks(
    hooks: Sequence[str] | None, recipient: HookedTransformer, donor: HookedTransformer, inputs: Tensor
) -> list[str]:
    """The hook points that are patched, known to be in both models."""
    names = firing_hooks(recipient, inputs[:1]) if hooks is None else list(hooks)
    if (
        isinstance(hooks, str)
        or not all(isinstance(name, str) for name in names)
        or not names
        or len(set(names)) < len(names)
    ):
        raise UserError(f"hooks: expected a list of different names, at least one, got {hooks!r}")
    for name in names:
        require_hook(recipient, name)
        require_hook(donor, name)
    return names


def firing_hooks(model: HookedTransformer, inputs: Tensor) -> list[str]:
    """Names of all hooks that fire in a forward, in the order of the computation."""
    _, cache = model.run_with_cache(inputs)
    kept = getattr(cache, "cache_dict", cache)
    return [name for name in kept if torch.is_floating_point(kept[name])]


class _Batch:
    """Some sequences of the recipient, ready to be patched."""

    def __init__(self, resumer: Resumer, right: Int[Tensor, "batch rows"]):
        self.resumer = resumer
        self.right = right
        self.base = self._measured(resumer.base_logits)[0]
        """`[3, batch, rows]`: the recipient's own."""

    def cost(self, hook: str, positions: tuple[int, ...] | None) -> int:
        """Positions that patching this hook takes through the model, for one head."""
        if positions is None or acts_on_its_own_position(self.resumer.model, hook):
            return self.right.shape[0] * self.resumer.length
        return self.right.shape[0] * sum(
            len(chunk) * (self.resumer.length - self.resumer.start(chunk))
            for chunk in self.resumer.chunks(positions)
        )

    def patched(
        self, hook: str, given: Tensor, head: int | None, positions: tuple[int, ...] | None
    ) -> Iterator[tuple[int | None, Each]]:
        """The sums over rows for each patched position (None: all at once)."""
        if positions is None:
            patch = Patch(hook, given, None, head)
            yield None, self._measured(self.resumer.run(hook, [patch], 0).logits)[0].sum(axis=-1)
        elif acts_on_its_own_position(self.resumer.model, hook):
            each = self._measured(self.resumer.run(hook, [Patch(hook, given, None, head)], 0).logits)[0]
            for position in positions:
                changed = self.base.copy()
                if position in self.resumer.rows:
                    row = self.resumer.rows.index(position)
                    changed[..., row] = each[..., row]
                yield position, changed.sum(axis=-1)
        else:
            for chunk in self.resumer.chunks(positions):
                patches = [Patch(hook, given, (position,), head) for position in chunk]
                out = self.resumer.run(hook, patches, min(chunk))
                before = self.base[..., list(out.left_out)].sum(axis=-1)
                for position, changed in zip(chunk, self._measured(out.logits, out.order), strict=True):
                    yield position, before + changed.sum(axis=-1)

    def _measured(self, logits: Tensor, rows: Sequence[int] | None = None) -> np.ndarray:
        """`[variants, 3, batch, rows]`; the variants are stacked along the batch."""
        right = self.right if rows is None else self.right[:, list(rows)]
        variants = logits.shape[0] // right.shape[0]
        measures = measures_of(logits, right.repeat(variants, 1))
        return measures.unflatten(1, (variants, -1)).transpose(0, 1).cpu().numpy()


def _positions(positions: Sequence[int] | str, length: int) -> tuple[int, ...] | None:
    if isinstance(positions, str):
        if positions not in ("each", "all"):
            raise UserError(f'positions: expected "each", "all" or positions, got {positions!r}')
        return None if positions == "all" else tuple(range(length))
    return tuple(sorted(checked_rows(positions, length, "positions")))


def _heads(hook: str, activation: Tensor, by_head: bool) -> list[int | None]:
    axis = head_axis(hook)
    return [None] if axis is None or not by_head else list(range(activation.shape[axis]))


def _summed(logits: Tensor, rows: Sequence[int], right: Int[Tensor, "batch rows"]) -> Each:
    return measures_of(logits[:, list(rows)], right).sum(dim=-1).cpu().numpy()
