"""The study's figures, by the paper's numbers; `induction`, `plateau-signs` and `attention-lead` are ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from mechplateau.studies.figures import Elsewhere, Figure
from mechplateau.studies.panels import Panel
from mechplateau.studies.stages.beside import beside_released, with_released
from mechplateau.studies.stages.chains import Grid, RandomPrefix, ResetNoise, Traces
from mechplateau.studies.stages.checkpoints import Afterwards, Coefficients
from mechplateau.studies.stages.pictures import (
    OF_RECIPE,
    against_loss,
    coefficients,
    grid,
    random_prefix,
    reset_noise,
    slopes_of_regression,
    slopes_of_text,
    toy_coefficients,
    toy_picture,
    traces,
)


def _named(*names: str) -> Callable[[pd.DataFrame], Sequence[str]]:
    return lambda table: [name for name in names if name in table.columns]


def _begin(*starts: str) -> Callable[[pd.DataFrame], Sequence[str]]:
    return lambda table: [name for name in table.columns if name.startswith(starts)]


def _matching(start: str, end: str) -> Callable[[pd.DataFrame], Sequence[str]]:
    return lambda table: [name for name in table.columns if name.startswith(start) and name.endswith(end)]


def _scaled(what: str) -> Callable[[pd.DataFrame], Sequence[str]]:
    """`ood_{what}_x{g}_per_g2`, in the order of g."""
    return lambda table: sorted(_matching(f"ood_{what}_x", "_per_g2")(table), key=_factor)


def _factor(column: str) -> float:
    return float(column.removesuffix("_per_g2").rpartition("_x")[2])


def _of_head(column: str) -> str:
    """`prefix_B_L1H3`: L1H3, since the panel's title says the rest."""
    return column.rpartition("_")[2]


def _said(**words: str) -> Callable[[str], str]:
    return words.__getitem__


_LOSS = Panel("Loss on held-out text", "nats", _named("test_loss"))
_BIGRAM = Panel("Bigrams", "nats", _named("bigram_excess"))
_DELTA = Panel("Without positions", "nats", _named("position_delta"))
_GRAMS = Panel(
    "n-grams",
    "times better",
    _named("gram_score_2", "gram_score_3", "gram_score_4"),
    label=lambda name: f"{name[-1]}-grams",
)
_PREVIOUS = Panel("Previous token", "share", _begin("previous_token_L0"), label=_of_head)
_PREFIX_B = Panel("Prefix matching, B", "share", _begin("prefix_B_L1"), label=_of_head)
_PREFIX_A = Panel("Prefix matching, A", "share", _begin("prefix_A_L1"), label=_of_head)
_ICL = Panel("In-context score", "nats", _named("icl"))
_GAIN = Panel("Repeat gain", "nats", _named("repeat_gain"))
_COMPOSITION = Panel(
    "K-composition",
    "score",
    _named("composition_K_mean", "composition_K_max"),
    label=_said(composition_K_mean="mean of pairs", composition_K_max="best pair"),
)


def _of_norm(column: str) -> str:
    """`ln1_L0_mean`: LN 1, layer 0."""
    name = column.removesuffix("_mean").removeprefix("ln")
    return "final LN" if name == "_final" else f"LN {name[0]}, layer {name[-1]}"


_NORMS = _matching("ln", "_mean")

_LANGUAGE = (_BIGRAM, _DELTA, _GRAMS, _PREVIOUS, _PREFIX_B, _ICL)
_BIGRAMS, _REGRESSION = ("lm-bigram",), ("lr-true",)
_SHORTER = "few checkpoints, and fewer and shorter chains than the paper's"

FIGURES = (
    *(
        Figure(
            f"1-{short}",
            f"{title}: learning coefficients with their verdicts",
            (recipe,),
            picture=coefficients,
            checkpoints=Coefficients(),
            ours="fewer and shorter chains than the paper's",
        )
        for recipe, (short, title) in OF_RECIPE.items()
    ),
    *(
        Figure(
            f"loss-{recipe}",
            "λ̂ against −loss, by verdict",
            (recipe,),
            picture=against_loss,
            checkpoints=Coefficients(),
            ours="not in the paper; few checkpoints and short chains",
        )
        for recipe in OF_RECIPE
    ),
    Figure(
        "2",
        "Losses whose learning coefficient is known",
        (),
        picture=toy_picture,
        data=toy_coefficients,
        ours="which losses, and the settings",
    ),
    *(
        Figure(id, f"Regression: {title}", _REGRESSION, picture=picture, checkpoints=measure, ours=_SHORTER)
        for id, title, picture, measure in (
            ("A.3", "noise that is reset at every checkpoint", reset_noise, ResetNoise()),
            ("A.4", "settings of the chains, one by one", grid, Grid()),
            ("A.5", "traces, and how chains fail", traces, Traces()),
            ("A.6", "contexts of a random length", random_prefix, RandomPrefix()),
        )
    ),
    Figure("B.1", "Text: slope of the loss", _BIGRAMS, picture=slopes_of_text, ours="of the loss, not of λ̂"),
    Figure("B.2", "Regression: slopes of λ̂ and of the loss", _REGRESSION, picture=slopes_of_regression),
    Figure("4", "Text: bigrams, then n-grams with positions", _BIGRAMS, (_LOSS, *_LANGUAGE)),
    Figure(
        "5",
        "Regression: answering 0, then learning from the context",
        _REGRESSION,
        (
            Panel("Predictions", "mean of ŷ²", _named("prediction_norm_quiet")),
            Panel(
                "In-context gains",
                "y²",
                _named("icl_1_4_quiet", "icl_4_8_quiet"),
                label=_said(icl_1_4_quiet="pairs 1 to 4", icl_4_8_quiet="pairs 4 to 8"),
            ),
            Panel(
                "Final LayerNorm",
                "gain",
                _named("ln_final_mean", "ln_final_min", "ln_final_max"),
                label=_said(ln_final_mean="mean", ln_final_min="smallest", ln_final_max="largest"),
            ),
        ),
    ),
    *(
        Figure(id, f"Regression: {title}", (recipe,), picture=beside_released, data=with_released)
        for id, title, recipe in (
            ("B.3", "runs beside the released models of their seeds", "lr-true"),
            ("B.3-later", "to index 40,292", "lr-40292"),
            ("B.3-spread", "other seeds beside the spread of the released ones", "lr-7192"),
        )
    ),
    Figure(
        "C.2",
        "Text: loss without positions, by position",
        _BIGRAMS,
        (
            Panel(
                "Without positions",
                "nats",
                _begin("position_delta_"),
                ordered=True,
                label=lambda name: f"position {name.rpartition('_')[2]}",
            ),
        ),
    ),
    Figure(
        "C.3",
        "Text: principal components of the positions",
        _BIGRAMS,
        (
            Panel(
                "Positions",
                "share",
                _begin("position_share_"),
                share=True,
                label=lambda name: f"component {name.rpartition('_')[2]}",
            ),
        ),
    ),
    Figure(
        "B.4",
        "Regression: curvature",
        _REGRESSION,
        (
            Panel(
                "Largest eigenvalues",
                "loss per squared weight",
                _named("hessian_1", "hessian_2", "hessian_3"),
                label=_said(hessian_1="largest", hessian_2="second", hessian_3="third"),
                of_checkpoints=True,
            ),
            Panel("Trace", "loss per squared weight", _named("hessian_trace"), of_checkpoints=True),
        ),
        checkpoints=Afterwards("curvature"),
    ),
    Figure("C.4", "Text: K-composition", _BIGRAMS, (_COMPOSITION,)),
    Figure(
        "D.1",
        "Regression: distance from the mean task",
        _REGRESSION,
        (Panel("Distance", "y²", _named("task_prior_distance")),),
    ),
    Figure(
        "D.3",
        "Regression: inputs and tasks of other sizes",
        _REGRESSION,
        tuple(
            Panel(
                f"{what.capitalize()} times g",
                "error / g²",
                _scaled(what),
                label=lambda name: f"g = {_factor(name):g}",
                of_checkpoints=True,
            )
            for what in ("inputs", "tasks")
        ),
        checkpoints=Afterwards("ood"),
    ),
    Figure(
        "D.4",
        "Regression: embeddings",
        _REGRESSION,
        (
            Panel(
                "Shares of σ²",
                "share",
                _named("embed_share_min", "positions_share_max"),
                label=_said(embed_share_min="tokens, smallest", positions_share_max="positions, largest"),
            ),
            Panel(
                "Effective rank",
                "rank",
                _named("embed_effective_rank", "positions_effective_rank"),
                label=_said(embed_effective_rank="tokens", positions_effective_rank="positions"),
            ),
            Panel(
                "Alignment",
                "cosine",
                _begin("alignment_"),
                share=True,
                label=lambda name: f"principal angle {name.rpartition('_')[2]}",
            ),
        ),
    ),
    *(
        Figure(
            id,
            f"Regression: {title}",
            _REGRESSION,
            tuple(
                Panel(
                    f"Layer {layer}, {kind} tokens",
                    axis,
                    _begin(f"{column}_{kind}_L{layer}"),
                    share=True,
                    label=_of_head,
                )
                for layer in (0, 1)
                for kind in "xy"
            ),
        )
        for id, title, axis, column in (
            ("D.5", "attention to x tokens", "share", "to_x"),
            ("D.6", "entropy of attention", "share", "entropy"),
            ("D.7", "variability of attention", "share", "variability"),
        )
    ),
    Figure(
        "D.8",
        "Regression: what the output reads",
        _REGRESSION,
        (
            Panel(
                "Read-out",
                "share",
                _named("readout_small", "readout_top"),
                share=True,
                label=_said(readout_small="of coordinates below 0.01", readout_top="of w² in the top 5"),
            ),
        ),
    ),
    Figure(
        "D.9", "Regression: LayerNorms", _REGRESSION, (Panel("Mean gains", "gain", _NORMS, label=_of_norm),)
    ),
    Figure(
        "induction",
        "Repeated rows: bigrams, then an induction head",
        ("lm-induction",),
        (_BIGRAM, _GAIN, _PREVIOUS, _PREFIX_B, _PREFIX_A, _COMPOSITION, _ICL),
    ),
    Figure(
        "plateau-signs",
        "Does the induction transition show a plateau's signs?",
        ("lm-induction",),
        (
            _GAIN,
            _PREFIX_B,
            Panel("Hidden states alike", "cosine", _named("repeat_cos")),
            Panel("Repeated predictions", "share", _named("repeat_repetition"), share=True),
        ),
    ),
    Figure(
        "attention-lead",
        "Does attention turn before the loss? Measured every 10 steps",
        ("lm-induction-fine",),
        (_GAIN, _PREFIX_B),
    ),
)

_GPU = "needs the paper's size on a GPU"
_TRAIN = "mechplateau train text --preset lm-paper --device cuda"
_ONE_LAYER = f"{_TRAIN} --set model.n_layers=1"

ELSEWHERE = {
    "1": Elsewhere(
        "learning coefficients",
        (
            "mechplateau figure stages/1-regression",
            "mechplateau figure stages/1-text",
            "mechplateau figure stages/1-induction",
        ),
        "is of several models: 1-regression, 1-text and 1-induction",
    ),
    "C.1": Elsewhere("tokens that changed", (_TRAIN,), f"{_GPU}: {_TRAIN}"),
    "E": Elsewhere("one layer", (_ONE_LAYER,), f"{_GPU}: {_ONE_LAYER}"),
}

__all__ = ["ELSEWHERE", "FIGURES"]
