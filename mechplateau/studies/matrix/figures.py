"""The figures of arXiv 2410.22244 that are made from runs, by its numbers, and from 101 on figures of our own."""

from __future__ import annotations

from mechplateau.studies.figures import Figure
from mechplateau.studies.matrix import panels as p
from mechplateau.studies.matrix.inside import Inside
from mechplateau.studies.matrix.maps import (
    attention_maps,
    gpt_attention,
    maps_over_training,
    maps_under_one_mask,
)
from mechplateau.studies.matrix.pictures import (
    against_nuclear_norm,
    nuclear_norm_table,
    other_matrices,
    other_matrices_table,
)
from mechplateau.studies.matrix.recipes import COMPONENTS

_A_GPT = "the paper's figures 11 and 12 are of a GPT; which numbers of it are shown is our choice"
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
    Figure("11", "A GPT that writes the matrix", ("gpt",), (p.NATS, p.WRITTEN), ours=_A_GPT),
    Figure("12", "Where the GPT's heads look", ("gpt",), picture=gpt_attention, ours=_A_GPT),
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
        "23",
        "Attention maps under one mask",
        ("mc",),
        picture=maps_under_one_mask,
        ours="the mask of matrices that are not 7 × 7: two rows but for a cell each, as the paper's",
    ),
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
    Figure("107", "The second plateau", ("mc-long",), (p.MASKED, p.PARTNER), Inside(), "not in the paper"),
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
        ours="not in the paper; shares are after the scaling, so they may exceed 1",
    ),
    Figure(
        "106",
        "Other encoders",
        ("mc", "pre-ln", "learned-mask", "continuous", "masked-loss"),
        (p.LOSS, p.MASKED),
        ours="not in the paper",
    ),
)

# What figures 5, 9, 10, 15, 17, 20 and 21 of the paper show we do not know.
