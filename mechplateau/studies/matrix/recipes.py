"""What the study of matrix completion trains, at the paper's size and at the task's presets `tiny` and `small`.

`mc`, `mc-long` and `gpt` keep many checkpoints, for the figures that look inside; the others keep their first and
their last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mechplateau.schema import laid_over
from mechplateau.studies.recipes import Recipe, Settings, Source

TASK = "matrix_completion"
COMPONENTS = ("tokens", "positions", "embedding_ln", "attention", "mlp", "readout")
_CALLED = {"embedding_ln": "embedding norm", "mlp": "MLP", "readout": "read-out"}
_NARROW = {64: 16, 128: 32, 256: 48, 384: 96}
"""Widths of the paper's size, and those on a CPU, where the default is 64 instead of 768."""
CPU_SCALES = ("tiny", "small")
_ENDS: Settings = {"checkpoints": {"every": 10**6}}


def _recipe(
    name: str,
    what: str,
    settings: Settings | None = None,
    on_a_cpu: Settings | None = None,
    start: Source | None = None,
) -> Recipe:
    smaller = {scale: laid_over(_ENDS, on_a_cpu or {}) for scale in CPU_SCALES}
    return Recipe(name, TASK, what, laid_over(_ENDS, settings or {}), smaller, start)


def _scaled(c: float) -> Mapping[str, Any]:
    return {"interventions": [{"kind": "attention_scale", "c": c}]}


def _all_recipes() -> Iterable[Recipe]:
    yield Recipe("mc", TASK, "matrix completion", {"checkpoints": {"every": 1000}})
    # Half as long again: `small` needs it to come to its second plateau (figure 107).
    yield Recipe(
        "mc-long",
        TASK,
        "half as long again",
        {"checkpoints": {"every": 1000}, "training": {"steps": 75_000}},
        {"tiny": {"training": {"steps": 6000}}, "small": {"training": {"steps": 7500}}},
    )

    # Initial scale (figure 104): the paper's standard deviation is 0.02, the presets' 0.15.
    for name, factor in (("half", 0.5), ("two-thirds", 2 / 3), ("four-thirds", 4 / 3)):
        yield _recipe(
            f"init-{name}",
            f"initial weights × {factor:.2g}",
            {"model": {"init_std": round(0.02 * factor, 4)}},
            {"model": {"init_std": round(0.15 * factor, 4)}},
        )

    # Attention scaled on Ω (figure 105).
    yield _recipe("scale-3", "attention × 3 on Ω", _scaled(3.0), _scaled(3.0))
    yield _recipe("scale-half", "attention × 0.5 on Ω", _scaled(0.5), _scaled(0.5))

    # One component trained alone, all others as they were at the end (figure 8).
    for part in COMPONENTS:
        others = [other for other in COMPONENTS if other != part]
        start = Source("mc", {"kind": "optimal_init", "parts": others})
        yield _recipe(f"only-{part}", f"{_CALLED.get(part, part)} alone", start=start)

    # Width and depth (figures 13 and 14).
    for width, on_a_cpu in _NARROW.items():
        yield _recipe(
            f"width-{width}",
            f"width {width} (CPU {on_a_cpu})",
            {"model": {"d_model": width}},
            {"model": {"d_model": on_a_cpu}},
        )
    for depth in (2, 6):
        yield _recipe(
            f"layers-{depth}",
            {2: "fewer layers", 6: "more layers"}[depth],
            {"model": {"n_layers": depth}},
            {"model": {"n_layers": {2: 1, 6: 3}[depth]}},
        )

    # Several sizes at once, and factors with large entries, whose values need a wider range (figures 16 and 18).
    yield _recipe(
        "mixture",
        "several sizes",
        {"task": {"m": 9, "n": 9, "rank": 1, "mixture": [5, 7, 9]}},
        {"task": {"m": 4, "n": 4, "mixture": [3, 4]}},
    )
    gaussian: Settings = {"task": {"factors": "gaussian", "scale": 0.5}}
    wider: Settings = {"task": {"factors": "gaussian", "scale": 0.5, "value_max": 8}}
    yield _recipe("gaussian", "gaussian factors", gaussian, wider)

    # The same matrices as tokens, which a GPT writes (figures 11 and 12).
    often: Settings = {"evaluation": {"every": 10}, "checkpoints": {"every": 500}}
    yield Recipe("gpt", f"{TASK}_gpt", "a GPT", often)

    # Other ways to enter (ours): a norm before, a learned MASK, values instead of tokens, the loss on masked cells.
    yield _recipe("pre-ln", "norms before", {"model": {"norm": "pre"}}, {"model": {"norm": "pre"}})
    learned: Settings = {"model": {"mask_embedding": "learned"}}
    yield _recipe("learned-mask", "learned MASK", learned, learned)
    values: Settings = {"model": {"inputs": "continuous"}}
    yield _recipe("continuous", "values as they are", values, values)
    masked: Settings = {"task": {"loss_on": "masked"}}
    yield _recipe("masked-loss", "loss on masked cells only", masked, masked)


RECIPES = tuple(_all_recipes())
