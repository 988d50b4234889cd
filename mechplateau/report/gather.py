"""From run folders to views: gathers the arrays, tables and claims that pictures and reports are drawn from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mechplateau import views
from mechplateau.errors import CheckpointError, UserError
from mechplateau.files import file_path
from mechplateau.models.kinds import kind_of
from mechplateau.report.claims import claims_of
from mechplateau.report.development import llc_section, parts_section, scan_section
from mechplateau.report.overview import state_of
from mechplateau.report.story import story_of
from mechplateau.runs import Run, load_run
from mechplateau.signs import Plateau
from mechplateau.studies import study_named, study_names
from mechplateau.tasks import SequenceTask, targets_of

SHOWN_SAMPLES = 6
"""Sequences whose predictions a report shows at every checkpoint."""


def save_report(runs: Run | str | Path | Sequence[Run | str | Path], path: str | Path | None = None) -> Path:
    """Write the report of a run, or the comparison of several, as one HTML file that needs no network.

    Args:
        runs: a run or its folder, or several.
        path: where to write; None: `report.html` in the (first) run's folder.

    Returns:
        The file's path.

    Raises:
        UserError: no run is given, or one cannot be opened; the file cannot be written.
    """
    several = [runs] if isinstance(runs, Run | str | Path) else list(runs)
    if not several:
        raise UserError("save_report: expected at least one run, got none")
    opened = [run if isinstance(run, Run) else load_run(run) for run in several]
    target = file_path(path) if path is not None else opened[0].path / "report.html"
    shown = [run_view(run) for run in opened]
    return views.save_report(shown[0] if len(shown) == 1 else shown, target)


def run_view(run: Run, *, pictures: bool = True) -> views.RunView:
    """Everything that views show of a run; without `pictures`, the table and the plateau only."""
    plateau = run.signs.plateau
    checkpoints, notices = _checkpoints(run) if pictures else ((), ())
    return views.RunView(
        title=run.name,
        config_yaml=run.config.yaml(),
        metrics=run.metrics,
        plateau=_plateau_view(plateau, run),
        checkpoints=checkpoints,
        targets=_targets(run) if pictures else (),
        output_rows=run.task.output_rows if isinstance(run.task, SequenceTask) else (),
        groups=run.task.position_groups,
        claims=_claims(run),
        environment=_environment(run),
        columns=tuple(views.ColumnView(c.name, c.unit, c.definition) for c in run.columns),
        story=story_of(run),
        notices=(*_unfinished(run), *notices),
        sections=_sections(run) if pictures else (),
    )


def _sections(run: Run) -> tuple[views.SectionView, ...]:
    """Sections that studies add for such a run, and one with its learning coefficients."""
    told = [section for name in study_names() for section in study_named(name).sections(run)]
    coefficients = (llc_section(run), parts_section(run), scan_section(run))
    return (*told, *(section for section in coefficients if section is not None))


def _unfinished(run: Run) -> tuple[str, ...]:
    """How far a run is that is not trained to its end, and why."""
    steps = run.config.training.steps
    if (stopped := run.stopped_at) is not None:
        return (
            f"Stopped at step {stopped} of {steps} (training.stop_at). Raise it or set it to null, and "
            "rerun the command to resume.",
        )
    if run.finished or not run.status:
        return ()
    why = f": {state_of(run)}" if run.failure is None else f", ended by an error: {run.failure}"
    resume = "" if run.status == "running" and run.at_work else " Rerun the command to resume."
    return (f"Not finished, at step {run.reached} of {steps}{why}.{resume}",)


def _plateau_view(plateau: Plateau, run: Run) -> views.PlateauView:
    phases = run.phases if run.steps else None
    return views.PlateauView(
        found=plateau.found,
        onset=plateau.onset,
        drop=plateau.drop,
        plateau_level=plateau.plateau_level,
        final_level=plateau.final_level,
        confidence=plateau.confidence,
        reason=plateau.reason,
        before=phases.before if phases else None,
        during=phases.during if phases else None,
        after=phases.after if phases else None,
        end=plateau.end,
        column=plateau.column,
    )


def _claims(run: Run) -> tuple[views.ClaimView, ...]:
    if not isinstance(run.task, SequenceTask):
        return ()
    found = claims_of(run.signs)
    return tuple(views.ClaimView(claim.name, claim.expected, claim.measured, claim.passed) for claim in found)


def _checkpoints(run: Run) -> tuple[tuple[views.CheckpointView, ...], tuple[str, ...]]:
    """The checkpoints there are, and what is missing or damaged: a checkpoint without its maps shows the rest."""
    layers = range(run.config.model.n_layers)
    shown = []
    notices = [
        f"{what} missing, of {_steps(steps)}: put a copy back."
        for what, steps in (("Checkpoints are", run.missing), ("Maps are", run.missing_maps))
        if steps
    ]
    for step in run.steps:
        pattern: tuple[np.ndarray, ...] = ()
        cosine = None
        if run.keeps_maps and step not in run.missing_maps:
            try:
                maps = run.maps(step)
                pattern = tuple(maps[f"pattern.L{layer}"].numpy() for layer in layers)
                cosine = maps["cosine.final"].numpy()
            except CheckpointError as error:
                notices.append(f"Maps of step {step} are not shown: {error}.")
        shown.append(views.CheckpointView(step, pattern, cosine, _samples(run, step)))
    return tuple(shown), tuple(notices)


def _steps(steps: Sequence[int]) -> str:
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(map(str, steps))}"


def _samples(run: Run, step: int) -> tuple[views.SampleView, ...]:
    from mechplateau.models import generate  # TransformerLens: seconds, which a short table need not wait for

    task = run.task
    if not isinstance(task, SequenceTask) or not kind_of(run.config.model).generates:
        return ()
    tokens = task.sample(SHOWN_SAMPLES, seed=0)
    model = run.model(step)
    # What was measured at this step was measured with these in effect: weights alone would show something else.
    try:
        for intervention in run.config.interventions:
            if intervention.active(step):
                intervention.attach(model, task)
    except UserError:
        return ()  # it needs another run's file, which is gone: no prediction is better than a wrong one
    with torch.no_grad():
        predicted = generate(model, tokens[:, : task.prompt_length], task.n_outputs)

    return tuple(
        views.SampleView(
            task.labels_of(row[: task.prompt_length].tolist()),
            task.labels_of(row[task.prompt_length :].tolist()),
            task.labels_of(outputs.tolist()),
        )
        for row, outputs in zip(tokens, predicted, strict=True)
    )


def _targets(run: Run) -> tuple[views.TargetView, ...]:
    """Ω as masks over the whole map; one that differs from sequence to sequence has no outline."""
    shown = []
    for target in targets_of(run.task):
        if target.mask.shape[0] != 1:
            continue
        size = target.mask.shape[-1]
        mask = torch.zeros(size, size, dtype=torch.bool)
        mask[list(target.rows)] = target.mask[0]
        layers = range(run.config.model.n_layers) if target.layer is None else [target.layer]
        shown += [views.TargetView(target.name, layer, mask.numpy()) for layer in layers]
    return tuple(shown)


def _kernels(kernels: Mapping[str, Any]) -> str:
    """Which kernels ran, in words: `linear_attention: torch; asked for: auto; …`."""
    used = [
        f"{name}: {', '.join(map(str, backends))}" for name, backends in (kernels.get("used") or {}).items()
    ]
    asked = [f"asked for: {kernels['requested']}"] if kernels.get("requested") else []
    why = [f"Triton not used: {kernels['why_not_triton']}"] if kernels.get("why_not_triton") else []
    return "; ".join([*used, *asked, *why]) or json.dumps(dict(kernels))


def _environment(run: Run) -> dict[str, str]:
    if not run.sessions:
        return {}
    last = run.sessions[-1]
    shown = {f"{name} version": str(version or "not installed") for name, version in last["packages"].items()}
    for key in (
        "python",
        "platform",
        "processor",
        "cores",
        "device_name",
        "device",
        "threads",
        "started",
        "finished",
    ):
        if last.get(key) is not None:
            shown[key] = str(last[key])
    if last.get("kernels"):
        shown["kernels"] = _kernels(last["kernels"])
    shown["sessions"] = str(len(run.sessions))
    return shown
