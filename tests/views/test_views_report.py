"""The report as text: self-contained, small enough, escaped, written whole or not at all."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mechplateau.views import (
    CheckpointView,
    EventView,
    PlateauView,
    RunView,
    SampleView,
    SectionView,
    StoryView,
    ViewError,
    render_report,
    save_report,
)
from mechplateau.views._payload import MAX_ROWS
from mechplateau.views.configs import differing_settings
from mechplateau.views.figure import PaperFigure

MakeView = Callable[..., RunView]


def payload_of(html: str) -> dict:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert match
    return json.loads(match[1])


def test_nothing_is_fetched_from_anywhere(make_view: MakeView) -> None:
    for html in (render_report(make_view()), render_report([make_view(), make_view(seed=1)])):
        # The chart library knows map servers by name; the page's own policy forbids it any connection.
        assert "default-src 'none'" in html
        assert not re.search(r"<(script|img|iframe|source|video|audio|embed|object)\b[^>]*\bsrc=", html)
        assert not re.search(r"<link\b(?![^>]*href=\"data:)", html)
        own = html.split("<style>")[1].split("</style>")[0]
        assert "url(" not in own
        assert "@import" not in own
        assert html.count("plotly.js v") == 1
        assert "mathjax" not in html.split("<script>")[0].lower()


def test_size_of_a_paper_run(make_view: MakeView) -> None:
    view = make_view()
    assert len(view.metrics) == 400
    assert len(view.checkpoints) == 21
    assert len(render_report(view).encode()) <= 6_000_000


def test_equal_input_gives_equal_text(make_view: MakeView) -> None:
    assert render_report(make_view()) == render_report(make_view())


def test_maps_arrive_unchanged(make_view: MakeView) -> None:
    view = make_view()
    layer = payload_of(render_report(view))["layers"][0]
    sent = np.frombuffer(base64.b64decode(layer["data"]), "<f4").reshape(21, *layer["shape"])
    np.testing.assert_array_equal(sent, np.stack([c.pattern[0] for c in view.checkpoints]))
    assert layer["limit"] == pytest.approx(np.abs(sent).max())


def test_undefined_numbers_are_null(make_view: MakeView) -> None:
    table = pd.DataFrame({"step": [0, 1, 2], "loss": [2.0, None, float("inf")]})
    columns = payload_of(render_report(make_view(metrics=table)))["curves"]["columns"]
    assert columns == {"loss": [2.0, None, None]}


def test_undefined_tokens_are_neither_text_nor_right(make_view: MakeView) -> None:
    sample = SampleView(("1", "SEP"), ("2", "3"), ("2", None))
    html = render_report(make_view(checkpoints=(CheckpointView(0, samples=(sample,)),)))
    (sent,) = payload_of(html)["checkpoints"][0]["samples"]
    assert sent["predicted"] == ["2", None]
    assert sent["right"] == [True, False]
    assert "× undefined" in html
    assert "× undefined" not in render_report(make_view())
    # Not even where the right answer is undefined as well.
    sample = SampleView(("1",), (None,), (None,))
    html = render_report(make_view(checkpoints=(CheckpointView(0, samples=(sample,)),)))
    assert payload_of(html)["checkpoints"][0]["samples"][0]["right"] == [False]


def test_a_layer_without_a_value_has_no_scale(make_view: MakeView) -> None:
    maps = np.full((1, 4, 4), np.nan)
    html = render_report(make_view(checkpoints=(CheckpointView(0, (maps,)),), targets=()))
    assert payload_of(html)["layers"][0]["limit"] is None


def test_a_value_between_undefined_ones_is_a_dot_on_its_card(make_view: MakeView) -> None:
    table = pd.DataFrame({"step": [0, 1, 2, 3], "loss": [2.0, None, 1.0, None]})
    html = render_report(make_view(metrics=table))
    assert re.search(r'<path d="M0\.0 2\.0h0M66\.7 26\.0h0"/>', html)


def test_long_runs_are_thinned_and_say_so(make_view: MakeView) -> None:
    steps = np.arange(3 * MAX_ROWS)
    html = render_report(make_view(metrics=pd.DataFrame({"step": steps, "loss": 1.0 / (1 + steps)})))
    assert len(payload_of(html)["curves"]["steps"]) == MAX_ROWS
    assert "Every 3th evaluation" not in html
    assert "1 of 3 evaluations is drawn" in html


def test_many_large_maps_are_thinned_and_say_so(make_view: MakeView) -> None:
    rng = np.random.default_rng(0)
    checkpoints = tuple(
        CheckpointView(step, (rng.normal(size=(8, 48, 48)), rng.normal(size=(8, 48, 48))))
        for step in range(60)
    )
    plateau = PlateauView(True, 7, 31, before=0, during=17, after=59)
    html = render_report(make_view(checkpoints=checkpoints, targets=(), plateau=plateau))
    shown = [checkpoint["step"] for checkpoint in payload_of(html)["checkpoints"]]
    assert len(html.encode()) < 8_000_000
    assert 10 < len(shown) < 60
    assert {0, 17, 59} <= set(shown)
    assert max(np.diff(shown)) <= 8
    assert f"{len(shown)} of the run&#39;s 60 are here" in html.replace("run's", "run&#39;s")


def test_key_numbers_are_on_the_page(make_view: MakeView) -> None:
    html = render_report(make_view())
    for text in ("0.974", "at step 102", "0.079 → 0.600 → 0.710", "1.000", "130 – 260", "✓ holds", "✗ fails"):
        assert text in html, text


def test_bare_runs_still_have_a_report(make_view: MakeView) -> None:
    table = pd.DataFrame({"step": [0], "loss": [2.0]})
    html = render_report(
        make_view(metrics=table, checkpoints=(), plateau=None, targets=(), claims=(), environment={})
    )
    assert 'id="step-slider"' not in html
    assert "<h2>Environment</h2>" not in html
    empty = RunView("empty", "", pd.DataFrame({"step": []}), PlateauView(False), (), (), ())
    assert "No plateau was found" in render_report(empty)
    without_maps = make_view(checkpoints=(CheckpointView(0), CheckpointView(400)))
    # Nothing to look inside: no slider that moves nothing, and events that are no buttons.
    page = render_report(replace(without_maps, story=StoryView("t", events=(EventView(5, "loss", "falls"),))))
    assert 'id="attention"' not in page
    assert 'id="step-slider"' not in page
    assert "data-event=" not in page.split("<script")[0]
    assert "<b>5</b> falls" in page


def test_comparison_names_what_differs(make_view: MakeView) -> None:
    other = make_view(seed=1, title="other", config_yaml=make_view().config_yaml.replace("k: 2", "k: 3"))
    html = render_report([make_view(), other])
    assert "task.<wbr>k" in html
    assert "training.<wbr>lr" not in html
    assert "2 runs compared" in html
    payload = payload_of(html)
    assert [run["title"] for run in payload["runs"]] == ["mws, seed 0", "other"]
    assert [run["label"] for run in payload["runs"]] == ["k 2", "k 3"]
    assert [len(run["checkpoints"]) for run in payload["runs"]] == [3, 3]
    assert "accuracy_out_3" in payload["runs"][0]["outputCurves"]["columns"]
    assert all("accuracy_out_3" not in run["curves"]["columns"] for run in payload["runs"])


def test_comparison_has_a_panel_for_each_measure_of_any_run(make_view: MakeView) -> None:
    more = make_view().metrics.assign(cos_L0_resid_post=0.5, apm_other=0.25)
    html = render_report([make_view(), make_view(metrics=more)])
    titles = [panel["title"] for panel in payload_of(html)["panels"]]
    assert len(titles) == len(set(titles))
    assert {
        "Loss",
        "Collapse (COS)",
        "Collapse (COS): layer 0 resid_post",
        "Attention progress (APM): other",
    } <= set(titles)
    assert not any("data" in title for title in titles)


def test_differing_settings() -> None:
    first, second = "a: 1\nb: {c: [1, 2], d: x}\n", "a: 1\nb: {c: [1], e: null}\n"
    assert differing_settings([first, second]) == [
        ("b.c", ["[1, 2]", "[1]"]),
        ("b.d", ["x", "–"]),
        ("b.e", ["–", "null"]),
    ]
    assert differing_settings([first, first]) == []
    assert differing_settings(["just text", "[broken"]) == [("config", ["just text", "[broken"])]


def test_no_run_is_refused() -> None:
    with pytest.raises(ViewError, match="at least one run"):
        render_report([])


def test_save_writes_whole_files_only(
    make_view: MakeView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_report(make_view(), tmp_path / "out" / "report.html")
    first = path.read_bytes()
    assert first.decode() == render_report(make_view())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ViewError, match=r"report\.html: cannot write it \(No space left on device\)"):
        save_report(make_view(title="second"), path)
    assert path.read_bytes() == first
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_lone_surrogates_can_be_saved(make_view: MakeView, tmp_path: Path) -> None:
    path = save_report(make_view(title="\ud800", config_yaml="a: \ud800"), tmp_path / "report.html")
    assert "⟨U+D800⟩" in path.read_text(encoding="utf-8")


def test_runs_of_different_tasks_have_panels_of_different_names(make_view: MakeView) -> None:
    other = make_view().metrics.rename(columns={"apm_window": "apm_copy"})
    titles = [
        panel["title"]
        for panel in payload_of(render_report([make_view(), make_view(metrics=other)]))["panels"]
    ]
    assert len(titles) == len(set(titles))
    assert {"Attention progress (APM): window", "Attention progress (APM): copy"} <= set(titles)


def test_comparison_shows_what_is_expected_of_a_claim(make_view: MakeView) -> None:
    html = render_report([make_view(claims=()), make_view()])
    assert "COS peaks before the drop<small>≥ 0.93</small>" in html
    assert "undecided" in html


def test_sections_of_ones_own_are_shown_with_their_text_escaped(make_view: MakeView) -> None:
    picture = PaperFigure(2, 1)
    picture.subplots().plot([0, 1], [1, 0])
    section = SectionView(
        "Chains <here>",
        ("What & why.",),
        picture,
        "a falling line",
        ("step", "verdict"),
        (("120", "<b>local</b>"),),
    )
    page = render_report(replace(make_view(), sections=(section,)))
    assert "Chains &lt;here&gt;" in page
    assert "What &amp; why." in page
    assert "&lt;b&gt;local&lt;/b&gt;" in page
    data = page.partition('src="data:image/png;base64,')[2].partition('"')[0]
    assert base64.b64decode(data).startswith(b"\x89PNG")
    assert 'alt="a falling line"' in page
    with pytest.raises(ViewError, match="a picture needs alt"):
        SectionView("Chains", picture=picture)
    with pytest.raises(ViewError, match="expected 2 cells in each row"):
        SectionView("Chains", columns=("a", "b"), rows=(("1",),))
