"""The attention-output probe (figure 20): when in training can the answer be read off attention's output?

A one-hidden-layer MLP (256 ReLUs) on `blocks.{last}.hook_attn_out` at the output rows predicts the output token. Two
splits, both by sequence, at every kept checkpoint: the authors' (2,048 fresh sequences; the first 64, 1,024 rows of
moving window sum, train and the others test) and ours (256 sequences, 4,096 rows, each; at the small scale half as
many), with a control of shuffled labels. Results are kept beside the checkpoints, with their settings, and are not
computed again.

Beside the paper's probe, on our split: the control task (a random label for each set of operands, see
`mechplateau.circuits.probing`), and a linear probe of the same place and of the neurons, `mlp.hook_post`, with theirs.
A probe that reads the random label as well as the answer has made the answer itself. At the paper's size each one does:
the MLP, and the linear probe of the neurons.

Cost: eight fits a checkpoint, about 80 seconds of one core at the paper's size, of which the MLPs take most: a
shuffled or random label is learned by heart, in some 500 epochs. Checkpoints are independent, and each is probed on
one thread, so that its accuracies are the same however many are probed at a time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd

from mechplateau.circuits import probe
from mechplateau.errors import UserError
from mechplateau.progress import Progress, bars
from mechplateau.runs import Run, load_run
from mechplateau.schema import whole_number
from mechplateau.studies.figures import CheckpointMeasure
from mechplateau.studies.numbers import Numbers
from mechplateau.studies.recipes import PAPER
from mechplateau.tasks import sequence_task
from mechplateau.training.executor import own_classes, register_classes, stop_with_parent
from mechplateau.training.interrupt import terminable
from mechplateau.training.loop import torch_threads

SPLITS: Mapping[str, Mapping[str, Mapping[str, int]]] = {
    "paper": {
        "authors": {"sequences": 2048, "n_train": 64},
        "ours": {"sequences": 512, "n_train": 256},
    },
    "small": {
        "authors": {"sequences": 2048, "n_train": 64},
        "ours": {"sequences": 256, "n_train": 128},
    },
}
LINEAR = {"linear": "hook_attn_out", "linear_neurons": "mlp.hook_post"}
"""Where a linear probe reads."""
ACCURACIES = (
    "authors",
    "ours",
    "shuffled",
    "control",
    *(f"{name}{end}" for name in LINEAR for end in ("", "_control")),
)
SELECTIVITY = {
    "selectivity": ("ours", "control"),
    **{f"{name}_selectivity": (name, f"{name}_control") for name in LINEAR},
}
"""What each is the difference of."""
_SEED = 20
_KIND = "probes"
"""Of the notes beside a run."""


def probe_curve(
    run: Run, scale: str = PAPER, *, jobs: int = 1, progress: Progress | str | None = None
) -> pd.DataFrame:
    """Test accuracies at every kept checkpoint.

    Args:
        run: a finished run.
        scale: whose splits.
        jobs: checkpoints probed at a time.
        progress: makes a bar of checkpoints, as tqdm does (`mechplateau.progress`).

    Returns:
        columns step, authors, ours, shuffled (ours, labels shuffled), control (ours, a random label for each set of
        operands), linear and linear_neurons with their `_control`, and what each has above its control: selectivity,
        linear_selectivity, linear_neurons_selectivity.

    Raises:
        UserError: a checkpoint cannot be read, the scale is unknown, or `jobs` is below 1.
    """
    from joblib import Parallel, delayed

    if scale not in SPLITS:
        raise UserError(f"scale: expected {' or '.join(SPLITS)}, got {scale!r}")
    if whole_number(jobs, "jobs") < 1:
        raise UserError(f"jobs: expected at least 1, got {jobs}")
    done, notes = _read(run, scale), run.notes(_KIND, _settings(scale))
    missing = [step for step in run.steps if step not in done]
    with terminable(), closing(bars(progress)(total=len(missing), desc="probe")) as bar:
        found = Parallel(n_jobs=jobs, return_as="generator")(
            delayed(_probe_at)(run.path.resolve(), step, SPLITS[scale], os.getpid(), own_classes())
            for step in missing
        )
        for step, accuracies in zip(missing, found, strict=True):
            done[step] = accuracies
            notes.write(step, accuracies)
            bar.update(1)
            bar.set_postfix_str(f"step {step}")
    lines = [{"step": step, **{kind: done[step][kind] for kind in ACCURACIES}} for step in run.steps]
    table = pd.DataFrame(lines)
    return table.assign(**{name: table[one] - table[other] for name, (one, other) in SELECTIVITY.items()})


class AttentionOutputProbe(CheckpointMeasure):
    """`probe_curve` for a figure: its columns as probe_authors, probe_ours, probe_shuffled, …."""

    def measure(
        self, run: Run, scale: str, *, jobs: int = 1, progress: Progress | str | None = None
    ) -> pd.DataFrame:
        table = probe_curve(run, scale, jobs=jobs, progress=progress)
        return table.rename(columns={kind: f"probe_{kind}" for kind in (*ACCURACIES, *SELECTIVITY)})

    def settings(self, scale: str) -> Mapping[str, Any]:
        return {"probe": SPLITS[scale]}


def probe_numbers(run: Run, scale: str = PAPER) -> Numbers:
    """The numbers that claims are about, of our split, from probes that are kept; empty where there are none.

    probe_plateau (at the checkpoint "during"), probe_end (at the last), probe_end_authors (their split),
    probe_shuffled (largest over checkpoints), probe_selectivity (mean over checkpoints from "during" on), and at the
    last checkpoint probe_linear_end (attention's output), probe_linear_neurons_end, and their probe_…_selectivity.
    """
    done = _read(run, scale)
    if not done or set(done) != {*run.steps, *run.missing}:
        return {}
    during, end = run.phases.during, done[max(done)]
    late = [
        done[step]["ours"] - done[step]["control"] for step in done if during is not None and step >= during
    ]
    return {
        "probe_plateau": None if during is None else done[during]["ours"],
        "probe_end": end["ours"],
        "probe_end_authors": end["authors"],
        "probe_shuffled": max(values["shuffled"] for values in done.values()),
        "probe_selectivity": sum(late) / len(late) if late else None,
        **{f"probe_{name}_end": end[name] for name in LINEAR},
        **{f"probe_{name}_selectivity": end[name] - end[f"{name}_control"] for name in LINEAR},
    }


def _probe_at(
    path: Path, step: int, splits: Mapping[str, Mapping[str, int]], asked_by: int, classes: Sequence[bytes]
) -> dict[str, float]:
    from threadpoolctl import threadpool_limits

    if os.getpid() != asked_by:
        stop_with_parent(asked_by)
        register_classes(classes)
    run = load_run(path)
    model = run.model(step)
    block = f"blocks.{run.config.model.n_layers - 1}"
    most = max(split["sequences"] for split in splits.values())
    task = sequence_task(run.task, "the probe")
    tokens = task.sample(most, seed=_SEED)

    def fit(split: str, hook: str, kind: str, control: bool = True, shuffled: bool = True) -> pd.Series:
        table = probe(
            model,
            tokens[: splits[split]["sequences"]],
            "output",
            hook=f"{block}.{hook}",
            task=task,
            kind=kind,
            n_train=splits[split]["n_train"],
            control=control,
            shuffled=shuffled,
            draws=1,
        )
        return table.iloc[0]

    with torch_threads(1), threadpool_limits(1):
        authors = fit("authors", "hook_attn_out", "mlp", control=False)
        ours = fit("ours", "hook_attn_out", "mlp")
        linear = {name: fit("ours", hook, "linear", shuffled=False) for name, hook in LINEAR.items()}
    return {
        "authors": float(authors["test_accuracy"]),
        "ours": float(ours["test_accuracy"]),
        "shuffled": float(ours["shuffled_accuracy"]),
        "control": float(ours["control_accuracy"]),
        **{name: float(line["test_accuracy"]) for name, line in linear.items()},
        **{f"{name}_control": float(line["control_accuracy"]) for name, line in linear.items()},
    }


def _settings(scale: str) -> dict[str, Any]:
    return {**SPLITS[scale], "seed": _SEED, "precision": "float32", "control": "a set of operands"}


def _read(run: Run, scale: str) -> dict[int, dict[str, float]]:
    """Step → accuracies, of the steps probed before with these settings; nothing of a note that is damaged."""
    notes = run.notes(_KIND, _settings(scale))
    found = {step: note[0] for step in run.steps if (note := notes.read(step)) is not None}
    return {step: accuracies for step, accuracies in found.items() if _whole(accuracies)}


def _whole(values: Any) -> bool:
    """Whether these are the accuracies of one step."""
    return (
        isinstance(values, dict)
        and set(values) == set(ACCURACIES)
        and all(isinstance(value, float) and 0 <= value <= 1 for value in values.values())
    )
