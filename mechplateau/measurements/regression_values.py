"""What a regression model predicts, how its weights are spread and where its heads look, in numbers.

Every value is a 0-d tensor on the model's device. Contexts are fixed, the same at every step of every run of a task;
pairs are counted from 1, layers and heads from 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechplateau.measurements.language_values import weight_norm
from mechplateau.metrics import attending, regression, spectra
from mechplateau.tasks.in_context_regression import InContextRegression, RegressionBatch

_SEED = 20_240_202
CONTEXTS = 8192
"""Contexts of the fixed evaluation set."""
_AT_ONCE = 512
LOOKED_AT = 512
"""Those of them whose attention is looked at."""
_MOST_TASKS = 2**16
GAINS = ((1, 4), (4, 8))
"""Pairs a and b of the in-context gains I_{a:b}."""


@dataclass(frozen=True, eq=False)
class RegressionProbes:
    """Fixed contexts and the best predictions for them.

    Attributes:
        batch: contexts of the task.
        ridge: the ridge predictor's answers, `[context, pair]`.
        quiet: contexts whose noise has the variance σ⁴, as the authors' second set has (it takes σ² as a standard
            deviation); None where the noise is no less then.
        mean_task: t̄ of M tasks; None: 0.
        prior: the answers of who knows the M tasks, `[context, pair]`; None where `knows_prior` says no.
    """

    batch: RegressionBatch
    ridge: Float[Tensor, "context pair"]
    quiet: RegressionBatch | None
    mean_task: Float[Tensor, " d"] | None
    prior: Float[Tensor, "context pair"] | None


def knows_prior(task: InContextRegression) -> bool:
    """Whether there are known tasks, few enough to weigh all in seconds, and noise to weigh them by."""
    return task.n_tasks is not None and task.n_tasks <= _MOST_TASKS and task.noise > 0


def regression_probes(task: InContextRegression, device: torch.device | str = "cpu") -> RegressionProbes:
    """The probes of a task."""
    batch = task.batch(CONTEXTS, torch.Generator().manual_seed(_SEED)).to(device)
    assert isinstance(batch, RegressionBatch)
    quiet = None
    if 0 < task.noise < 1:
        less = (
            task.with_(noise=task.noise**2)
            .batch(CONTEXTS, torch.Generator().manual_seed(_SEED + 1))
            .to(device)
        )
        assert isinstance(less, RegressionBatch)
        quiet = less
    mean_task = None if task.n_tasks is None else task.tasks(device).mean(0)
    prior = task.finite_prior(batch) if knows_prior(task) else None
    return RegressionProbes(batch, task.ridge(batch), quiet, mean_task, prior)


@torch.no_grad()
def predictions(model: Any, probes: RegressionProbes) -> dict[str, Tensor | None]:
    """Errors, and how far the predictions are from known predictors.

    `mse_above_zero` is the error minus that of answering 0 on the same contexts: a fixed set's own error is off by more
    than the differences that matter early in training.
    """
    batch = probes.batch
    found = predicted(model, batch)
    errors = regression.squared_errors(found, batch.targets)
    zero = batch.targets.square().mean()
    values: dict[str, Tensor | None] = {
        "mse": errors.mean(),
        "mse_above_zero": errors.mean() - zero,
        **{f"mse_{k}": error for k, error in enumerate(errors, start=1)},
        "ridge_gap": regression.ridge_gap(found, probes.ridge),
        "task_prior_distance": regression.task_prior_distance(found, batch.x, probes.mean_task),
        **_norm_and_gains(found, errors),
    }
    if probes.prior is not None:
        values["prior_gap"] = regression.prior_gap(found, probes.prior)
    if probes.quiet is not None:
        found = predicted(model, probes.quiet)
        errors = regression.squared_errors(found, probes.quiet.targets)
        values |= {f"{name}_quiet": value for name, value in _norm_and_gains(found, errors).items()}
    return values


def predicted(model: Any, batch: RegressionBatch) -> Float[Tensor, "context pair"]:
    """ŷ of these contexts, in blocks that fit a processor's cache."""
    return torch.cat([model(inputs) for inputs in batch.inputs.split(_AT_ONCE)])


def _norm_and_gains(found: Tensor, errors: Tensor) -> dict[str, Tensor | None]:
    gains = {f"icl_{a}_{b}": regression.in_context_gain(errors, a, b) for a, b in GAINS}
    return {"prediction_norm": regression.prediction_norm(found), **gains}


@torch.no_grad()
def weights(model: Any) -> dict[str, Tensor | None]:
    """The spread of embeddings, LayerNorm gains and what the output reads of the stream."""
    values: dict[str, Tensor | None] = {"weight_norm": weight_norm(model)}
    spread = {"embed": model.embed.W_E, "positions": model.pos_embed.W_pos}
    for name, matrix in spread.items():
        shares = spectra.variance_shares(matrix)
        values |= {
            f"{name}_share_max": shares[0],
            f"{name}_share_min": shares[-1],
            f"{name}_effective_rank": spectra.effective_rank(shares),
        }
    rank = min(2, *(min(matrix.shape) for matrix in spread.values()))
    cosines = spectra.alignment(spread["embed"], spread["positions"], rank)
    values |= {f"alignment_{i}": cosine for i, cosine in enumerate(cosines, start=1)}
    norms = {"ln_final": model.ln_final}
    for layer, block in enumerate(model.blocks):
        norms |= {f"ln1_L{layer}": block.ln1, f"ln2_L{layer}": block.ln2}
    for name, norm in norms.items():
        values |= {f"{name}_{what}": value for what, value in spectra.gain_statistics(norm.w).items()}
    readout = spectra.effective_readout(model.unembed.W_U, model.ln_final.w)
    values |= {"readout_small": spectra.small_share(readout, 0.01), "readout_top": spectra.top_share(readout)}
    return values


@torch.no_grad()
def attention(model: Any, probes: RegressionProbes) -> dict[str, Tensor | None]:
    """Where heads look, from x tokens and from y tokens apart; the last token is left out."""
    inputs = probes.batch.inputs[:LOOKED_AT]
    _, cache = model.run_with_cache(inputs, names_filter=lambda name: name.endswith("hook_pattern"))
    values: dict[str, Tensor | None] = {}
    is_x = torch.arange(inputs.shape[1], device=inputs.device) % 2 == 0
    for layer in range(model.cfg.n_layers):
        pattern = cache[f"blocks.{layer}.attn.hook_pattern"]
        last = pattern.shape[2] - 1
        for kind, queries in (("x", range(0, last, 2)), ("y", range(1, last, 2))):
            rows = list(queries)
            if not rows:
                continue
            profile = attending.offset_profile(pattern, rows, min(4, last))
            found = {
                "entropy": attending.attention_entropy(pattern, rows),
                "variability": attending.attention_variability(pattern, rows),
                "to_x": attending.mass_on(pattern, rows, is_x),
                "to_y": attending.mass_on(pattern, rows, ~is_x),
                **{f"back_{offset}": profile[:, offset] for offset in range(profile.shape[1])},
            }
            for what, scores in found.items():
                values |= {f"{what}_{kind}_L{layer}H{head}": score for head, score in enumerate(scores)}
    return values


__all__ = [
    "CONTEXTS",
    "LOOKED_AT",
    "RegressionProbes",
    "attention",
    "predicted",
    "predictions",
    "regression_probes",
    "weights",
]
