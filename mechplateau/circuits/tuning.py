"""Frequencies of an MLP's neurons over a sum modulo p: which one each has, how much of it, and at which phases.

For tasks whose outputs are sums modulo p (`summands`). A neuron's tuning curve is its mean activation for each value of
the sum; its frequency is that with the largest share of the curve's variance (`metrics.frequencies`). Compare with two
controls: `chance`, the largest share of noise, and `control_share`, over a sum of tokens that were renamed at random,
with frequencies chosen anew. A neuron that reads waves of single terms, cos(2π q t_j / p − in), and bends their sum as
a square does, responds with a wave of the sum at 2 · in, so its output should have that phase over the answers (of k
terms, which take a k-th power, k · in).

The embeddings' own spectrum (`token_spectrum`) is no control: embeddings that are orthogonal to each other have a flat
one, also where all that is read off them are waves.

Cost: one forward, and some small fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechplateau.circuits.patching import activations
from mechplateau.circuits.scoring import inputs_of
from mechplateau.circuits.sum_terms import summands
from mechplateau.errors import UserError
from mechplateau.metrics.frequencies import (
    circular_mean,
    mean_by_residue,
    spectrum,
    sum_share,
    term_phases,
    waves,
)
from mechplateau.schema import whole_number

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

    from mechplateau.tasks import Task


@torch.no_grad()
def neuron_tuning(
    model: HookedTransformer,
    tokens: Int[Tensor, "batch seq"],
    task: Task,
    *,
    layer: int | None = None,
    permutations: int = 3,
    seed: int = 0,
) -> pd.DataFrame:
    """Each neuron's frequency over the sum, its share, its phases, and the controls.

    Args:
        model: a HookedTransformer with MLPs.
        tokens: whole sequences, some hundred.
        task: one of sums modulo p.
        layer: whose MLP; None: the last.
        permutations: of the tokens' names, for the control.
        seed: of the permutations.

    Returns:
        one line a neuron: neuron, frequency, share (of the tuning curve's variance, at that frequency), control_share
        (the same over sums of renamed tokens, mean over permutations), chance (of noise), in_phase (of the neuron's
        input as a sum of one wave of each term), out_phase (of what it adds to the logits of the answers, before the
        final norm's scale), terms (k), all at that frequency. Null where its curve is constant or not a number.

    Raises:
        UserError: what `summands` refuses, no such layer, a model without an MLP, or too few permutations.
    """
    found = summands(task, tokens)
    if whole_number(permutations, "permutations") < 1:
        raise UserError(f"permutations: expected at least 1, got {permutations}")
    layer = mlp_layer(model, layer)
    hooks = [f"blocks.{layer}.mlp.hook_pre", f"blocks.{layer}.mlp.hook_post"]
    kept = activations(model, inputs_of(model, tokens), hooks)
    before, after = (kept[hook][:, list(found.rows)].flatten(0, 1).cpu() for hook in hooks)
    tuned = waves(mean_by_residue(after, found.sums.flatten(), found.p))
    frequency = tuned.strongest
    controls = [
        waves(mean_by_residue(after, renamed.sums.flatten(), found.p)).shares.amax(dim=0)
        for renamed in (found.permuted(seed + draw) for draw in range(permutations))
    ]
    written = waves(_answers(model, layer, found.p))
    table = pd.DataFrame(
        {
            "neuron": range(after.shape[1]),
            "frequency": frequency.numpy(),
            "share": tuned.shares.amax(dim=0).numpy(),
            "control_share": torch.stack(controls).mean(dim=0).numpy(),
            "chance": chance_share(found.p),
            "in_phase": term_phases(before, found.terms.flatten(0, 1), frequency, found.p).numpy(),
            "out_phase": written.phases(frequency).numpy(),
            "terms": found.terms.shape[2],
        }
    )
    numbers = ("share", "control_share", "in_phase", "out_phase")
    table = table.astype({"frequency": "Int64", **dict.fromkeys(numbers, "Float64")})
    table.loc[table["frequency"] == 0, "frequency"] = pd.NA
    return table


def chance_share(p: int) -> float:
    """The largest of n shares of noise, in the mean: (1 + 1/2 + … + 1/n) / n with n = (p − 1) / 2."""
    n = max(1, (p - 1) // 2)
    return sum(1 / i for i in range(1, n + 1)) / n


def phase_lock(tuning: pd.DataFrame) -> tuple[float | None, float | None]:
    """Over neurons: the length R of the mean of e^{i (out_phase − k · in_phase)}, and its part along 0.

    R near 1: output phases are k times input phases, up to one common shift; the second as well: that shift is 0. By
    chance R is about 0.89 / √neurons. None where no neuron has both phases.

    Args:
        tuning: from `neuron_tuning`.
    """
    phases = tuning[["in_phase", "out_phase"]].astype(float)
    shift = phases["out_phase"] - tuning["terms"] * phases["in_phase"]
    return circular_mean(torch.tensor(shift.to_numpy(), dtype=torch.float64))


@torch.no_grad()
def logits_of_the_sum(model: HookedTransformer, tokens: Int[Tensor, "batch seq"], task: Task) -> float | None:
    """The share of the logits' variance over the answers 0 … p − 1 that is Σ_q w_q cos(2π q (sum − answer) / p).

    Defined in `metrics.frequencies.sum_share`, with its caution: a table of right answers has 1 as well. What is below
    1 is what else logits say, and what the strength of the right answer differs by between sequences.

    Raises:
        UserError: what `summands` refuses.
    """
    found = summands(task, tokens)
    logits = model(inputs_of(model, tokens))[:, list(found.rows), : found.p]
    return sum_share(logits.flatten(0, 1).cpu(), found.sums.flatten())


@torch.no_grad()
def token_spectrum(vectors: Float[Tensor, "residue unit"]) -> pd.DataFrame:
    """The spectrum of vectors, one a number, of all their coordinates together.

    Args:
        vectors: `model.W_E[:p]`, say, or a place of `token_contributions`; a row of NaN: not known.

    Returns:
        one line a frequency: frequency, share (null where vectors do not differ), flat (1 / (p // 2): of vectors at
        random or orthogonal to each other).

    Raises:
        UserError: fewer than 3 vectors.
    """
    if vectors.dim() != 2 or len(vectors) < 3:
        raise UserError(f"vectors: expected [p, unit] with p of at least 3, got {list(vectors.shape)}")
    shares = spectrum(vectors.detach().cpu())
    table = pd.DataFrame({"frequency": range(1, len(shares) + 1), "share": shares.numpy()})
    return table.assign(flat=1 / len(shares)).astype({"share": "Float64"})


def mlp_layer(model: HookedTransformer, layer: int | None) -> int:
    """The given layer, or the last.

    Raises:
        UserError: no such layer, or a model without MLPs.
    """
    n_layers = model.cfg.n_layers
    if model.cfg.attn_only:
        raise UserError(
            "expected a model with MLPs, whose neurons have frequencies; this one has attention only"
        )
    if layer is None:
        return n_layers - 1
    if not 0 <= whole_number(layer, "layer") < n_layers:
        raise UserError(f"layer: expected one below {n_layers}, got {layer}")
    return layer


def _answers(model: HookedTransformer, layer: int, p: int) -> Float[Tensor, "answer neuron"]:
    """What a neuron adds to the logit of each answer, but for the scale of the final norm."""
    written = model.blocks[layer].mlp.W_out.double()
    norm = model.cfg.normalization_type
    if norm is not None and norm.startswith("LN"):
        written = written - written.mean(dim=1, keepdim=True)
    gain = getattr(getattr(model, "ln_final", None), "w", None)
    written = written if gain is None else written * gain.double()
    return (written @ model.unembed.W_U.double()[:, :p]).T.cpu()


__all__ = ["chance_share", "logits_of_the_sum", "mlp_layer", "neuron_tuning", "phase_lock", "token_spectrum"]
