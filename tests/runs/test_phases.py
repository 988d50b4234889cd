"""Before, during and after the plateau: which checkpoints these are."""

from __future__ import annotations

import os

import pandas as pd
import pytest

from mechplateau.errors import RunError
from mechplateau.runs.phases import find_phases
from mechplateau.signs import Signs


def test_phases_come_from_the_curve():
    recorded = pd.read_csv(os.path.join(os.path.dirname(__file__), "..", "data", "mws_authors_code_cpu.csv"))
    metrics = pd.DataFrame({"step": recorded["step"] + 1, "loss": recorded["train_loss"]})
    phases = find_phases(Signs(metrics), range(0, 401, 20))
    assert phases.plateau.found
    middle = (phases.plateau.onset + phases.plateau.drop) / 2
    assert abs(phases.during - middle) <= 10
    assert (phases.before, phases.after) == (0, 400)
    assert phases.step("during") == phases.during
    assert not phases.solved  # no accuracy was measured


def test_a_checkpoint_beside_the_plateau_is_not_during_it():
    recorded = pd.read_csv(os.path.join(os.path.dirname(__file__), "..", "data", "mws_authors_code_cpu.csv"))
    metrics = pd.DataFrame({"step": recorded["step"] + 1, "loss": recorded["train_loss"]})
    plateau = find_phases(Signs(metrics), [0]).plateau
    outside = (0, plateau.onset - 1, plateau.drop, 400)
    phases = find_phases(Signs(metrics), outside)
    assert phases.during is None
    with pytest.raises(
        RunError,
        match=rf"on the plateau, from step {plateau.onset} to before its drop at {plateau.drop}; .*400",
    ):
        phases.step("during")
    assert find_phases(Signs(metrics), (*outside, plateau.drop - 1)).during == plateau.drop - 1


@pytest.mark.parametrize(("top", "solved_at"), [(0.22, None), (0.95, 380), (1.0, 361), (float("nan"), None)])
def test_a_drop_is_not_yet_a_solution(top, solved_at):
    """A plateau and its drop, whose accuracy ends at `top`: found either way, solved only from 0.95 on."""
    recorded = pd.read_csv(os.path.join(os.path.dirname(__file__), "..", "data", "mws_authors_code_cpu.csv"))
    metrics = pd.DataFrame({"step": recorded["step"] + 1, "loss": recorded["train_loss"]})
    metrics["accuracy"] = [top * step / 380 if step < 380 else top for step in metrics["step"]]
    phases = find_phases(Signs(metrics), range(0, 401, 20))
    assert phases.plateau.found
    assert (phases.solved, phases.solved_at) == (solved_at is not None, solved_at)
