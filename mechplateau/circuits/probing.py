"""Probes of a model's activations: what can be read at a place, and when in training it appears.

At any hook point, for any label, with a linear probe, a small MLP or both, train and test split by prompt, a shuffled
control and a control task (the probe itself: `mechplateau.metrics.probe`). Over checkpoints:
`over_run(run, probe, tokens, "output", hook="blocks.0.hook_attn_out", task=run.task)`.

Look at `selectivity` first. A probe that reads a random label of the same inputs as well as the label (selectivity near
0) has computed the label by itself from inputs that are there: an MLP adds two numbers that it can read. It then says
that the inputs are there, not that the model has computed anything. A linear probe has less to compute with.

Cost: one forward, and 1 + 2 · draws fits, 7 as a rule: seconds (linear, some thousand rows) to minutes (MLP) each. A
probe shows what is there, not what is used: for that, ablate or patch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

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
from mechplateau.objectives import TokenBatch

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

    from mechplateau.tasks import Task

LABELS = ("input", "output", "window_sum", "position")
Label = str | Callable[[Tensor], Tensor | np.ndarray]


@torch.no_grad()
def probe(
    model: HookedTransformer,
    tokens: Int[Tensor, "batch seq"],
    label: Label,
    *,
    hook: str,
    task: Task | None = None,
    rows: Sequence[int] | None = None,
    head: int | None = None,
    kind: str | Sequence[str] = "linear",
    n_train: int | None = None,
    label_of: Callable[[Tensor], Tensor | np.ndarray] | None = None,
    **options: object,
) -> pd.DataFrame:
    """Probe one activation for one label.

    Args:
        model: any HookedTransformer.
        tokens: whole sequences, some hundred.
        label: what to read, at each row: "input" (the token there), "output" (the next token), "window_sum" (the
            sum of the tokens on the task's first Ω of that row, modulo its p where it has one), "position", or a
            function of the whole sequences to integers `[batch, rows]`.
        hook: the activation; all axes but batch and position (of the query) are read together.
        task: gives the rows and Ω; needed for "window_sum".
        rows: positions; None: the task's output rows, or all positions without a task.
        head: read this head only.
        kind: "linear", "mlp", or both as a list.
        n_train: sequences to train on, the first; None: half. Of the others, those are tested on whose prompt (with
            a task; else whole input) is not trained on.
        label_of: what the label is a function of, for the control task: from whole sequences to integers
            `[batch, rows]` or `[batch, rows, k]`. None: the token for "input"; the tokens on the first Ω for
            "output" and "window_sum" where they decide it, else all tokens up to the row; nothing for "position"
            and functions, whose selectivity is then undefined.
        options: as for `fit_probe`.

    Returns:
        one line a kind: hook, head, label, kind, and all of `ProbeResult`.

    Raises:
        UserError: no such hook or label, tokens that are not the task's, or what `fit_probe` refuses.
    """
    inputs = inputs_of(model, tokens)
    if task is not None:
        require_task_of(tokens, task)
    if rows is None and task is not None:
        rows = task.output_rows
    chosen = checked_rows(rows, inputs.shape[1])
    name, labels = _labels(label, tokens, chosen, task)
    features = _features(activations(model, inputs, [hook])[hook], hook, chosen, head)
    if unknown := set(options) - set(inspect.signature(fit_probe).parameters):
        raise UserError(f"{', '.join(sorted(unknown))}: no option of probe or fit_probe")
    options = {
        "inputs": _inputs_of_label(label, label_of, tokens.cpu(), chosen, task, labels),
        "groups": _ids(tokens[:, : task.prompt_length if task is not None else inputs.shape[1]].cpu()),
        **options,
    }
    kinds = (kind,) if isinstance(kind, str) else tuple(kind)
    lines = []
    for each in kinds:
        result = fit_probe(features, labels, kind=each, n_train=n_train, **options)  # type: ignore[arg-type]
        lines.append({"hook": hook, "head": head, "label": name, "kind": each, **asdict(result)})
    undefined = ("shuffled_accuracy", "shuffled_sd", "control_accuracy", "control_sd", "selectivity")
    return pd.DataFrame(lines).astype({"head": "Int64", **dict.fromkeys(undefined, "Float64")})


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
        given = torch.as_tensor(label_of(tokens))
        if given.dim() not in (2, 3) or given.shape[:2] != labels.shape or given.is_floating_point():
            raise UserError(
                f"label_of: expected integers {list(labels.shape)} or with one axis more, got {given.dtype} "
                f"{list(given.shape)}"
            )
        return _ids(given.reshape(labels.size, -1)).reshape(labels.shape)
    if callable(label) or label == "position":
        return None
    if label == "input":
        return labels
    if task is not None and (targets := task.attention_targets(tokens)):
        target = targets[0]
        if all(row in target.rows for row in rows):
            mask = target.mask[:, [target.rows.index(row) for row in rows]].cpu()
            found = _ids(_on(mask, tokens[:, : task.n_input])).reshape(labels.shape)
            if is_function_of(labels, found):
                return found
    seen = torch.arange(tokens.shape[1] - 1) <= torch.tensor(list(rows))[:, None]
    prefix = torch.where(seen, tokens[:, None, :-1], -1)
    return _ids(prefix.flatten(0, 1)).reshape(labels.shape)


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
        name, given = getattr(label, "__name__", "label"), label(tokens)
        try:
            values = torch.as_tensor(given)
        except (TypeError, ValueError, RuntimeError):
            raise UserError(
                f"label: expected {name} to return integers, got {type(given).__name__}"
            ) from None
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
    if tuple(values.shape) != (len(tokens), len(rows)) or values.is_floating_point():
        raise UserError(
            f"label: expected integers [{len(tokens)}, {len(rows)}] (batch, rows), got {values.dtype} "
            f"{list(values.shape)}"
        )
    return name, values.numpy()


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
