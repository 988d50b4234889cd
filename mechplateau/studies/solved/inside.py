"""What is measured on the checkpoints of a run of window sums, and kept beside it.

| column | what |
|---|---|
| tuning, tuning_control | median over neurons of the largest share, and of the control's (`neuron_tuning`) |
| map_r2, evenness | of attention: `fixed_map`, `window_weights` |
| loss_qk, loss_ov, loss_mlp | loss of the solved model with that part of the checkpoint's weights, nats |

Of the last checkpoint, in a note of its own, the other numbers of `numbers`: on 512 sequences; all else on 256.
Sequences have a seed of their own, the same at all checkpoints. Cost: some seconds a checkpoint at the paper's size.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import Tensor

from mechplateau.circuits.ablation import target_entries
from mechplateau.circuits.contributions import (
    balance_over_rows,
    mean_contributions,
    place_symmetry,
    token_contributions,
    token_entries,
)
from mechplateau.circuits.frequency_ablation import ablate_frequencies
from mechplateau.circuits.parameter_patching import components, patch_parameters
from mechplateau.circuits.positional_map import evenness, fixed_map, same_sign, window_weights
from mechplateau.circuits.sum_terms import summands
from mechplateau.circuits.tuning import logits_of_the_sum, neuron_tuning, phase_lock, token_spectrum
from mechplateau.progress import Progress, bars
from mechplateau.runs import Run
from mechplateau.studies.figures import CheckpointMeasure
from mechplateau.studies.numbers import Numbers
from mechplateau.tasks import Task, sequence_task
from mechplateau.training.loop import torch_threads

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

PARTS = ("QK", "OV", "MLP")
EVERYWHERE = ("tuning", "tuning_control", "map_r2", "evenness", *(f"loss_{part.lower()}" for part in PARTS))
"""What is measured at every checkpoint."""
_SETTINGS: Mapping[str, Any] = {"seed": 30, "sequences": 256, "sequences_solved": 512, "draws": 3}
_OF_THE_LAST: Mapping[str, Any] = {**_SETTINGS, "waves": ["sum", "terms"], "separator": ["vectors", "rows"]}
_KIND, _LAST = "solved", "solved-last"
"""Of the notes beside a run."""


class TakenApart(CheckpointMeasure):
    """The columns above, at every kept checkpoint."""

    def measure(
        self, run: Run, scale: str, *, jobs: int = 1, progress: Progress | str | None = None
    ) -> pd.DataFrame:
        done, last = _kept(run, _KIND, _SETTINGS), run.steps[-1]
        missing = [step for step in run.steps if step not in done]
        notes, of_last = run.notes(_KIND, _SETTINGS), run.notes(_LAST, _OF_THE_LAST)
        with torch_threads(1), closing(bars(progress)(total=len(missing), desc="taken apart")) as bar:
            for step in missing:
                done[step] = look(run, step)
                notes.write(step, done[step])
                bar.update(1)
                bar.set_postfix_str(f"step {step}")
            if of_last.read(last) is None:
                of_last.write(last, solved_numbers(run))
        lines = [{"step": step, **{name: done[step][name] for name in EVERYWHERE}} for step in run.steps]
        return pd.DataFrame(lines).astype(dict.fromkeys(EVERYWHERE, "Float64"))


def read(run: Run) -> dict[int, Numbers]:
    """Step → what was measured there before; nothing where the last checkpoint's own numbers are missing."""
    last = _kept(run, _LAST, _OF_THE_LAST)
    if run.steps[-1] not in last:
        return {}
    found = {
        step: {name: note[name] for name in EVERYWHERE} for step, note in _kept(run, _KIND, _SETTINGS).items()
    }
    for step, numbers in last.items():
        found[step] = {**found.get(step, {}), **numbers}
    return found


def _kept(run: Run, kind: str, settings: Mapping[str, Any]) -> dict[int, Numbers]:
    notes = run.notes(kind, settings)
    return {step: note[0] for step in run.steps if (note := notes.read(step)) is not None}


def look(run: Run, step: int) -> Numbers:
    """What is measured at every checkpoint."""
    task, tokens = _data(run, _SETTINGS["sequences"])
    model, solved = run.model(step), run.model(run.steps[-1])
    tuning = neuron_tuning(model, tokens, task, permutations=_SETTINGS["draws"])
    moved = {part: components(solved)[f"L0 {part}"] for part in PARTS}
    table = patch_parameters(solved, model, tokens, rows=task.output_rows, moved=moved, identity=True)
    losses = table[table["mode"] == "moved"].set_index("component")["loss"]
    return {
        **_tuned(tuning),
        "map_r2": _number(fixed_map(model, tokens, rows=_rows(task, tokens))["r2"].iloc[-1]),
        "evenness": evenness(window_weights(model, tokens, task)),
        **{f"loss_{part.lower()}": _number(losses[part]) for part in PARTS},
    }


def solved_numbers(run: Run) -> Numbers:
    """What is measured of the last checkpoint alone, and of its parts in the model of the plateau."""
    task, tokens = _data(run, _SETTINGS["sequences_solved"])
    model = run.model(run.steps[-1])
    rows = _rows(task, tokens)
    whole = fixed_map(model, tokens, rows=rows).iloc[-1]
    weights = window_weights(model, tokens, task)
    alike, other = same_sign(weights)
    windows = target_entries(task, tokens, 1)
    separators = token_entries(model, tokens, task.separator) if task.separator is not None else {}
    vectors = mean_contributions(model, tokens, windows, separators, rows=rows)["correlation"]
    tuning = neuron_tuning(model, tokens, task, permutations=_SETTINGS["draws"])
    lock, cosine = phase_lock(tuning)
    return {
        "solved_map_r2": _number(whole["r2"]),
        "map_accuracy": _number(whole["accuracy_fixed"]),
        "solved_evenness": evenness(weights),
        "same_sign": alike,
        "copy_opposite": other,
        "separator_correlation": _number(vectors.median()),
        **_separator(run, task, tokens),
        "ov_symmetry": place_symmetry(token_contributions(model, tokens, task)),
        "embedding_peak": _number(token_spectrum(model.W_E[: summands(task, tokens).p])["share"].max()),
        **{f"solved_{name}": value for name, value in _tuned(tuning).items()},
        "phase_lock": lock,
        "phase_cosine": cosine,
        "logits_share": logits_of_the_sum(model, tokens, task),
        **_causal(model, tokens, task),
        **_joint(run, model, tokens, task),
    }


def _separator(run: Run, task: Task, tokens: Tensor) -> Numbers:
    """How far separator and inputs balance row by row, in the last checkpoint and in that of the plateau."""
    found: Numbers = {}
    steps = {"": run.steps[-1], "_during": run.phases.during}
    for name, step in steps.items():
        found |= {f"separator_{what}{name}": None for what in ("rows", "left")}
        if step is None or task.separator is None:
            continue
        model = run.model(step)
        separators = token_entries(model, tokens, task.separator)
        inputs = torch.zeros_like(separators[0])
        inputs[:, :, : task.prompt_length] = True
        prompt = {layer: inputs & ~mask for layer, mask in separators.items()}
        line = balance_over_rows(model, tokens, prompt, separators, rows=_rows(task, tokens)).iloc[-1]
        found |= {
            f"separator_rows{name}": _number(line["correlation"]),
            f"separator_left{name}": _number(line["left"]),
        }
    return found


def _causal(model: HookedTransformer, tokens: Tensor, task: Task) -> Numbers:
    """Accuracies with a neuron's frequency kept or removed: in the sum alone, and in all that it makes of the terms."""
    names = {"own": "accuracy", "renamed": "permuted", "other": "other"}
    numbers: Numbers = {}
    for of, begin in (("sum", ""), ("terms", "terms_")):
        table = ablate_frequencies(model, tokens, task, of=of, draws=_SETTINGS["draws"])
        found = table.set_index(["edit", "wave"])["accuracy"]
        numbers |= {
            f"{edit}_{begin}{name}": _number(found[edit, wave])
            for edit in ("keep", "remove")
            for wave, name in names.items()
        }
    return numbers


def _joint(run: Run, solved: HookedTransformer, tokens: Tensor, task: Task) -> Numbers:
    """What parts of the solved model recover in that of the plateau, alone and together; None without a plateau."""
    during = run.phases.during
    found: Numbers = dict.fromkeys(("attention_recovered", "mlp_recovered", "joint_recovered"))
    if during is None:
        return found
    parts = components(solved)
    attention, mlp = parts["L0 attention"], parts["L0 MLP"]
    moved = {"attention": attention, "mlp": mlp, "joint": [*attention, *mlp]}
    table = patch_parameters(
        run.model(during), solved, tokens, rows=task.output_rows, moved=moved, identity=True
    )
    recovered = table[table["mode"] == "moved"].set_index("component")["recovered_loss"]
    return {f"{name}_recovered": _number(recovered[name]) for name in moved}


def _tuned(tuning: pd.DataFrame) -> Numbers:
    medians = tuning[["share", "control_share"]].astype("Float64").median()
    return {"tuning": _number(medians["share"]), "tuning_control": _number(medians["control_share"])}


def _data(run: Run, sequences: int) -> tuple[Task, Tensor]:
    task = sequence_task(run.task, "the study of the solved model")
    return task, task.sample(sequences, seed=_SETTINGS["seed"])


def _rows(task: Task, tokens: Tensor) -> tuple[int, ...]:
    """Positions that predict sums."""
    return summands(task, tokens[:1]).rows


def _number(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)


__all__ = ["EVERYWHERE", "PARTS", "TakenApart", "read"]
