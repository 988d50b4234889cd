"""Probes of a model's activations: what can be read at a place, and when in training it appears.

At any hook point, for any label, with a linear probe, a small MLP or both, train and test split by prompt, a shuffled
control and a control task (the probe itself: `mechplateau.metrics.probe`). Over checkpoints:
`over_run(run, probe, tokens, "output", hook="blocks.0.hook_attn_out", task=run.task)`.

Look at `selectivity` first. A probe that reads a random label of the same inputs as well as the label (selectivity
near 0) has computed the label by itself from inputs that are there: an MLP adds two numbers that it can read. It then
says that the inputs are there, not that the model has computed anything. A linear probe has less to compute with, but
where a place is wide it may still read random labels: of 1,024 neurons, one of all 136 pairs of 16 numbers.

The control draws a random label for each distinct input of the label's function, so it is as fair as these inputs.
Where a function does not depend on the order, as a sum of two operands does not, its input is the pair without one:
attention that adds the operands up keeps no order, so a random label of ordered pairs would be read badly for that
reason alone, and selectivity would look high. `probe` therefore leaves the order out wherever the label allows it
(`label_of` can say otherwise). A model that keeps the order can only do better on this control.

Cost: one forward, and 1 + 2 · draws fits, 7 as a rule: seconds (linear, some thousand rows) to minutes (MLP) each. A
probe shows what is there, not what is used: for that, ablate or patch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from mechplateau.circuits.editing import head_axis, position_axis
from mechplateau.circuits.patching import activations
from mechplateau.circuits.scoring import checked_rows, inputs_of, require_task_of
from mechplateau.errors import UserError
from mechplateau.metrics.probe import fit_probe, is_function_of
from mechplateau.objectives import Batch, TokenBatch

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

    from mechplateau.tasks import Task

LABELS = ("input", "output", "window_sum", "position")
Label = str | Callable[[Any], Tensor | np.ndarray]


@torch.no_grad()
def probe(
    model: HookedTransformer,
    tokens: Int[Tensor, "batch seq"] | Batch,
    label: Label,
    *,
    hook: str,
    task: Task | None = None,
    rows: Sequence[int] | None = None,
    head: int | None = None,
    kind: str | Sequence[str] = "linear",
    n_train: int | None = None,
    label_of: Callable[[Any], Tensor | np.ndarray] | None = None,
    **options: object,
) -> pd.DataFrame:
    """Probe one activation for one label.

    Args:
        model: any with hook points.
        tokens: whole sequences, some hundred. Or a batch of any task, also of real-valued inputs.
        label: what to read, at each row: "input" (the token there), "output" (the next token), "window_sum" (the
            sum of the tokens on the task's first Ω of that row, modulo its p where it has one), "position", or a
            function of the whole sequences to integers `[batch, rows]`. Of a batch that is not of tokens: "output" (its
            targets, where they are integers, one a row), "position", or a function of the batch.
        hook: the activation; all axes but batch and position (of the query) are read together.
        task: gives the rows and Ω; needed for "window_sum".
        rows: positions; None: the task's output rows, or all positions without a task.
        head: read this head only.
        kind: "linear", "mlp", or both as a list.
        n_train: sequences to train on, the first; None: half. Of the others, those are tested on whose prompt (with
            a task; else whole input) is not trained on.
        label_of: what the label is a function of, for the control task: from whole sequences to integers
            `[batch, rows]` or `[batch, rows, k]`. None: the token for "input"; for "output" and "window_sum" the tokens
            on the first Ω, without their order where they decide it so, else in order, else all tokens up to the row
            where these do; nothing elsewhere, for "position", functions and batches that are not of tokens:
            selectivity is then undefined.
        options: as for `fit_probe`.

    Returns:
        one line a kind: hook, head, label, kind, and all of `ProbeResult`.

    Raises:
        UserError: no such hook or label, tokens that are not the task's, or what `fit_probe` refuses.
    """
    if isinstance(tokens, TokenBatch):
        tokens = tokens.tokens
    if unknown := set(options) - set(inspect.signature(fit_probe).parameters):
        raise UserError(f"{', '.join(sorted(unknown))}: no option of probe or fit_probe")
    if isinstance(tokens, Batch):
        asked = _of_batch(model, tokens, label, hook, rows, head, label_of)
    else:
        asked = _of_tokens(model, tokens, label, hook, task, rows, head, label_of)
    name, features, labels, inputs, groups = asked
    options = {"inputs": inputs, "groups": groups, **options}
    kinds = (kind,) if isinstance(kind, str) else tuple(kind)
    lines = []
    for each in kinds:
        result = fit_probe(features, labels, kind=each, n_train=n_train, **options)  # type: ignore[arg-type]
        lines.append({"hook": hook, "head": head, "label": name, "kind": each, **asdict(result)})
    undefined = ("shuffled_accuracy", "shuffled_sd", "control_accuracy", "control_sd", "selectivity")
    return pd.DataFrame(lines).astype({"head": "Int64", **dict.fromkeys(undefined, "Float64")})


class _Asked(NamedTuple):
    """What a probe is fitted to.

    Attributes:
        name: of the label.
        features: `[batch, row, width]`.
        labels: integers `[batch, row]`.
        inputs: integers `[batch, row]`, equal where what the label is a function of is equal; None: not known.
        groups: a number an example, equal for those that must not be both trained and tested on.
    """

    name: str
    features: np.ndarray
    labels: np.ndarray
    inputs: np.ndarray | None
    groups: np.ndarray


def _of_tokens(
    model: HookedTransformer,
    tokens: Tensor,
    label: Label,
    hook: str,
    task: Task | None,
    rows: Sequence[int] | None,
    head: int | None,
    label_of: Callable[[Any], Tensor | np.ndarray] | None,
) -> _Asked:
    seen = inputs_of(model, tokens) if hasattr(model, "cfg") else TokenBatch(tokens).inputs
    if task is not None:
        require_task_of(tokens, task)
    if rows is None and task is not None:
        rows = task.output_rows
    chosen = checked_rows(rows, seen.shape[1])
    name, labels = _labels(label, tokens, chosen, task)
    return _Asked(
        name,
        _features(activations(model, seen, [hook])[hook], hook, chosen, head),
        labels,
        _inputs_of_label(label, label_of, tokens.cpu(), chosen, task, labels),
        _ids(tokens[:, : task.prompt_length if task is not None else seen.shape[1]].cpu()),
    )


def _of_batch(
    model: Any,
    batch: Batch,
    label: Label,
    hook: str,
    rows: Sequence[int] | None,
    head: int | None,
    label_of: Callable[[Any], Tensor | np.ndarray] | None,
) -> _Asked:
    """Of data that are no tokens: nothing is known of what a label is a function of."""
    activation = activations(model, batch.inputs, [hook])[hook]
    chosen = checked_rows(rows, activation.shape[position_axis(hook)])
    index = torch.tensor(chosen)
    given = batch.to("cpu")
    if callable(label):
        name, values = _called(label, given)
    elif label == "position":
        name, values = label, index.expand(len(batch), -1)
    elif label == "output" and not given.targets.is_floating_point():
        name, values = label, given.targets[:, index]
    else:
        raise UserError(
            f"label: expected position, output (where targets are integers), or a function of the batch that returns "
            f"integers (bins of its real numbers, say), got {label!r} for a {type(batch).__name__}"
        )
    labels = _checked_labels(values, len(batch), len(chosen))
    inputs = None if label_of is None else _given_inputs(label_of(given), labels)
    groups = _ids(given.inputs.flatten(1))
    return _Asked(name, _features(activation, hook, chosen, head), labels, inputs, groups)


def _inputs_of_label(
    label: Label,
    label_of: Callable[[Tensor], Tensor | np.ndarray] | None,
    tokens: Tensor,
    rows: Sequence[int],
    task: Task | None,
    labels: np.ndarray,
) -> np.ndarray | None:
    """Integers `[batch, row]`, equal where what the label is a function of is equal; None where that is not known."""
    if label_of is not None:
        return _given_inputs(label_of(tokens), labels)
    if callable(label) or label == "position":
        return None
    if label == "input":
        return labels
    if task is not None and (targets := task.attention_targets(tokens)):
        target = targets[0]
        if all(row in target.rows for row in rows):
            mask = target.mask[:, [target.rows.index(row) for row in rows]].cpu()
            terms = _on(mask, tokens[:, : task.n_input])
            # A sum's operands have no order; a control that depends on their order would be harder than the label.
            for given in (terms.sort(dim=-1).values, terms):
                found = _ids(given).reshape(labels.shape)
                if is_function_of(labels, found):
                    return found
    seen = torch.arange(tokens.shape[1] - 1) <= torch.tensor(list(rows))[:, None]
    prefix = torch.where(seen, tokens[:, None, :-1], -1)
    found = _ids(prefix.flatten(0, 1)).reshape(labels.shape)
    return found if is_function_of(labels, found) else None


def _given_inputs(values: Tensor | np.ndarray, labels: np.ndarray) -> np.ndarray:
    given = torch.as_tensor(values)
    if given.dim() not in (2, 3) or given.shape[:2] != labels.shape or given.is_floating_point():
        raise UserError(
            f"label_of: expected integers {list(labels.shape)} or with one axis more, got {given.dtype} "
            f"{list(given.shape)}"
        )
    return _ids(given.reshape(labels.size, -1)).reshape(labels.shape)


def _on(mask: Tensor, tokens: Tensor) -> Tensor:
    """The tokens where the mask is True, in order, −1 after them: `[batch · row, n_input]`."""
    mask = mask.expand(len(tokens), -1, -1)
    first = (~mask).int().argsort(dim=-1, stable=True)
    values = tokens[:, None].expand_as(mask)
    return torch.where(mask, values, -1).gather(-1, first).flatten(0, 1)


def _ids(rows: Tensor) -> np.ndarray:
    """A number for each row, equal for equal rows."""
    return rows.unique(dim=0, return_inverse=True)[1].numpy()


def _features(activation: Tensor, hook: str, rows: Sequence[int], head: int | None) -> np.ndarray:
    """`[batch, row, width]`."""
    axis, heads = position_axis(hook), head_axis(hook)
    if head is not None:
        n_heads = 0 if heads is None else activation.shape[heads]
        if heads is None or not 0 <= head < n_heads:
            raise UserError(f"{hook}: expected a head below {n_heads}, got {head}")
        activation = activation.narrow(heads, head, 1)
    picked = activation.movedim(axis, 1)[:, list(rows)]
    return picked.flatten(2).float().cpu().numpy()


def _labels(label: Label, tokens: Tensor, rows: Sequence[int], task: Task | None) -> tuple[str, np.ndarray]:
    tokens = tokens.cpu()
    index = torch.tensor(list(rows))
    if callable(label):
        name, values = _called(label, tokens)
    elif label == "input":
        name, values = label, tokens[:, index]
    elif label == "output":
        name, values = label, TokenBatch(tokens).targets[:, index]
    elif label == "position":
        name, values = label, index.expand(len(tokens), -1)
    elif label == "window_sum":
        name, values = label, _window_sums(tokens, rows, task)
    else:
        raise UserError(
            f"label: expected one of {', '.join(LABELS)}, or a function of the tokens; got {label!r}"
        )
    return name, _checked_labels(values, len(tokens), len(rows))


def _called(label: Callable[[Any], Tensor | np.ndarray], data: Tensor | Batch) -> tuple[str, Tensor]:
    """A function's name, and what it says of the data."""
    name, given = getattr(label, "__name__", "label"), label(data)
    try:
        return name, torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"label: expected {name} to return integers, got {type(given).__name__}") from None


def _checked_labels(values: Tensor, n: int, n_rows: int) -> np.ndarray:
    if tuple(values.shape) != (n, n_rows) or values.is_floating_point():
        raise UserError(
            f"label: expected integers [{n}, {n_rows}] (batch, rows), got {values.dtype} {list(values.shape)}"
        )
    return values.numpy()


def _window_sums(tokens: Tensor, rows: Sequence[int], task: Task | None) -> Tensor:
    if task is None:
        raise UserError("label: window_sum is the sum over a task's Ω; give the task")
    targets = task.attention_targets(tokens)
    if not targets:
        raise UserError(f"label: window_sum is the sum over a task's Ω; {task.name} states none")
    target = targets[0]
    if missing := [row for row in rows if row not in target.rows]:
        raise UserError(f"rows: window_sum is defined at the rows of Ω, {list(target.rows)}; got {missing}")
    mask = target.mask[:, [target.rows.index(row) for row in rows]].cpu()
    sums = (tokens[:, None, : task.n_input] * mask).sum(-1)
    modulus = getattr(task, "p", None)
    return sums if modulus is None else sums % modulus
