"""Keep only one frequency of each neuron, or take it away, and see what is lost.

A neuron's frequency over the sum, and its waves, are found on one half of the sequences (`neuron_tuning`); on the other
half its activation h becomes

    keep      its mean + its waves        remove      h − its waves

so that "keep" leaves nothing else of the input. Which waves: of the "sum" alone (those of its tuning curve), or of the
"terms", all that this frequency can make of them (`metrics.frequencies.term_products`: of single terms, the sum, and
differences). The first measures the effect of the neuron's tuning, the second the effect of its frequency: without
the wave of the sum, the waves of single terms at that frequency still determine the sum, and a model may keep reading
it from them.

With three controls: the same over sums of renamed tokens, and another frequency of the same sum, drawn for each neuron.
(Keeping a wave of the sum puts the sum in; that another frequency of the same sum does not do as well shows that it
must be the neuron's own.)

Cost: one forward to fit, and one for each line of the table and draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechplateau.circuits.editing import run_edited
from mechplateau.circuits.patching import activations
from mechplateau.circuits.scoring import MEASURES, inputs_of, score, standard_error
from mechplateau.circuits.sum_terms import Summands, summands
from mechplateau.circuits.tuning import mlp_layer
from mechplateau.errors import UserError
from mechplateau.metrics.frequencies import Waves, mean_by_residue, term_products, waves
from mechplateau.schema import whole_number

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

    from mechplateau.tasks import Task

EDITS = ("keep", "remove")
OF = ("sum", "terms")
MOST_TERMS = 4
"""Of waves of the terms: 3^k − 1 to fit, 80 at four."""


@torch.no_grad()
def ablate_frequencies(
    model: HookedTransformer,
    tokens: Int[Tensor, "batch seq"],
    task: Task,
    *,
    of: str = "sum",
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
        of: the waves: of the "sum", or of the "terms", where these are at most 4.
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
            than 4 values in the first half, no draw, no such waves, or too many terms or too few sums for them.
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
    _check_waves(of, found, half)
    fitted = activations(model, inputs[:half], [hook])[hook][:, list(found.rows)].flatten(0, 1).cpu()
    scored, rest = tokens[half:], inputs[half:]
    plain = score(model(rest), scored, found.rows)
    lines = [_line("none", None, plain.each, [plain.each])]
    for edit in EDITS:
        for wave in ("own", "other", "renamed"):
            each = []
            for kept, means in _waves_of(fitted, found, wave, half, draws, seed, of):
                change = _edit(edit, found.rows, kept, means)
                each.append(score(run_edited(model, rest, [(hook, change)]), scored, found.rows).each)
            lines.append(_line(edit, wave, plain.each, each))
    numbers = ("loss", "accuracy", "loss_se", "accuracy_se", "accuracy_sd")
    return pd.DataFrame(lines).astype({"wave": "string", **dict.fromkeys(numbers, "Float64")})


def _check_waves(of: str, found: Summands, half: int) -> None:
    if of not in OF:
        raise UserError(f"of: expected {' or '.join(OF)}, got {of!r}")
    terms, fitted = found.terms.shape[2], half * len(found.rows)
    if of == "terms" and terms > MOST_TERMS:
        raise UserError(
            f"of: expected sums of at most {MOST_TERMS} terms for waves of the terms, got {terms}"
        )
    if of == "terms" and fitted < 2 * 3**terms:
        raise UserError(
            f"tokens: expected at least {2 * 3**terms} sums in the first half for waves of {terms} terms, "
            f"got {fitted}; give more"
        )


def _waves_of(
    fitted: Tensor, found: Summands, wave: str, half: int, draws: int, seed: int, of: str
) -> Iterator[tuple[Float[Tensor, "sequence row unit"], Float[Tensor, " unit"]]]:
    """For each draw: the waves of each neuron where it is scored, and its mean."""
    for draw in range(1 if wave == "own" else draws):
        named = found.permuted(seed + draw) if wave == "renamed" else found
        fits = waves(mean_by_residue(fitted, named.sums[:half].flatten(), named.p))
        frequency = _frequency(fits, wave, seed + draw)
        if of == "sum":
            yield fits.parts(frequency)[named.sums[half:]], fits.means
        else:
            yield _of_terms(fitted, named, half, frequency), fitted.double().mean(dim=0)


def _frequency(fits: Waves, wave: str, seed: int) -> Int[Tensor, " unit"]:
    """Of each neuron; 0: none."""
    frequency = fits.strongest
    if wave != "other":
        return frequency
    number = len(fits.shares)  # at least 2, as p is at least 4
    shift = torch.randint(1, number, frequency.shape, generator=torch.Generator().manual_seed(seed))
    return torch.where(frequency > 0, (frequency - 1 + shift) % number + 1, 0)


def _of_terms(
    fitted: Tensor, named: Summands, half: int, frequency: Tensor
) -> Float[Tensor, "sequence row unit"]:
    """All that each neuron's frequency makes of the terms, fitted by least squares on the first half."""
    centered = fitted.double() - fitted.double().mean(dim=0)
    known, asked = (part.flatten(0, 1) for part in (named.terms[:half], named.terms[half:]))
    found = torch.zeros(len(asked), fitted.shape[1], dtype=torch.float64)
    for q in frequency.unique().tolist():
        if q == 0:
            continue
        chosen = frequency == q
        design = term_products(known, q, named.p)
        means = design.mean(dim=0)
        coefficients = torch.linalg.pinv(design - means, rtol=1e-9) @ centered[:, chosen]
        found[:, chosen] = (term_products(asked, q, named.p) - means) @ coefficients
    return found.view(-1, len(named.rows), fitted.shape[1])


def _edit(edit: str, rows: tuple[int, ...], waved: Tensor, means: Tensor) -> Callable[[Tensor], Tensor]:
    def change(post: Tensor) -> Tensor:
        waves = waved.to(post.device, post.dtype)
        edited = post.clone()
        if edit == "keep":
            edited[:, list(rows)] = waves + means.to(post.device, post.dtype)
        else:
            edited[:, list(rows)] -= waves
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
