"""What a checkpoint of matrix completion does and knows: the figures that look inside, over training.

| column | what |
|---|---|
| copy_mask, copy_high, copy_low | mean (ŷ − c)² over masked cells with c in their place: MASK (0), and two values |
| copy_observed | the observed loss with MASK, E x² = 1 |
| permuted | loss with the position table in another order, E x² = 1 |
| probe_masked_L{l}, probe_observed_L{l} | error of a linear probe of the cell's value after layer l, E x² = 1 |
| probe_row_L{l}, probe_svd_L{l} | mean abs cosine of a probe of the row, and of the first left singular vector |
| partner_observed, partner_other | masked error where a partner cell is observed, and elsewhere, E x² = 1, of the |
| | head for which these differ most; rank 1 only |
| symmetry, size_correlation, sign_auc | geometry of the embeddings of numbers, see `circuits.number_embeddings` |
| position_row, position_col, position_other | mean cosine of centered position embeddings |

Errors are of matrices with a seed of their own, the same at all checkpoints. Results are kept beside the
checkpoints and are not computed again. Cost: about a second a checkpoint on a CPU at the presets' sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np
import pandas as pd

from mechplateau.circuits.completion import by_partner, copy_check, permuted_positions, probe_cells
from mechplateau.circuits.number_embeddings import number_embeddings, position_cosines
from mechplateau.errors import UserError
from mechplateau.progress import Progress, bars
from mechplateau.runs import Run
from mechplateau.studies.figures import CheckpointMeasure
from mechplateau.tasks.matrices import same_column, same_row
from mechplateau.tasks.matrix_completion import MatrixCompletion

_SEED = 21
_KIND = "inside"
"""Of the notes beside a run."""
VALUES: Mapping[str, tuple[float, float]] = {
    "paper": (0.44, -0.24),
    "tiny": (0.5, -0.25),
    "small": (0.5, -0.2),
}
"""The two values of the copy check; the paper's own, and ones that the presets' matrices hold."""
_PROBED: Mapping[str, Mapping[str, int]] = {"paper": {"n_train": 2048, "n_test": 256}}
_PROBED_ON_A_CPU: Mapping[str, int] = {"n_train": 512, "n_test": 256}
_TRAINED_UP_TO = 1.5
"""Embeddings of larger numbers hardly train."""

Values = dict[str, float | None]


class Inside(CheckpointMeasure):
    """All of the columns above, at every kept checkpoint."""

    def measure(
        self, run: Run, scale: str, *, jobs: int = 1, progress: Progress | str | None = None
    ) -> pd.DataFrame:
        notes = run.notes(_KIND, self.settings(scale))
        done = {step: note[0] for step in run.steps if (note := notes.read(step)) is not None}
        missing = [step for step in run.steps if step not in done]
        with closing(bars(progress)(total=len(missing), desc="inside")) as bar:
            for step in missing:
                done[step] = look(run, step, scale)
                notes.write(step, done[step])
                bar.update(1)
                bar.set_postfix_str(f"step {step}")
        return pd.DataFrame([{"step": step, **dict(sorted(done[step].items()))} for step in run.steps])

    def settings(self, scale: str) -> Mapping[str, Any]:
        values = VALUES.get(scale, VALUES["paper"])
        return {"values": list(values), "probe": dict(_PROBED.get(scale, _PROBED_ON_A_CPU)), "seed": _SEED}


def look(run: Run, step: int, scale: str) -> Values:
    """One checkpoint; see the module's docstring.

    Raises:
        UserError: a run of another task.
    """
    task = run.config.task
    if not isinstance(task, MatrixCompletion):
        raise UserError(f"{run.path}: expected a run of matrix_completion, got one of {task.name}")
    model, batch, unit = run.model(step), task.batch(512, seed=_SEED), task.second_moment
    table = copy_check(model, task, batch, (None, *VALUES.get(scale, VALUES["paper"])))
    names = ("copy_mask", "copy_high", "copy_low")
    found: Values = dict(zip(names, map(float, table["loss_repeated"]), strict=True))
    found["copy_observed"] = float(table["loss_obs"][0]) / unit
    found["permuted"] = permuted_positions(model, batch, seed=_SEED)["loss"] / unit
    probes = probe_cells(model, task, seed=_SEED + 1, **_PROBED.get(scale, _PROBED_ON_A_CPU))
    for line in probes.to_dict("records"):
        layer, target = line["layer"], line["target"]
        if target == "element":
            found[f"probe_{line['cells']}_L{layer}"] = line["error"] / line["baseline"]
        elif target in ("row", "svd"):
            found[f"probe_{target}_L{layer}"] = line["cosine"]
    if task.rank == 1:
        split = by_partner(model, task, batch)
        gap = (split["error_other"] - split["error_observed"]).to_numpy()
        best = int(np.nanargmax(gap)) if np.isfinite(gap).any() else None
        for name in ("observed", "other"):
            found[f"partner_{name}"] = None if best is None else float(split[f"error_{name}"][best])
    embeddings = model.embed.embed
    if hasattr(embeddings, "W_E"):
        values = task.token_values
        used = (values.abs() <= _TRAINED_UP_TO) & (values.new_tensor(range(len(values))) > 0)
        geometry = number_embeddings(embeddings.W_E[used], values[used])
        found |= {
            "symmetry": geometry.symmetry,
            "size_correlation": geometry.size_correlation,
            "sign_auc": geometry.sign_auc,
        }
    cosines = position_cosines(
        model.embed.pos_embed.W_pos, same_row(task.m, task.n), same_column(task.m, task.n)
    )
    return found | {f"position_{name}": value for name, value in cosines.items()}
