"""The study of the solved window sum: numbers counted by hand, and what is measured on a run's checkpoints."""

from __future__ import annotations

import pandas as pd
import pytest

from mechplateau import RunConfig, train
from mechplateau.studies import Material, study_named
from mechplateau.studies.claims import check
from mechplateau.studies.recorded import recorded_table
from mechplateau.studies.solved import inside
from mechplateau.studies.solved.inside import EVERYWHERE, TakenApart
from mechplateau.studies.solved.numbers import numbers_of_table, over_steps

STUDY = study_named("solved")


def measured(tuning, qk, ov, mlp):
    return {**dict.fromkeys(EVERYWHERE), "tuning": tuning, "loss_qk": qk, "loss_ov": ov, "loss_mlp": mlp}


DONE = {
    0: measured(0.3, 3.0, 4.0, 3.0),
    40: measured(0.3, 1.0, 1.0, 3.0),
    80: measured(0.35, 0.5, 2.5, 2.0),  # OV is worse again: not yet ready
    120: measured(0.6, 0.1, 0.5, 1.4),
    160: measured(0.7, 0.0, 0.0, 0.0)
    | {"solved_tuning": 0.8, "solved_tuning_control": 0.5, "phase_lock": 0.9},
}


def test_numbers_over_steps():
    found = over_steps(DONE, 80, 100.0)
    assert (found["tuning_start"], found["tuning_during"], found["tuning_end"]) == (0.3, 0.35, 0.8)
    assert found["tuning_gap"] == pytest.approx(0.3)
    assert found["tuning_rise_share"] == 1.2  # the first with at least 0.55
    assert (found["qk_during"], found["ov_during"], found["mlp_during"]) == (0.5, 2.5, 2.0)
    assert (found["ov_minus_qk"], found["mlp_minus_ov"]) == (2.0, -0.5)
    assert [found[f"{part}_ready_share"] for part in ("qk", "ov", "mlp")] == [0.4, 1.2, 1.2]
    assert (found["ov_after_qk"], found["mlp_after_ov"]) == (pytest.approx(0.8), 0.0)
    assert found["phase_lock"] == 0.9


def test_without_a_plateau_they_are_undefined():
    found = over_steps({**DONE, 160: {**DONE[160], "tuning": None, "solved_tuning": None}}, None, None)
    for name in (
        "tuning_during",
        "tuning_rise_share",
        "qk_during",
        "ov_minus_qk",
        "mlp_ready_share",
        "tuning_gap",
    ):
        assert found[name] is None
    unlearned = {step: measured(0.3, 1.0, 1.0, 1.0) for step in (0, 10)}
    unlearned[10] |= {"solved_tuning": 0.3, "solved_tuning_control": 0.3}
    assert over_steps(unlearned, 0, 10.0)["qk_ready_share"] is None


def test_attention_that_rises_on_the_plateau():
    config = RunConfig.parse(STUDY.recipes["mws"].data(0, "paper"))
    steps = range(0, 305, 5)
    loss = [2.9 if s < 50 else 2.6 if s < 200 else 1.3 for s in steps]
    # It falls between 100 and 110, and rises in all other pairs.
    apm = [s / 1000 - (0.05 if s > 105 else 0) for s in steps]
    table = pd.DataFrame({"step": steps, "loss": loss, "accuracy": 0.5, "apm_window_L0": apm})
    found = numbers_of_table(table, config)
    onset, drop = found["onset"], found["drop"]
    pairs = len(range(-(-int(onset) // 10) * 10, int(drop) - 9, 10))
    assert onset < 100 < drop
    assert found["apm_rising"] == pytest.approx((pairs - 1) / pairs)
    assert numbers_of_table(table.assign(loss=1.0), config)["apm_rising"] is None


@pytest.mark.parametrize("claim", STUDY.claims, ids=lambda claim: claim.id)
def test_every_claim_can_hold_and_can_fail(claim):
    inner = claim.low if claim.low is not None else claim.high
    bounds = [(claim.low, -1), (claim.high, 1)]
    assert check(claim, {"mws": [{claim.number: inner}] * claim.seeds}).verdict == "holds"
    for bound, direction in bounds:
        if bound is not None:
            assert check(claim, {"mws": [{claim.number: bound + direction}] * claim.seeds}).verdict == "fails"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Some steps of a narrow model."""
    config = RunConfig.for_task(
        "mws",
        task={"n": 4, "p": 7, "max_num": 6},
        model={"d_model": 16},
        training={"steps": 4, "batch_size": 8},
        evaluation={"every": 1, "samples": 8},
        checkpoints={"every": 2},
    )
    return train(config, runs_dir=tmp_path_factory.mktemp("runs"), threads=1)


def test_checkpoints_are_measured_once_and_every_claim_has_its_number(run, monkeypatch):
    assert "map_r2" not in STUDY.numbers(run, "paper")  # not measured yet
    table = TakenApart().measure(run, "paper")
    assert table["step"].tolist() == [0, 2, 4]
    assert table[list(EVERYWHERE)].notna().all(axis=None)
    monkeypatch.setattr(inside, "look", lambda *_: pytest.fail("measured again"))
    assert TakenApart().measure(run, "paper").equals(table)
    found = STUDY.numbers(run, "paper")
    assert {claim.number for claim in STUDY.claims} <= set(found)
    assert found["tuning_start"] == table["tuning"][0]
    kept = recorded_table(STUDY.reading, run.metrics, run.config)
    assert set(numbers_of_table(kept, run.config)) <= set(found)


@pytest.mark.parametrize("id", list(STUDY.figures))
def test_pictures(run, id):
    material = Material(
        "small", {"mws": [run.metrics]}, {"mws": [TakenApart().measure(run, "small")]}, {"mws": [run]}
    )
    figure = STUDY.figure(id)
    assert figure.picture(material).axes
    if figure.data is not None:
        table = figure.data(material)
        assert len(table) == 64
        assert table["share"].notna().all()
