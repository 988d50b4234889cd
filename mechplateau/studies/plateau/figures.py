"""The paper's figures: which runs each shows, and which measures. From 101 on, figures of our own."""

from __future__ import annotations

from collections.abc import Mapping

from mechplateau.studies.figures import CheckpointMeasure, Elsewhere, Figure
from mechplateau.studies.panels import Panel
from mechplateau.studies.plateau.panels import (
    ACCURACY,
    ALPHA,
    APM,
    COS,
    COUNTS,
    ENTROPY,
    LINEAR_PROBES,
    LOSS,
    OUTPUTS,
    PLACES,
    PROBE,
    REPETITION,
    SELECTIVITY,
    SIGNS,
    TOKENS,
)
from mechplateau.studies.plateau.probes import AttentionOutputProbe
from mechplateau.studies.plateau.recipes import RECIPES

_NAMES = tuple(recipe.name for recipe in RECIPES)
_SIZES = "sizes are ours"
_SETTINGS = "the value is ours"
_CONCAT = tuple(name for name in _NAMES if name.startswith("concat-"))


def _figure(
    id: str,
    title: str,
    recipes: tuple[str, ...],
    panels: tuple[Panel, ...] = SIGNS,
    checkpoints: CheckpointMeasure | None = None,
    ours: str = "",
) -> Figure:
    return Figure(id, title, recipes, panels, checkpoints, ours)


FIGURES = (
    _figure("2", "Moving window sum: the plateau and its signs", ("mws",), (*TOKENS, OUTPUTS)),
    _figure("3", "Attention scale above 1", ("mws", "mws-c2.5", "mws-c10")),
    _figure("4", "Attention scale below 1", ("mws", "mws-c0.5", "mws-c0.2")),
    _figure(
        "5",
        "Optimal initialization, frozen",
        ("mws", *(name for name in _NAMES if name.startswith("mws-init-"))),
    ),
    _figure("6", "Prefix sum", ("prefix",), (*TOKENS, OUTPUTS)),
    _figure(
        "7",
        "Repeat: 1, 2 and 4 blocks",
        ("repeat-1", "repeat-2", "repeat-4"),
        (LOSS, ACCURACY, ALPHA, COS, APM),
    ),
    _figure("9", "Addition, least significant digit first", ("addition",), (*TOKENS, OUTPUTS)),
    _figure("10", "Addition, most significant digit first", ("addition-plain",), (*TOKENS, OUTPUTS)),
    _figure("11", "Prefix sum: attention and outputs", ("prefix",), (LOSS, APM, OUTPUTS)),
    _figure("12", "Prefix sum of permutations", ("prefix-no-repeat",), (*TOKENS, OUTPUTS)),
    _figure("13", "Permutation", ("permutation",), (*TOKENS, COUNTS)),
    _figure(
        "14",
        "Permutation, applied 2, 3 and 4 times",
        ("permutation-2", "permutation-3", "permutation-4"),
        (*SIGNS, COUNTS),
    ),
    _figure("15", "Histogram", ("histogram",), (LOSS, ACCURACY, REPETITION, ENTROPY)),
    _figure("16", "Histogram: attention and hidden states", ("histogram",), (LOSS, APM, COS)),
    _figure("17", "Reverse", ("reverse",), TOKENS),
    _figure("18", "Copy", ("copy",), TOKENS),
    _figure("19", "Concatenated windows", _CONCAT),
    _figure(
        "20",
        "What a probe reads from attention's output",
        ("mws-probe",),
        (LOSS, ACCURACY, PROBE, LINEAR_PROBES, SELECTIVITY),
        AttentionOutputProbe(),
    ),
    _figure("21", "Repeat, 2 blocks", ("repeat-2",), (LOSS, ACCURACY, ALPHA, COS, OUTPUTS)),
    _figure("22", "Repeat, 4 blocks", ("repeat-4",), (LOSS, ACCURACY, ALPHA, COS, OUTPUTS)),
    _figure("26", "Other lengths and windows", ("mws", "mws-n8", "mws-n24", "mws-k3", "mws-k4"), ours=_SIZES),
    _figure(
        "27", "Other moduli", ("mws", "mws-p19", "mws-p19-sep17", "mws-p23", "mws-p23-sep17"), ours=_SIZES
    ),
    _figure(
        "28",
        "Other widths and heads",
        ("mws", "mws-width64", "mws-width128", "mws-heads2", "mws-heads4"),
        ours=_SIZES,
    ),
    _figure("29", "More layers", ("mws", "mws-layers2", "mws-layers3"), ours=_SIZES),
    _figure("30", "Softmax attention", ("mws-softmax",)),
    _figure(
        "31",
        "SGD",
        ("mws-sgd-lr0.03", "mws-sgd-lr0.1", "mws-sgd-lr0.3", "mws-sgd-lr1", "mws-sgd-authors"),
        ours="learning rates are ours; the authors' 1e-4 does not move",
    ),
    _figure("32", "Muon", ("mws-muon",), (LOSS, ACCURACY, REPETITION)),
    _figure("33", "Muon: attention and hidden states", ("mws-muon",), (LOSS, APM, COS)),
    _figure("34", "Warm-up", ("mws", "mws-warmup")),
    _figure("35", "Warm-up, then cosine", ("mws", "mws-warmup-cosine")),
    _figure("36", "Batches of 64", ("mws", "mws-batch64"), ours=_SETTINGS),
    _figure("37", "Batches of 512", ("mws", "mws-batch512"), ours=_SETTINGS),
    _figure("38", "A lower learning rate", ("mws", "mws-lr3e-05"), ours=_SETTINGS),
    _figure("39", "A higher learning rate", ("mws", "mws-lr0.0003"), ours=_SETTINGS),
    _figure("40", "AdamW with decay", ("mws", "mws-adamw"), ours=_SETTINGS),
    _figure("41", "Hidden states at every place, 1 layer", ("mws-locations",), (LOSS, COS, PLACES)),
    _figure("42", "Hidden states at every place, 2 layers", ("mws-locations-2",), (LOSS, COS, PLACES)),
    _figure(
        "43",
        "Attention scale 10, switched on later",
        ("mws", "mws-c10", "mws-c10-from25", "mws-c10-from50", "mws-c10-from75", "mws-c10-from100"),
    ),
    _figure(
        "101",
        "Parts frozen at random",
        ("mws", *(name for name in _NAMES if name.startswith("mws-frozen-"))),
        ours="the paper describes these runs without a figure; the number is ours",
    ),
    _figure(
        "102",
        "Attention progress as a training signal",
        ("mws-reward0", "mws-reward0.1", "mws-reward1"),
        ours="not in the paper; the number is ours",
    ),
    _figure(
        "104",
        "Muon: the update or the initial weights",
        ("mws", "mws-muon", "mws-muon-scale1", "mws-adam-scale10"),
        ours="not in the paper; the number is ours",
    ),
)

_SERIES = ("pythia-14m", "pythia-1b", "pythia-1.4b", "pythia-2.8b", "olmo2-7b")


def _language_models(*series: str) -> Elsewhere:
    commands = tuple(f"mechplateau llm {name}" for name in series)
    shown = " or ".join(f"`{command}`" for command in commands)
    why = (
        f"shows language models, whose checkpoints are downloaded, not trained; run {shown}, or "
        "`mechplateau llm demo` for one that needs no network"
    )
    return Elsewhere("language models", commands, why)


LANGUAGE_MODELS: Mapping[str, Elsewhere] = {
    "8": _language_models(*_SERIES),
    "23": _language_models("pythia-14m"),
    "24": _language_models("pythia-1b"),
    "25": _language_models("olmo2-7b"),
}
