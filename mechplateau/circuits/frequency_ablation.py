"""Keep only one frequency of each neuron, or take it away, and see what is lost.

A neuron's frequency over the sum, and its wave there, are found on one half of the sequences (`neuron_tuning`); on the
other half its activation h becomes

    keep      mean of its tuning curve + its wave, at the sequence's sum         remove      h − its wave

so that "keep" leaves nothing else of the input. With three controls: the same over sums of renamed tokens, and another
frequency of the same sum, drawn for each neuron. (Keeping a wave of the sum puts the sum in; that another frequency of
the same sum does not do as well shows that it must be the neuron's own.)

Cost: one forward to fit, and one for each line of the table and draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from mechplateau.circuits.editing import run_edited
from mechplateau.circuits.patching import activations
from mechplateau.circuits.scoring import MEASURES, inputs_of, score, standard_error
from mechplateau.circuits.sum_terms import Summands, summands
from mechplateau.circuits.tuning import mlp_layer
from mechplateau.errors import UserError
from mechplateau.metrics.frequencies import Waves, mean_by_residue, waves
from mechplateau.schema import whole_number

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

    from mechplateau.tasks import Task

EDITS = ("keep", "remove")


@torch.no_grad()
def ablate_frequencies(
    model: HookedTransformer,
    tokens: Int[Tensor, "batch seq"],
    task: Task,
    *,
    layer: int | None = None,
    draws: int = 3,
    seed: int = 0,
) -> pd.DataFrame:
    """Loss and accuracy with only its frequency kept in each neuron, and with that taken away.

    Args:
        model: a HookedTransformer with MLPs.
        tokens: whole sequences, some hundred; the first half is fitted, the other half scored, at the outputs that are
            sums.
        task: one of sums modulo p (see `summands`).
        layer: whose MLP; None: the last.
        draws: of the controls.
        seed: of the draws.

    Returns:
        one line an edit and wave: edit ("none", "keep", "remove"), wave ("own", "other": another frequency of the same
        sum, "renamed": over sums of renamed tokens; null for none), loss, accuracy, the standard errors over sequences
        of their change (`_se`; the controls' are means over draws), accuracy_sd (over draws), n (sequences scored).
        Null where logits are not numbers.

    Raises:
        UserError: what `summands` refuses, no such layer, a model without an MLP, fewer than 2 sequences, sums of fewer
            than 4 values in the first half, or no draw.
    """
    found, inputs = summands(task, tokens), inputs_of(model, tokens)
    if whole_number(draws, "draws") < 1:
        raise UserError(f"draws: expected at least 1, got {draws}")
    hook = f"blocks.{mlp_layer(model, layer)}.mlp.hook_post"
    half = len(tokens) // 2
    if half < 1 or len(found.sums[:half].unique()) < 4:
        raise UserError(
            "tokens: expected sequences whose first half has sums of at least 4 values; give more"
        )
    fitted = activations(model, inputs[:half], [hook])[hook][:, list(found.rows)].flatten(0, 1).cpu()
    scored, rest = tokens[half:], inputs[half:]
    plain = score(model(rest), scored, found.rows)
    lines = [_line("none", None, plain.each, [plain.each])]
    for edit in EDITS:
        for wave in ("own", "other", "renamed"):
            each = []
            for curves, sums in _waves_of(fitted, found, wave, half, draws, seed):
                change = _edit(edit, found.rows, *curves, sums)
                each.append(score(run_edited(model, rest, [(hook, change)]), scored, found.rows).each)
            lines.append(_line(edit, wave, plain.each, each))
    numbers = ("loss", "accuracy", "loss_se", "accuracy_se", "accuracy_sd")
    return pd.DataFrame(lines).astype({"wave": "string", **dict.fromkeys(numbers, "Float64")})


def _waves_of(
    fitted: Tensor, found: Summands, wave: str, half: int, draws: int, seed: int
) -> Iterator[tuple[tuple[Waves, Tensor], Tensor]]:
    """For each draw: the fits with a frequency for each neuron, and the sums of the sequences that are scored."""
    for draw in range(1 if wave == "own" else draws):
        named = found.permuted(seed + draw) if wave == "renamed" else found
        fits = waves(mean_by_residue(fitted, named.sums[:half].flatten(), named.p))
        frequency = fits.strongest
        if wave == "other":
            number = len(fits.shares)  # at least 2, as p is at least 4
            generator = torch.Generator().manual_seed(seed + draw)
            shift = torch.randint(1, number, frequency.shape, generator=generator)
            frequency = torch.where(frequency > 0, (frequency - 1 + shift) % number + 1, 0)
        yield (fits, frequency), named.sums[half:]


def _edit(
    edit: str, rows: tuple[int, ...], fits: Waves, frequency: Tensor, sums: Tensor
) -> Callable[[Tensor], Tensor]:
    parts = fits.parts(frequency)

    def change(post: Tensor) -> Tensor:
        waved = parts[sums].to(post.device, post.dtype)
        edited = post.clone()
        if edit == "keep":
            edited[:, list(rows)] = waved + fits.means.to(post.device, post.dtype)
        else:
            edited[:, list(rows)] -= waved
        return edited

    return change


def _line(edit: str, wave: str | None, plain: np.ndarray, draws: list[np.ndarray]) -> dict[str, object]:
    line: dict[str, object] = {"edit": edit, "wave": wave}
    n = plain.shape[1]
    mean = np.mean(draws, axis=0)
    errors = standard_error((mean - plain).mean(axis=2), axis=1)
    for i, name in enumerate(MEASURES[:2]):
        line |= {name: mean[i].mean(), f"{name}_se": errors[i]}
    accuracies = [each[1].mean() for each in draws]
    return {**line, "accuracy_sd": np.std(accuracies, ddof=1) if len(draws) > 1 else None, "n": n}


__all__ = ["ablate_frequencies"]
