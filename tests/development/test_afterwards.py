"""The second table of a run: what it holds, and that nothing in it is made twice."""

from __future__ import annotations

import pandas as pd
import pytest

from mechplateau import RunConfig, train
from mechplateau.development import afterwards as made_afterwards
from mechplateau.development import llc_over_run
from mechplateau.development.afterwards import afterwards
from mechplateau.errors import UserError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = RunConfig.for_task(
        "in_context_regression",
        task={"d": 2, "n_pairs": 3},
        model={"d_model": 8, "n_heads": 2},
        training={"steps": 4, "batch_size": 8},
        checkpoints={"every": 2},
    )
    return train(config, runs_dir=tmp_path_factory.mktemp("runs"))


def test_the_table_has_a_row_a_checkpoint_and_nothing_is_made_twice(run, monkeypatch, heard):
    table = afterwards(run, steps=[0, 4], batch_size=64, progress=heard)
    assert heard.words == [f"{kind} at step {step}" for step in (0, 4) for kind in ("ood", "curvature")]
    assert heard.counts[-1] == ("afterwards", 4, 4)
    assert table["step"].tolist() == [0, 4]
    assert table["ood_inputs_x100"].tolist() == pytest.approx(
        (table["ood_inputs_x100_per_g2"] * 100**2).tolist()
    )
    assert (table["hessian_1"] >= table["hessian_2"]).all()
    assert (table["hessian_2"] >= table["hessian_3"]).all()
    assert table["hessian_trace"].gt(0).all()

    def refuse(*arguments):
        raise AssertionError("made again")

    monkeypatch.setattr(made_afterwards, "_MEASURES", dict.fromkeys(made_afterwards.KINDS, refuse))
    pd.testing.assert_frame_equal(afterwards(run, steps=[0, 4], batch_size=64), table)
    with pytest.raises(AssertionError, match="made again"):
        afterwards(run, kinds=("curvature",), steps=[0], batch_size=32)


def test_coefficients_with_the_papers_settings_have_a_verdict(run):
    short = {**run.task.llc_settings["published"], "draws": 4, "burn_in": 2, "batch_size": 8}
    table = llc_over_run(run, [4], **short).table
    assert table["verdict"].notna().all()
    assert table["reason"].str.len().gt(0).all()
    assert table["trivial_loss"].tolist() == [2.125]


def test_what_cannot_be_measured_is_said_in_a_line(run, monkeypatch):
    with pytest.raises(UserError, match="kinds: expected ood, curvature, got 'more'"):
        afterwards(run, kinds=("more",))
