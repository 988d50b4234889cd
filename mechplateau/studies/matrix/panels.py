"""The measures that the figures of matrix completion show."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from mechplateau.studies.panels import Panel


def _these(*names: str) -> Callable[[pd.DataFrame], list[str]]:
    return lambda table: [name for name in names if name in table.columns]


def _layers(prefix: str) -> Callable[[pd.DataFrame], list[str]]:
    """One column a layer, and none a head."""
    return lambda table: [
        name for name in table.columns if name.startswith(prefix) and name.removeprefix(prefix).isdigit()
    ]


def _last(prefix: str) -> Callable[[pd.DataFrame], str | None]:
    return lambda table: max(_layers(prefix)(table), default=None)


def _named(**names: str) -> Callable[[str], str]:
    return lambda column: names.get(column, column.replace("_", " "))


def _layer(column: str) -> str:
    return f"layer {column.rpartition('_L')[2]}"


# The first updates throw the loss up: in logs of the paper's size to 500 times that of the plateau.
LOSS = Panel("Loss", "squared error", _these("loss"), jump=True)
CELLS = Panel(
    "By kind of cell",
    "squared error",
    _these("loss_mask", "loss_obs"),
    one=lambda table: "loss_mask",
    label=_named(loss_mask="masked", loss_obs="observed"),
    jump=True,
)
NATS = Panel("Loss", "nats a token", _these("loss"))
WRITTEN = Panel(
    "Right cells",
    "share, generated",
    _these("accuracy_obs", "accuracy_mask"),
    label=_named(accuracy_obs="observed", accuracy_mask="masked"),
    share=True,
)
MASKED = Panel("Loss of masked cells", "squared error", _these("loss_mask"), jump=True)
VALUE = Panel("Size", "mean |ŷ|, masked", _these("mask_value"))
SPREAD = Panel("Spread", "E ŷ² / E x², masked", _these("spread"))
ON_OMEGA = Panel(
    "Masked queries on Ω",
    "share of attention",
    _layers("apm_mask_L"),
    one=lambda table: "apm_mask_L0",
    label=_layer,
)
COS_MASKED = Panel(
    "Collapse of masked cells", "COS", _layers("cos_mask_L"), one=_last("cos_mask_L"), label=_layer
)
COS_CONTROLS = Panel(
    "Observed cells",
    "COS",
    lambda table: [*_layers("cos_obs_L")(table)[-1:], *_layers("cos_same_L")(table)[-1:]],
    label=lambda column: "with one token" if "same" in column else "all",
)
ENTROPY = Panel(
    "Entropy of attention", "nats", _layers("entropy_mask_L"), one=_last("entropy_mask_L"), label=_layer
)

COPY = Panel(
    "Copy check",
    "mean (ŷ − c)²",
    _these("copy_mask", "copy_high", "copy_low"),
    label=_named(copy_mask="MASK", copy_high="a value", copy_low="a negative value"),
    of_checkpoints=True,
)
PROBE_MASKED = Panel(
    "Probe of masked values", "error / E x²", _layers("probe_masked_L"), label=_layer, of_checkpoints=True
)
PROBE_OBSERVED = Panel(
    "Probe of observed values", "error / E x²", _layers("probe_observed_L"), label=_layer, of_checkpoints=True
)
PROBE_ROW = Panel(
    "Probe of the row", "|cosine|", _layers("probe_row_L"), label=_layer, share=True, of_checkpoints=True
)
PROBE_SVD = Panel(
    "Probe of the vector",
    "|cosine|",
    _layers("probe_svd_L"),
    label=_layer,
    share=True,
    of_checkpoints=True,
)
PARTNER = Panel(
    "Masked error by partner",
    "error / E x²",
    _these("partner_observed", "partner_other"),
    label=_named(partner_observed="partner observed", partner_other="not observed"),
    of_checkpoints=True,
)
NUMBERS = Panel(
    "Embeddings of numbers",
    "share",
    _these("symmetry", "size_correlation", "sign_auc"),
    label=_named(size_correlation="|Spearman| with |v|", sign_auc="AUC of the sign"),
    of_checkpoints=True,
)
POSITIONS = Panel(
    "Position embeddings",
    "mean cosine",
    _these("position_row", "position_col", "position_other"),
    label=_named(position_row="same row", position_col="same column", position_other="others"),
    of_checkpoints=True,
)
PERMUTED = Panel("Positions permuted", "loss / E x²", _these("permuted"), of_checkpoints=True)
