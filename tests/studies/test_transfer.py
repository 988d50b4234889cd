"""Attention transfer, trained: which runs there are, what each moves, and what the tables say of them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from mechplateau.config import RunConfig
from mechplateau.errors import UserError
from mechplateau.runs import load_run
from mechplateau.signs import Plateau
from mechplateau.studies import transfer
from mechplateau.studies.transfer import transfer_controls, transfer_matrix
from mechplateau.training import train

SIZES = {"mws": {"n": 4, "k": 2, "p": 7, "max_num": 6}, "copy": {"n": 3, "max_num": 5}}
PLATEAU = Plateau(True, 20, 60, 40.0, 2.0, 1.0, 0.9, "")


def tiny(name="mws", **sections):
    """Four steps of width 8: far too few for a plateau."""
    return RunConfig.for_task(
        name,
        task=SIZES[name],
        model={"d_model": 8},
        training={"steps": 4, "batch_size": 8},
        evaluation={"samples": 4, "every": 1},
        checkpoints={"every": 2},
        **sections,
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return train(tiny(), runs_dir=tmp_path_factory.mktemp("runs"), threads=1)


def test_the_matrix_trains_each_pair_once_and_keeps_refusals(source, tmp_path):
    heard = []
    matrix = transfer_matrix(
        {"mws": source},
        {"again": tiny(seed=1), "short": tiny("copy")},
        "KQ",
        runs_dir=tmp_path,
        threads=1,
        on_run=lambda *names: heard.append(names),
    )
    assert heard == [("again", None), ("again", "mws"), ("short", None)]
    trained, refused = matrix.table.iloc[0], matrix.table.iloc[1]
    assert trained["run"] is not pd.NA
    assert "baseline has no plateau" in trained["why"]
    assert refused["run"] is pd.NA
    assert "positions of shape [9, 8] in mws do not fit [7, 8] in copy" in refused["why"]
    assert matrix.table["left"].isna().all()
    assert matrix.grid().shape == (1, 2)
    assert list(matrix.grid().columns) == ["again", "short"]


def test_the_matrix_says_which_runs_were_solved(monkeypatch):
    """A baseline that ends in the middle of its drop has a plateau too."""
    metrics = pd.DataFrame({"step": np.arange(0, 100, 10), "loss": [2.0] * 5 + [1.0] * 5})
    solved = {"baseline": None, "moved": 7}

    def trained(config, **options):
        return SimpleNamespace(
            phases=SimpleNamespace(plateau=PLATEAU), metrics=metrics, path=config, solved_at=solved[config]
        )

    monkeypatch.setattr(transfer, "train", trained)
    monkeypatch.setattr(transfer, "transferred", lambda *given, **options: "moved")
    line = transfer_matrix({"source": None}, {"target": "baseline"}).table.iloc[0]
    assert line["solved_at"] == 7
    assert line["baseline_solved_at"] is pd.NA
    assert line["baseline_drop"] == PLATEAU.drop


def test_controls_are_trained_beside_the_transfer(source, tmp_path):
    """Few steps: which runs there are, and what each moves; what comes out is a matter of longer ones."""
    heard = []
    table = transfer_controls(
        source,
        tiny(seed=3),
        seeds=2,
        other=source,
        runs_dir=tmp_path,
        threads=1,
        on_run=lambda seed, what: heard.append((seed, what)),
    )
    whats = ["KQ", "QK_only", "inputs", "step 0", "other run"]
    assert list(table["what"]) == whats * 2
    assert list(table["seed"]) == [3] * 5 + [4] * 5
    assert heard == [(seed, what) for seed in (3, 4) for what in ("nothing", *whats)]
    untrained = load_run(table["run"][3])
    first, start = untrained.weights(0), source.weights(0)
    assert torch.equal(first["blocks.0.attn.W_Q"], start["blocks.0.attn.W_Q"])
    assert not torch.equal(first["blocks.0.mlp.W_in"], start["blocks.0.mlp.W_in"])
    assert table["why"].str.contains("no plateau").all()
    assert table["left"].isna().all()
    with pytest.raises(UserError, match="seeds: expected at least 1, got 0"):
        transfer_controls(source, tiny(), seeds=0)
