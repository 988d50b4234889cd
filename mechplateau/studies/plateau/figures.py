"""The paper's figures: which runs each shows, and which measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mechplateau.errors import UserError
from mechplateau.studies.plateau.recipes import RECIPES, Scale

SIGNS = ("loss", "accuracy", "repetition", "apm", "cos")
TOKENS = ("loss", "accuracy", "repetition", "entropy", "apm", "cos")


@dataclass(frozen=True)
class FigureSpec:
    """One figure.

    Attributes:
        number: in the paper; from 101 on, figures of our own.
        title: what it shows.
        recipes: the runs, in the order of the legend.
        panels: measures, one panel each: loss, accuracy, outputs (accuracy of each), repetition, entropy, apm, cos,
            alpha, counts, places (COS at every place), probe.
        ours: what in it is our choice, where the paper gives no value.
    """

    number: int
    title: str
    recipes: tuple[str, ...]
    panels: tuple[str, ...] = SIGNS
    ours: str = ""

    def cost(self, scale: Scale, seeds: Sequence[int]) -> int:
        """Updates of all its runs, at most."""
        return sum(RECIPES[name].steps(scale) for wave in waves(self.recipes, seeds) for name, _ in wave)


def needed(recipes: Sequence[str]) -> tuple[str, ...]:
    """These recipes and those that they start from, sources first."""
    ordered: dict[str, None] = {}
    for name in recipes:
        if (start := RECIPES[name].start) is not None:
            ordered.setdefault(start[0])
        ordered.setdefault(name)
    return tuple(ordered)


def waves(
    recipes: Sequence[str], seeds: Sequence[int]
) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """The runs (recipe, seed) that these recipes take with these seeds: those that start from nothing, among them
    what others start from, and then the others."""
    everything = needed(recipes)
    first = [(name, seed) for name in everything if RECIPES[name].start is None for seed in seeds]
    second = [(name, seed) for name in everything if RECIPES[name].start is not None for seed in seeds]
    for name, seed in second:
        source = RECIPES[name].source(seed)
        if source is not None and source not in first:
            first.append(source)
    return first, second


_SIZES = "sizes are ours"
_SETTINGS = "the value is ours"
_CONCAT = tuple(name for name in RECIPES if name.startswith("concat-"))

_SPECS = (
    FigureSpec(2, "Moving window sum: the plateau and its signs", ("mws",), (*TOKENS, "outputs")),
    FigureSpec(3, "Attention scale above 1", ("mws", "mws-c2.5", "mws-c10")),
    FigureSpec(4, "Attention scale below 1", ("mws", "mws-c0.5", "mws-c0.2")),
    FigureSpec(
        5,
        "Optimal initialization, frozen",
        ("mws", *(name for name in RECIPES if name.startswith("mws-init-"))),
    ),
    FigureSpec(6, "Prefix sum", ("prefix",), TOKENS),
    FigureSpec(
        7,
        "Repeat: 1, 2 and 4 blocks",
        ("repeat-1", "repeat-2", "repeat-4"),
        ("loss", "accuracy", "alpha", "cos", "apm"),
    ),
    FigureSpec(9, "Addition, least significant digit first", ("addition",), (*TOKENS, "outputs")),
    FigureSpec(10, "Addition, most significant digit first", ("addition-plain",), (*TOKENS, "outputs")),
    FigureSpec(11, "Prefix sum: attention and outputs", ("prefix",), ("loss", "apm", "outputs")),
    FigureSpec(12, "Prefix sum of permutations", ("prefix-no-repeat",), (*TOKENS, "outputs")),
    FigureSpec(13, "Permutation", ("permutation",), (*TOKENS, "counts")),
    FigureSpec(
        14,
        "Permutation, applied 2, 3 and 4 times",
        ("permutation-2", "permutation-3", "permutation-4"),
        (*SIGNS, "counts"),
    ),
    FigureSpec(15, "Histogram", ("histogram",), ("loss", "accuracy", "repetition", "entropy")),
    FigureSpec(16, "Histogram: attention and hidden states", ("histogram",), ("loss", "apm", "cos")),
    FigureSpec(17, "Reverse", ("reverse",), TOKENS),
    FigureSpec(18, "Copy", ("copy",), TOKENS),
    FigureSpec(19, "Concatenated windows", _CONCAT),
    FigureSpec(
        20, "What a probe reads from attention's output", ("mws-probe",), ("loss", "accuracy", "probe")
    ),
    FigureSpec(21, "Repeat, 2 blocks", ("repeat-2",), ("loss", "accuracy", "alpha", "cos", "outputs")),
    FigureSpec(22, "Repeat, 4 blocks", ("repeat-4",), ("loss", "accuracy", "alpha", "cos", "outputs")),
    FigureSpec(
        26, "Other lengths and windows", ("mws", "mws-n8", "mws-n24", "mws-k3", "mws-k4"), ours=_SIZES
    ),
    FigureSpec(27, "Other moduli", ("mws", "mws-p19", "mws-p23"), ours=_SIZES),
    FigureSpec(
        28,
        "Other widths and heads",
        ("mws", "mws-width64", "mws-width128", "mws-heads2", "mws-heads4"),
        ours=_SIZES,
    ),
    FigureSpec(29, "More layers", ("mws", "mws-layers2", "mws-layers3"), ours=_SIZES),
    FigureSpec(30, "Softmax attention", ("mws-softmax",)),
    FigureSpec(
        31,
        "SGD",
        ("mws-sgd-lr0.03", "mws-sgd-lr0.1", "mws-sgd-lr0.3", "mws-sgd-lr1"),
        ours="learning rates are ours; the authors' 1e-4 does not move",
    ),
    FigureSpec(32, "Muon", ("mws-muon",), ("loss", "accuracy", "repetition")),
    FigureSpec(33, "Muon: attention and hidden states", ("mws-muon",), ("loss", "apm", "cos")),
    FigureSpec(34, "Warm-up", ("mws", "mws-warmup")),
    FigureSpec(35, "Warm-up, then cosine", ("mws", "mws-warmup-cosine")),
    FigureSpec(36, "Batches of 64", ("mws", "mws-batch64"), ours=_SETTINGS),
    FigureSpec(37, "Batches of 512", ("mws", "mws-batch512"), ours=_SETTINGS),
    FigureSpec(38, "A lower learning rate", ("mws", "mws-lr3e-05"), ours=_SETTINGS),
    FigureSpec(39, "A higher learning rate", ("mws", "mws-lr0.0003"), ours=_SETTINGS),
    FigureSpec(40, "AdamW with decay", ("mws", "mws-adamw"), ours=_SETTINGS),
    FigureSpec(41, "Hidden states at every place, 1 layer", ("mws-locations",), ("loss", "cos", "places")),
    FigureSpec(42, "Hidden states at every place, 2 layers", ("mws-locations-2",), ("loss", "cos", "places")),
    FigureSpec(
        43,
        "Attention scale 10, switched on later",
        ("mws", "mws-c10", "mws-c10-from25", "mws-c10-from50", "mws-c10-from75", "mws-c10-from100"),
    ),
    FigureSpec(
        101,
        "Parts frozen at random",
        ("mws", *(name for name in RECIPES if name.startswith("mws-frozen-"))),
        ours="the paper tells of these runs without a figure; the number is ours",
    ),
    FigureSpec(
        102,
        "Attention progress as a training signal",
        ("mws-reward0", "mws-reward0.1", "mws-reward1"),
        ours="not in the paper; the number is ours",
    ),
)

FIGURES: Mapping[int, FigureSpec] = {spec.number: spec for spec in _SPECS}

_SERIES = ("pythia-14m", "pythia-1b", "pythia-1.4b", "pythia-2.8b", "olmo2-7b")
LANGUAGE_MODELS: Mapping[int, tuple[str, ...]] = {
    8: tuple(f"mechplateau llm {name}" for name in _SERIES),
    23: ("mechplateau llm pythia-14m",),
    24: ("mechplateau llm pythia-1b",),
    25: ("mechplateau llm olmo2-7b",),
}
"""Figures of language models, which are not trained here → the commands that measure them."""


def figure_spec(number: int) -> FigureSpec:
    """The figure of that number.

    Raises:
        UserError: there is none, or it is one of language models.
    """
    if number in LANGUAGE_MODELS:
        raise UserError(
            f"figure {number}: shows language models, whose checkpoints are downloaded, not trained; run "
            f"{' or '.join(f'`{command}`' for command in LANGUAGE_MODELS[number])}, or `mechplateau llm demo` for one "
            "that needs no network"
        )
    if number not in FIGURES:
        known = ", ".join(str(known) for known in FIGURES)
        raise UserError(f"figure {number}: expected one of {known}")
    return FIGURES[number]
