"""Put something else in place of a head's attention pattern, and see what is lost.

| mode | the pattern becomes | what stays |
|---|---|---|
| `mean` | its mean over the batch, for each query | where the head looks on average, whatever the input |
| `uniform` | the same weight on every key that the query may see | nothing of where it looks |
| `zero` | 0 | nothing: the head writes its output bias only |

A head that always looks at the same places (at the other cells of its row, say) loses nothing by `mean`: that its mean
ablation does nothing does not say that the head is not needed. Show `uniform` beside it. (The released code of arXiv
2410.22244 calls `mean` uniform.)

Cost: one forward a group and mode, plus one. For heads' outputs instead of their patterns: `ablate_heads`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechplateau.circuits.editing import run_edited
from mechplateau.circuits.scoring import seen_by
from mechplateau.errors import UserError

MODES = ("mean", "uniform", "zero")

Heads = Sequence[tuple[int, int]]
Measure = Callable[[Tensor], Mapping[str, float]]
"""Numbers of a model's outputs, such as the three losses of `completion_losses`."""


@torch.no_grad()
def run_with_patterns(
    model: Any, inputs: Int[Tensor, "batch pos"], heads: Heads, mode: str
) -> Float[Tensor, "batch pos *rest"]:
    """The model's outputs with the patterns of these heads replaced, all at once.

    Args:
        model: any hooked transformer or encoder.
        inputs: what the model sees.
        heads: (layer, head) pairs.
        mode: one of `MODES`.

    Raises:
        UserError: no such mode or head, no head, or `mean` with a single sequence, whose mean is itself.
    """
    by_layer = _by_layer(model, heads)
    inputs = seen_by(model, inputs)
    if mode not in MODES:
        raise UserError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")
    if mode == "mean" and len(inputs) < 2:
        raise UserError("mode: the mean over a single sequence is itself; expected at least 2 sequences")
    causal = getattr(model.cfg, "attention_dir", "causal") == "causal"

    def editor(chosen: list[int]) -> Callable[[Tensor], Tensor]:
        def edit(pattern: Tensor) -> Tensor:
            edited = pattern.clone()
            edited[:, chosen] = _replacement(pattern[:, chosen], mode, causal)
            return edited

        return edit

    return run_edited(
        model,
        inputs,
        [(f"blocks.{layer}.attn.hook_pattern", editor(chosen)) for layer, chosen in by_layer.items()],
    )


def ablate_patterns(
    model: Any,
    inputs: Int[Tensor, "batch pos"],
    measure: Measure,
    *,
    groups: Mapping[str, Heads] | None = None,
    modes: Sequence[str] = MODES,
) -> pd.DataFrame:
    """Ablate groups of heads, one after the other, in each mode.

    Args:
        model: any hooked transformer or encoder.
        inputs: what the model sees.
        measure: what is looked at.
        groups: name → (layer, head) pairs that go together; None: every head by itself, and every layer.
        modes: some of `MODES`.

    Returns:
        one line a group and mode: group, mode, and the numbers of `measure`; first the model as it is (group "none").

    Raises:
        UserError: as `run_with_patterns`.
    """
    if groups is None:
        layers = {
            f"L{layer}": [(layer, head) for head in range(model.cfg.n_heads)]
            for layer in range(model.cfg.n_layers)
        }
        groups = {f"L{a}H{b}": [(a, b)] for heads in layers.values() for a, b in heads} | layers
    with torch.no_grad():
        lines: list[dict[str, Any]] = [
            {"group": "none", "mode": "", **measure(model(seen_by(model, inputs)))}
        ]
    for name, heads in groups.items():
        for mode in modes:
            lines.append(
                {"group": name, "mode": mode, **measure(run_with_patterns(model, inputs, heads, mode))}
            )
    return pd.DataFrame(lines)


def _by_layer(model: Any, heads: Heads) -> dict[int, list[int]]:
    n_layers, n_heads = model.cfg.n_layers, model.cfg.n_heads
    found: dict[int, list[int]] = {}
    for pair in heads:
        layer, head = pair
        if not (0 <= layer < n_layers and 0 <= head < n_heads):
            raise UserError(
                f"heads: expected layers below {n_layers} and heads below {n_heads}, got {tuple(pair)}"
            )
        found.setdefault(layer, []).append(head)
    if not found:
        raise UserError("heads: expected at least one pair (layer, head), got none")
    return found


def _replacement(pattern: Float[Tensor, "batch head query key"], mode: str, causal: bool) -> Tensor:
    if mode == "zero":
        return torch.zeros_like(pattern)
    if mode == "mean":
        return pattern.mean(dim=0, keepdim=True).expand_as(pattern)
    allowed = torch.ones(pattern.shape[-2:], dtype=pattern.dtype, device=pattern.device)
    if causal:
        allowed = allowed.tril()
    return (allowed / allowed.sum(-1, keepdim=True)).expand_as(pattern)


__all__ = ["MODES", "ablate_patterns", "run_with_patterns"]
