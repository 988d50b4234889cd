"""The measures that the paper's figures show, one panel each."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from mechplateau.signs import Signs, collapse_columns, progress_columns
from mechplateau.studies.panels import Panel


def _beginning(prefix: str) -> Callable[[pd.DataFrame], list[str]]:
    return lambda table: [name for name in table.columns if name.startswith(prefix)]


def _without(prefix: str, begin: str = "") -> Callable[[str], str]:
    return lambda column: begin + column.removeprefix(prefix).replace("_", " ")


LOSS = Panel("Loss", "nats", lambda table: ["loss"], told={"drop": "step"})
ACCURACY = Panel("Accuracy", "share right", lambda table: ["accuracy"], share=True)
OUTPUTS = Panel(
    "Accuracy of each output",
    "share right",
    _beginning("accuracy_out_"),
    label=_without("accuracy_out_", "output "),
    share=True,
    ordered=True,
)
REPETITION = Panel(
    "Repetition ρ",
    "share of pairs",
    lambda table: ["repetition"],
    share=True,
    data="repetition_data",
    told={"repetition_peak": "value"},
)
ENTROPY = Panel("Entropy of outputs", "nats", lambda table: ["entropy"], data="entropy_data")
APM = Panel(
    "Attention progress",
    "APM",
    progress_columns,
    one=lambda table: Signs(table).progress_column,
    label=_without("apm_"),
    share=True,
    told={"apm_end": "value"},
)
COS = Panel(
    "Collapse",
    "COS",
    collapse_columns,
    one=lambda table: Signs(table).collapse_column,
    label=_without("cos_"),
    told={"cos_peak": "value"},
)
ALPHA = Panel(
    "Equal to the first output",
    "α₁",
    _beginning("alpha_1"),
    one=lambda table: "alpha_1",
    label=lambda column: column.removeprefix("alpha_1_").replace("alpha_1", "all").replace("_", " "),
    share=True,
)
COUNTS = Panel("Values in right number", "share", lambda table: ["count_check"], share=True)
PLACES = Panel("Collapse at every place", "COS", _beginning("cos_L"), label=_without("cos_"))

_PROBES = {
    "probe_authors": "authors' split",
    "probe_ours": "our split",
    "probe_control": "random label of the operands",
    "probe_shuffled": "shuffled labels",
}
_LINEAR = {"probe_linear": "of attn_out", "probe_linear_neurons": "of neurons"}
_SELECTIVITY = {
    "probe_selectivity": "MLP, attn_out",
    "probe_linear_selectivity": "linear, attn_out",
    "probe_linear_neurons_selectivity": "linear, neurons",
}
PROBE = Panel(
    "Probe of attn_out",
    "test accuracy",
    lambda table: list(_PROBES),
    label=lambda column: _PROBES[column],
    share=True,
    of_checkpoints=True,
)
LINEAR_PROBES = Panel(
    "Linear probes",
    "test accuracy",
    lambda table: list(_LINEAR),
    label=lambda column: _LINEAR[column],
    share=True,
    of_checkpoints=True,
)
SELECTIVITY = Panel(
    "Answer minus random label",
    "selectivity",
    lambda table: list(_SELECTIVITY),
    label=lambda column: _SELECTIVITY[column],
    of_checkpoints=True,
)

SIGNS = (LOSS, ACCURACY, REPETITION, APM, COS)
TOKENS = (LOSS, ACCURACY, REPETITION, ENTROPY, APM, COS)
