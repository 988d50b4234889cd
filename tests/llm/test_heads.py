"""What the heads of a series attend to, and when each is born."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from mechplateau.circuits import attention_scores, repeated_tokens
from mechplateau.cli import llm as cli_llm
from mechplateau.errors import CheckpointError
from mechplateau.llm import analyze_series, births, load_hooked, series_heads
from mechplateau.views.llm_heads import plot_heads


def of_one_head(masses, head=0, name="induction"):
    steps = [0, 1, 2, 4, 8][: len(masses)]
    table = pd.DataFrame({"step": steps, "label": [f"step{s}" for s in steps], "layer": 1, "head": head})
    return table.assign(set=name, mass=pd.array(masses, dtype="Float64"))


def test_a_head_is_born_where_it_first_has_half_of_what_it_will_have():
    heads = pd.concat(
        [
            of_one_head([0.01, 0.25, 0.5, 0.9, 0.8]),
            of_one_head([0.1, 0.15, 0.19, 0.1, 0.1], head=1),
            of_one_head([None, 0.21, 0.1, 0.1, 0.05], head=2),
        ]
    )
    table = births(heads)
    assert table.to_dict("records") == [
        {"layer": 1, "head": 2, "set": "induction", "born": 1, "most": 0.21, "most_at": 1, "last": 0.05},
        {"layer": 1, "head": 0, "set": "induction", "born": 2, "most": 0.9, "most_at": 4, "last": 0.8},
    ]


def test_heads_of_a_series_are_kept_by_content(make_series, copy_weights, loads, tmp_path: Path):
    series = make_series([0, 1, 2, 4])
    copy_weights(series / "step0", series / "step1")
    (series / "step2" / "model.safetensors").unlink()
    analysis = analyze_series(series, identity_only=True, prompts=[])
    ran: list[str] = []

    def tool(model):
        ran.append(model.cfg.model_name)
        return attention_scores(model, repeated_tokens(model.cfg.d_vocab, length=8, batch=1))

    arguments = {"settings": "a", "folder": tmp_path / "kept"}
    table = series_heads(series, analysis.table, tool, **arguments)
    assert table["step"].unique().tolist() == [0, 1, 4]
    assert ran == ["step0", "step4"]
    want = attention_scores(load_hooked(series, 4), repeated_tokens(300, length=8, batch=1))
    assert table[table["step"] == 4]["mass"].tolist() == want["mass"].tolist()
    again = series_heads(series, analysis.table, tool, **arguments)
    pd.testing.assert_frame_equal(again, table)
    assert len(ran) == 2
    series_heads(series, analysis.table, tool, settings="b", folder=tmp_path / "kept")
    assert len(ran) == 4
    with pytest.raises(CheckpointError, match="no checkpoint to look into"):
        series_heads(series, analysis.table[:0], tool, settings="a")


def test_the_command_tabulates_draws_and_shows_them(make_series, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setattr("mechplateau.llm.heads.BORN", 0.01)
    series = make_series([0, 1])
    options = {"n_prompts": 2, "runs_dir": tmp_path / "runs", "heads": True}
    cli_llm.llm(str(series), **options)
    (folder,) = (tmp_path / "runs").iterdir()
    table = pd.read_parquet(folder / "heads.parquet")
    assert len(table) == 2 * 2 * 2 * 5
    assert table["length"].unique().tolist() == [64]
    assert (folder / "heads.pdf").stat().st_size > 1000
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert "What the heads attend to" in page
    output = capsys.readouterr().out
    born = births(table)
    for row in born.itertuples():
        assert f"L{row.layer}H{row.head}" in output
        assert f'<th scope="row">L{row.layer}H{row.head}</th><td>{row.set.replace("_", " ")}</td>' in page
    assert len(born) > 0


def test_doubtful_checkpoints_are_on_no_line():
    heads = of_one_head([0.1, 0.9, 0.3, 0.4, 0.5])
    series = pd.DataFrame(
        {
            "step": pd.array([0, 1, 2, 4, 8], dtype="Int64"),
            "verdict": ["ok", "duplicate", "ok", "ok", "ok"],
            "doubtful": [False, True, False, False, False],
            "joined": [False, False, False, True, True],
            "cos_final": 0.5,
            "repetition": 0.25,
        }
    )
    figure = plot_heads(heads, series)
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == ["Collapse and repetition", "After an earlier copy (induction)"]
    lines = [line.get_ydata().tolist() for line in figure.axes[1].get_lines()]
    assert [0.1] in lines
    assert [0.3, 0.4, 0.5] in lines
    assert all(0.9 not in line for line in lines)


def test_without_heads_collapse_and_repetition_are_drawn(tmp_path: Path):
    series = pd.DataFrame(
        {"step": pd.array([0, 1], dtype="Int64"), "verdict": "ok", "doubtful": False, "joined": True}
    )
    for cos, drawn in ((0.5, 1), (float("nan"), 0)):
        figure = plot_heads(of_one_head([])[:0], series.assign(cos_final=cos, repetition=float("nan")))
        (ax,) = figure.axes
        assert (ax.get_title(loc="left"), bool(ax.lines)) == ("Collapse and repetition", bool(drawn))
