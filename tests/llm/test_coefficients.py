"""Learning coefficients over a series: text as data, the same at every checkpoint, kept and resumed."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM

from mechplateau.cli import llm as cli_llm
from mechplateau.development import Rows, llc
from mechplateau.development import over_checkpoints as module
from mechplateau.errors import CheckpointError, UserError
from mechplateau.llm import analyze_series, series_llc

from .conftest import TEXT

SETTINGS = {"step_size": 1e-4, "n_beta": 20.0, "chains": 2, "draws": 3, "batch_size": 4, "elasticity": False}


@pytest.fixture
def identified(make_series):
    series = make_series([0, 1, 2])
    return series, analyze_series(series, identity_only=True, prompts=[]).table


def test_it_is_the_estimate_of_transformers_model_on_the_texts_rows(identified, tokenizer, tmp_path: Path):
    series, table = identified
    found = series_llc(series, table, TEXT * 4, folder=tmp_path / "kept", row_length=8, **SETTINGS)
    ids = tokenizer(TEXT * 4)["input_ids"]
    rows = torch.tensor(ids[: len(ids) // 8 * 8]).view(-1, 8)
    assert (found.rows, found.row_length, found.left_out) == (len(rows), 8, ())
    model = AutoModelForCausalLM.from_pretrained(series / "step1")

    def losses(model, tokens):
        logits = model(input_ids=tokens).logits[:, :-1]
        return torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")

    alone = llc(model, losses, Rows(rows, 4), localization=100.0, step_check=False, **SETTINGS)
    line = found.found.table.set_index("step").loc[1]
    np.testing.assert_allclose(found.found.traces[1]["losses"], alone.losses, rtol=1e-4)
    assert line["loss"] == pytest.approx(alone.loss, rel=1e-5)
    counts = Counter(rows[:, 1:].flatten().tolist())
    shares = [count / sum(counts.values()) for count in counts.values()]
    assert line["trivial_loss"] == pytest.approx(-sum(p * math.log(p) for p in shares))
    assert line["n"] == len(rows)
    assert list(found.found.table["step"]) == [0, 1, 2]


def test_what_is_kept_is_not_made_twice_and_counts_for_its_weights_only(
    identified, copy_weights, tmp_path: Path, monkeypatch
):
    series, table = identified
    given = {"folder": tmp_path / "kept", "row_length": 8, **SETTINGS}
    first = series_llc(series, table, TEXT * 4, **given)
    made = []
    original = module.llc
    monkeypatch.setattr(module, "llc", lambda *a, **k: made.append(1) or original(*a, **k))
    again = series_llc(series, table, TEXT * 4, **given)
    pd.testing.assert_frame_equal(again.found.table, first.found.table)
    assert made == []
    copy_weights(series / "step0", series / "step2")
    changed = analyze_series(series, identity_only=True, prompts=[]).table.assign(doubtful=False)
    other = series_llc(series, changed, TEXT * 4, **given).found.table
    assert made == [1]
    assert other["llc"][2] == other["llc"][0]
    series_llc(series, table[:1], TEXT * 5, **given)
    assert len(made) == 2


def test_a_checkpoint_with_another_tokenizer_is_left_out(identified, tmp_path: Path):
    series, table = identified
    data = json.loads((series / "step0" / "tokenizer.json").read_text())
    data["model"]["merges"] = []
    (series / "step1" / "tokenizer.json").write_text(json.dumps(data))
    found = series_llc(series, table, TEXT * 4, folder=tmp_path / "kept", row_length=8, **SETTINGS)
    assert found.left_out == ("step1",)
    beside = found.beside(table)
    assert beside["llc_verdict"].isna().tolist() == [False, True, False]


def test_what_cannot_be_measured_is_one_line(identified, tmp_path: Path):
    series, table = identified
    kept = {"folder": tmp_path / "kept", **SETTINGS}
    cases = [
        ({"text": "one"}, "expected a text of at least 2 rows of 128 tokens, got"),
        ({"text": " "}, "expected a text, got an empty one"),
        ({"text": TEXT, "row_length": 129}, "expected rows of 2 to 128 tokens, as the models take; got 129"),
        ({"text": TEXT, "row_length": 8, "batch_size": 900}, "batch_size: expected 1 to"),
    ]
    for given, said in cases:
        with pytest.raises(UserError, match=said):
            series_llc(series, table, **{**kept, **given})
    with pytest.raises(CheckpointError, match="no checkpoint to measure"):
        series_llc(series, table[:0], TEXT, **kept)
    assert not (tmp_path / "kept").exists()


def test_the_command_has_a_column_a_figure_and_a_section(make_series, tmp_path: Path, capsys):
    series = make_series([0, 1])
    text = tmp_path / "text.txt"
    text.write_text(TEXT * 4)
    runs = tmp_path / "runs"
    options = {"n_prompts": 2, "n_tokens": 2, "runs_dir": runs, "llc": True, "llc_text": text, "llc_row": 8}
    small = {"llc_chains": 1, "llc_draws": 2, "llc_batch": 4, "llc_step_size": 1e-4}
    cli_llm.llm(str(series), **options, **small)
    (folder,) = runs.iterdir()
    table, own = (pd.read_parquet(folder / f"{name}.parquet") for name in ("series", "llc"))
    assert table["llc"].tolist() == own["paired"].tolist()
    assert table["llc_verdict"].tolist() == own["verdict"].tolist()
    assert (folder / "llc.pdf").stat().st_size > 1000
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert "Learning coefficient</h2>" in page
    output = capsys.readouterr().out
    for verdict in own["verdict"]:
        assert verdict in page
        assert verdict in output
    with pytest.raises(UserError, match="--llc-row: is for learning coefficients; add --llc"):
        cli_llm.llm(str(series), llc_row=8)
    with pytest.raises(UserError, match="--llc: measures, and --identity-only measures nothing"):
        cli_llm.llm(str(series), llc=True, identity_only=True)
