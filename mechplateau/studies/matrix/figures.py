"""The figures of arXiv 2410.22244 that are made from runs, by its numbers, and from 101 on figures of our own."""

from __future__ import annotations

from mechplateau.studies.figures import Elsewhere, Figure
from mechplateau.studies.matrix import panels as p
from mechplateau.studies.matrix.inside import Inside
from mechplateau.studies.matrix.pictures import (
    against_nuclear_norm,
    attention_maps,
    maps_over_training,
    nuclear_norm_table,
    other_matrices,
    other_matrices_table,
)
from mechplateau.studies.matrix.recipes import COMPONENTS

_WIDTHS = tuple(f"width-{width}" for width in (64, 128, 256, 384))

FIGURES = (
    Figure("1", "Matrix completion: a plateau, then a drop", ("mc",), (p.LOSS, p.CELLS)),
    Figure("2", "What is predicted for masked cells", ("mc",), (p.CELLS, p.VALUE, p.SPREAD)),
    Figure(
        "T1",
        "Copy check: another token in the masked cells",
        ("mc",),
        (p.CELLS, p.COPY),
        Inside(),
        "values of the copy check at a CPU's sizes are ours",
    ),
    Figure(
        "3",
        "The encoder against nuclear norm",
        ("mc",),
        picture=against_nuclear_norm,
        data=nuclear_norm_table,
    ),
    Figure("4", "Attention maps after the drop", ("mc",), picture=attention_maps),
    Figure(
        "6",
        "What a linear probe reads",
        ("mc",),
        (p.PROBE_MASKED, p.PROBE_OBSERVED, p.PROBE_ROW, p.PROBE_SVD),
        Inside(),
    ),
    Figure(
        "7", "Embeddings of numbers and positions", ("mc",), (p.NUMBERS, p.POSITIONS, p.PERMUTED), Inside()
    ),
    Figure(
        "8",
        "One component trained alone",
        ("mc", *(f"only-{part}" for part in COMPONENTS)),
        (p.LOSS, p.MASKED),
    ),
    Figure("13", "Width", ("mc", *_WIDTHS), (p.LOSS, p.MASKED)),
    Figure("14", "Depth", ("mc", "layers-2", "layers-6"), (p.LOSS, p.MASKED)),
    Figure("16", "Several sizes at once", ("mixture",), (p.LOSS, p.CELLS)),
    Figure("18", "Gaussian factors", ("gaussian",), (p.LOSS, p.CELLS)),
    Figure(
        "19",
        "Matrices that were not trained on",
        ("mc",),
        picture=other_matrices,
        data=other_matrices_table,
    ),
    Figure("22", "Attention maps over training", ("mc",), picture=maps_over_training),
    Figure(
        "101", "Attention moves first", ("mc",), (p.MASKED, p.ON_OMEGA, p.ENTROPY), ours="not in the paper"
    ),
    Figure(
        "102",
        "Hidden states collapse on the plateau",
        ("mc",),
        (p.MASKED, p.COS_MASKED, p.COS_CONTROLS),
        ours="not in the paper",
    ),
    Figure("103", "One partner cell", ("mc",), (p.MASKED, p.PARTNER), Inside(), "not in the paper"),
    Figure(
        "104",
        "Initial scale",
        ("mc", "init-half", "init-two-thirds", "init-four-thirds"),
        (p.MASKED, p.ON_OMEGA),
        ours="not in the paper",
    ),
    Figure(
        "105",
        "Attention scaled on Ω",
        ("mc", "scale-3", "scale-half"),
        (p.MASKED, p.ON_OMEGA, p.COS_MASKED),
        ours="not in the paper",
    ),
    Figure(
        "106",
        "Other encoders",
        ("mc", "pre-ln", "learned-mask", "continuous", "masked-loss"),
        (p.LOSS, p.MASKED),
        ours="not in the paper",
    ),
)

_GPT = Elsewhere(
    "the paper's variant for a GPT",
    ("mechplateau train matrix_completion_gpt",),
    "shows a GPT that writes the matrix as tokens; `mechplateau train matrix_completion_gpt` trains it, and the figure "
    "is not made yet",
)
_ONE_MASK = Elsewhere(
    "attention maps under one mask",
    (),
    "shows one mask for all matrices; figures 4 and 22 average over masks instead",
)

ELSEWHERE = {"11": _GPT, "12": _GPT, "23": _ONE_MASK}
"""Figures of the paper that are not made here. What others show (5, 9, 10, 15, 17, 20, 21) we do not know."""
