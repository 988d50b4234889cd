"""The report in a real browser: it draws, moves, stays offline, and shows foreign text literally."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mechplateau.views import (
    CheckpointView,
    ClaimView,
    ColumnView,
    PlateauView,
    RunView,
    SampleView,
    TargetView,
    save_report,
)

pytestmark = pytest.mark.browser

MakeView = Callable[..., RunView]
DESKTOP = {"viewport": {"width": 1280, "height": 900}}
PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}


@pytest.fixture(scope="module")
def report(
    make_view: MakeView, open_page: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Any:
    path = save_report(make_view(), tmp_path_factory.mktemp("report") / "report.html")
    return open_page(path, **DESKTOP)


def go_to(report: Any, step: int) -> None:
    report.page.locator("#step-slider").evaluate(
        "(slider, index) => { slider.value = index; slider.dispatchEvent(new Event('input')); }", step // 20
    )
    report.page.wait_for_timeout(150)


def test_opens_quietly_and_draws(report: Any) -> None:
    report.check_quiet()
    for selector in ("#glance", "#attention", "#cosine"):
        assert report.colors(selector) > 50, selector
    charts = report.page.locator("#panels .chart, #output-maps .chart")
    assert charts.count() == 9
    assert report.page.locator(".js-plotly-plot .main-svg").count() >= 12
    assert report.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_slider_moves_maps_and_table_together(report: Any) -> None:
    seen = []
    for step in (0, 120, 400):
        go_to(report, step)
        assert f"Step {step} " in report.page.locator("#step-label").inner_text()
        seen.append(
            (report.pixels("#attention"), report.pixels("#cosine"), report.page.inner_text("#samples"))
        )
    for earlier, later in ((0, 1), (1, 2), (0, 2)):
        assert (seen[earlier][0] != seen[later][0]).any(axis=-1).mean() > 0.01
        assert (seen[earlier][1] != seen[later][1]).any(axis=-1).mean() > 0.1
        assert seen[earlier][2] != seen[later][2]
    assert "16 of 16 right" in seen[2][2]
    go_to(report, 0)
    np.testing.assert_array_equal(report.pixels("#attention"), seen[0][0])
    report.check_quiet()


def test_phase_buttons(report: Any) -> None:
    for phase, step in (("before", 0), ("during", 120), ("after", 400)):
        button = report.page.locator(f"[data-phase={phase}]")
        button.click()
        assert f"Step {step} " in report.page.inner_text("#step-label")
        assert button.get_attribute("aria-pressed") == "true"
        assert report.page.locator("[data-phase][aria-pressed=true]").count() == 1


def test_keyboard(report: Any) -> None:
    go_to(report, 120)
    report.page.locator("#step-slider").focus()
    report.page.keyboard.press("ArrowRight")
    assert "Step 140 " in report.page.inner_text("#step-label")
    report.page.evaluate("document.activeElement.blur()")
    report.page.keyboard.press("ArrowLeft")
    report.page.keyboard.press("ArrowLeft")
    assert "Step 100 " in report.page.inner_text("#step-label")
    report.page.keyboard.press("Tab")
    focused = "getComputedStyle(document.activeElement).outlineStyle"
    assert report.page.evaluate(focused) == "solid"
    unnamed = report.page.evaluate(
        """[...document.querySelectorAll("button, input, select")].filter(
        (control) => !control.labels?.length && !control.textContent.trim()).length"""
    )
    assert unnamed == 0


def test_play_runs_to_the_end(report: Any) -> None:
    go_to(report, 360)
    report.page.locator("#play").click()
    report.page.locator("#step-label", has_text="Step 400").wait_for()
    report.page.locator("#play[aria-pressed=false]").wait_for()


def test_options_of_the_map(report: Any) -> None:
    go_to(report, 0)
    common = report.pixels("#attention")
    report.page.locator("#own-scale").check()
    report.page.wait_for_timeout(100)
    assert "of this step" in report.page.inner_text("#attention-note")
    assert (report.pixels("#attention") != common).any()
    report.page.locator("#own-scale").uncheck()
    report.page.locator("#outline").uncheck()
    report.page.wait_for_timeout(100)
    assert "Outlined" not in report.page.inner_text("#attention-note")
    assert (report.pixels("#attention") != common).any()
    report.page.locator("#outline").check()


def test_dark_mode_is_followed_by_charts(report: Any) -> None:
    light = report.pixels("#glance")
    report.page.emulate_media(color_scheme="dark")
    report.page.wait_for_timeout(400)
    dark = report.pixels("#glance")
    report.page.emulate_media(color_scheme="light")
    report.page.wait_for_timeout(400)
    assert light.mean() > 200
    assert dark.mean() < 60
    assert dark.max() > 200  # the loss is drawn light on dark
    np.testing.assert_array_equal(report.pixels("#glance"), light)


def test_paper_is_light_and_shows_the_phases(report: Any) -> None:
    report.page.emulate_media(media="print", color_scheme="dark")
    report.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    report.page.wait_for_timeout(400)
    assert report.page.locator("#strip .main-svg").count() >= 6
    widest = "Math.max(...[...document.querySelectorAll('.main-svg')].map((svg) => svg.clientWidth))"
    assert report.page.evaluate(widest) <= 655  # what fits between the margins of A4
    assert report.page.locator("details[open]").count() == 2
    assert report.pixels(".cards").mean() > 200
    report.page.evaluate("dispatchEvent(new Event('afterprint'))")
    report.page.emulate_media(media="screen", color_scheme="light")
    report.page.wait_for_timeout(300)
    assert report.page.locator("details[open]").count() == 0
    assert report.page.evaluate(widest) > 900
    assert report.page.pdf().startswith(b"%PDF")
    report.check_quiet()


def test_heads_and_layers_are_chosen(
    make_view: MakeView, open_page: Callable[..., Any], tmp_path: Path
) -> None:
    first, second = (np.tril(np.ones((3, 8, 8))) * scale for scale in (1.0, -2.0))
    second[2] = 0
    view = make_view(
        checkpoints=(CheckpointView(0, (first, second)), CheckpointView(9, (first, 2 * second))),
        targets=(TargetView("window", 1, np.eye(8, dtype=bool)),),
        plateau=None,
        output_rows=(),
        groups=(4,),
        columns=(ColumnView("loss", "targets²", "squared error"),),
    )
    opened = open_page(save_report(view, tmp_path / "heads.html"), **DESKTOP)
    # Without a plateau nothing is before or after it.
    assert opened.page.locator("[data-phase]:enabled").all_inner_texts() == ["first 0", "last 9"]
    assert opened.page.inner_text("#strip figcaption") == "first checkpoint, step 0"
    axis = "document.getElementById('glance').layout.yaxis.title.text"
    assert opened.page.evaluate(axis) == "loss (targets²)"
    lines = (
        "document.getElementById('attention').layout.shapes.map((one) => [one.x0, one.x1, one.y0, one.y1])"
    )
    assert opened.page.evaluate(lines) == [[-0.5, 7.5, 3.5, 3.5], [3.5, 3.5, -0.5, 7.5]]
    assert "Lines part the rows" in opened.page.inner_text("#attention-note")
    opened.page.locator("#head").select_option("layer 1 · head 1")
    opened.page.wait_for_timeout(200)
    note = opened.page.inner_text("#attention-note")
    assert "scale ±4, the same at all steps" in note
    assert "Outlined" in note
    opened.page.locator("#head").select_option("layer 0 · head 2")
    opened.page.wait_for_timeout(200)
    assert opened.page.locator("#attention").get_attribute("aria-label").endswith("head 2: from 0 to 1")
    assert "Outlined" not in opened.page.inner_text("#attention-note")  # Ω belongs to the other layer
    opened.check_quiet()


def test_phone(make_view: MakeView, open_page: Callable[..., Any], tmp_path: Path) -> None:
    title = "a_name_without_any_place_to_break_" * 4
    for number, views in enumerate((make_view(title=title), [make_view(title=title), make_view(seed=1)])):
        opened = open_page(save_report(views, tmp_path / f"{number}.html"), **PHONE)
        opened.check_quiet()
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360
        assert opened.colors("#panels .chart") > 20


def test_hostile_text_is_literal(
    make_view: MakeView, open_page: Callable[..., Any], hostile: tuple[str, ...], tmp_path: Path
) -> None:
    script = hostile[0]
    table = make_view().metrics.rename(columns={"apm_window": f"apm_{script}"})
    table["apm_<b>other"] = 0.5
    sample = SampleView(hostile, hostile, (*hostile[1:], script))
    pattern = np.zeros((1, 32, 32), dtype=np.float32)
    pattern[0, 3, 1], pattern[0, 4, 1] = np.nan, -np.inf
    view = make_view(
        title=script,
        config_yaml=f"a: {script}",
        metrics=table,
        plateau=PlateauView(True, 62, 191, reason=script, before=0, during=20, after=20),
        checkpoints=(
            CheckpointView(0, (pattern,), None, (sample,)),
            CheckpointView(20, (pattern,), None, ()),
        ),
        targets=(TargetView(script, 0, np.eye(32, dtype=bool)),),
        claims=(ClaimView(script, script, "<i>", True),),
        environment={script: script},
    )
    opened = open_page(save_report(view, tmp_path / "hostile.html"), **DESKTOP)
    opened.page.locator("[data-phase=before]").click()
    opened.page.wait_for_timeout(200)
    opened.check_quiet()
    assert opened.page.evaluate("typeof window.x") == "undefined"
    assert opened.page.inner_text("h1") == script
    assert opened.page.title().startswith(script)
    for row in opened.page.locator(".tokens tr").all()[:2]:
        cells = row.locator("td").all_text_contents()
        assert len(cells) == len(hostile)
        assert cells[:6] == list(hostile[:6])
        assert cells[6:] == ["↵", "⟨U+2028⟩", "🙂", "␣a", "∅", hostile[-1]]
    assert script in opened.page.inner_text("#panels")
    assert "2 undefined cells" in opened.page.inner_text("#attention-note")
    yellow = (opened.pixels("#attention") == (242, 197, 0)).all(axis=-1).sum()
    assert yellow > 30
    both = open_page(save_report([view, make_view()], tmp_path / "both.html"), **DESKTOP)
    both.check_quiet()
    assert both.page.evaluate("typeof window.x") == "undefined"
    assert script in both.page.inner_text("thead")


def test_a_negative_cosine_is_on_the_chart(
    make_view: MakeView, open_page: Callable[..., Any], tmp_path: Path
) -> None:
    opened = open_page(save_report(make_view(), tmp_path / "usual.html"), **DESKTOP)
    low = "document.getElementById('glance').layout.yaxis2.range[0]"
    assert -0.05 < opened.page.evaluate(low) < 0
    metrics = make_view().metrics.assign(cos_final=-0.6)
    opened = open_page(save_report(make_view(metrics=metrics), tmp_path / "negative.html"), **DESKTOP)
    assert opened.page.evaluate(low) < -0.6
    opened.check_quiet()


def test_what_is_undefined_is_shown_as_undefined(
    make_view: MakeView, open_page: Callable[..., Any], tmp_path: Path
) -> None:
    metrics = make_view().metrics
    metrics.loc[100:200, ["loss", "cos_final", "accuracy_out_3"]] = np.nan
    metrics.loc[159, ["loss", "cos_final", "accuracy_out_3"]] = 0.5
    nothing = CheckpointView(
        0, (np.tril(np.full((1, 32, 32), np.nan)),), None, (SampleView(("1",), ("2", "3"), ("2", None)),)
    )
    view = make_view(metrics=metrics, checkpoints=(nothing,), plateau=None)
    opened = open_page(save_report(view, tmp_path / "undefined.html"), **DESKTOP)
    assert "every value is undefined" in opened.page.inner_text("#attention-note")
    assert "scale" not in opened.page.inner_text("#attention-note")
    assert "every value is undefined" in opened.page.locator("#attention").get_attribute("aria-label")
    cell = opened.page.locator(".tokens td.undefined")
    assert (cell.count(), cell.inner_text()) == (1, "×")
    assert "1 of 2 right, 1 undefined" in opened.page.inner_text("#samples caption")
    # The lone value is a dot in its curve, on both charts that have it, and in the thin line of output 3.
    dots = """(chart) => chart.data.flatMap((trace) => [].concat(trace.marker?.size ?? [])
        .flatMap((size, index) => size > 0 ? [trace.x[index]] : []))"""
    glance, panel = opened.page.locator("#glance"), opened.page.locator("#panels .chart")
    assert glance.evaluate(dots) == [160, 160]  # loss and COS
    assert panel.nth(0).evaluate(dots) == [160]
    assert panel.nth(1).evaluate(dots) == [160]
    box = panel.nth(0).bounding_box()
    panel.nth(0).hover(position={"x": box["width"] / 2, "y": box["height"] / 2})
    opened.page.locator("#panels .hoverlayer .legend").first.wait_for(timeout=5000)
    assert opened.page.locator("#panels .hoverlayer").first.text_content().startswith("step 160")
    opened.check_quiet()


def test_nine_runs_can_be_told_apart(
    make_view: MakeView, open_page: Callable[..., Any], tmp_path: Path
) -> None:
    views = [make_view(seed=seed, title=f"mws-{seed}c14e9ed2908", checkpoints=()) for seed in range(9)]
    opened = open_page(save_report(views, tmp_path / "nine.html"), **DESKTOP)
    looks = opened.page.evaluate(
        """[...document.querySelectorAll(".verdicts .swatch")].map((swatch) => getComputedStyle(swatch).background)"""
    )
    assert len(set(looks)) == 9
    opened.check_quiet()
    assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
