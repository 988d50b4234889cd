"""The second table of a run: what it holds, and that nothing in it is made twice."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest

from mechplateau import RunConfig, train
from mechplateau.development import afterwards as made_afterwards
from mechplateau.development.afterwards import PUBLISHED_LR, TABLE, afterwards
from mechplateau.errors import UserError

SHORT = dataclasses.replace(PUBLISHED_LR, draws=4, burn_in=2, batch_size=8)


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


def test_every_coefficient_has_its_verdict_and_nothing_is_made_twice(run, monkeypatch):
    steps = []
    table = afterwards(
        run,
        kinds=("ood", "llc"),
        chains=SHORT,
        steps=[0, 4],
        progress=lambda step, kind: steps.append((step, kind)),
    )
    assert steps == [(0, "ood"), (0, "llc"), (4, "ood"), (4, "llc")]
    coefficients = table[table["kind"] == "llc"]
    assert coefficients["verdict"].notna().all()
    assert coefficients["reason"].str.len().gt(0).all()
    assert (coefficients["trivial_loss"] == 2.125).all()
    assert coefficients["mean_loss"].notna().all()
    assert table[table["kind"] == "ood"]["ood_inputs_x100_per_g2"].gt(0).all()

    def refuse(*arguments):
        raise AssertionError("made again")

    monkeypatch.setattr(made_afterwards, "_MEASURES", dict.fromkeys(made_afterwards.KINDS, refuse))
    again = afterwards(run, kinds=("ood", "llc"), chains=SHORT, steps=[0, 4])
    pd.testing.assert_frame_equal(again, table)
    # Other settings are another row.
    with pytest.raises(AssertionError, match="made again"):
        afterwards(run, kinds=("llc",), chains=dataclasses.replace(SHORT, n_beta=30.0), steps=[0])
    assert len(pd.read_parquet(run.path / TABLE)) == 4


def test_curvature_needs_a_second_derivative_which_fused_attention_has_not(run):
    table = afterwards(run, kinds=("curvature",), steps=[4])
    row = table[table["kind"] == "curvature"].iloc[0]
    assert row["hessian_1"] >= row["hessian_2"] >= row["hessian_3"]
    assert row["hessian_trace"] > 0


def test_what_is_not_known_is_said_in_a_line(run):
    with pytest.raises(UserError, match="kinds: expected ood, curvature, llc, got 'more'"):
        afterwards(run, kinds=("more",))
