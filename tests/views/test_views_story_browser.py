"""The story in a browser: events on the chart, the peak it opens at, runs beside each other, and the printed pages."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mechplateau.views import EventView, RunView, StoryView, save_report

pytestmark = pytest.mark.browser

MakeView = Callable[..., RunView]
DESKTOP = {"viewport": {"width": 1280, "height": 900}}
EVENTS = (
    EventView(62, "loss", "the plateau begins"),
    EventView(64, "accuracy", "output 0 right"),
    EventView(102, "cos", "the collapse peaks"),
    EventView(191, "apm", "the loss drops <b>"),
)


def told(view: RunView) -> RunView:
    return replace(
        view, story=StoryView("Moving window sum", "A sentence.", EVENTS, 102, 1.3, True, "output 0", 64)
    )


def pages(page: Any) -> int:
    return len(re.findall(rb"/Type\s*/Page\b(?!s)", page.pdf()))


def test_every_event_is_a_mark_that_leads_to_its_step(
    make_view: MakeView, open_page: Callable[..., Any], tmp_path: Path
) -> None:
    opened = open_page(save_report(told(make_view()), tmp_path / "story.html"), **DESKTOP)
    page = opened.page
    assert "Step 100 " in page.inner_text("#step-label")  # opens at the checkpoint nearest to the peak
    assert "near the peak of the collapse, step 100" in page.inner_text("#strip")
    assert page.locator("#strip .chart").count() == 8
    marks = """[...document.querySelectorAll("#glance .annotation")].map((mark) => mark.getBoundingClientRect())
        .filter((box) => box.width < 30).map(({ left, right, top, bottom }) => [left, right, top, bottom])"""
    boxes = page.evaluate(marks)
    assert len(boxes) == 4
    for i, one in enumerate(boxes):
        for other in boxes[:i]:
            apart = one[0] >= other[1] or one[1] <= other[0] or one[2] >= other[3] or one[3] <= other[2]
            assert apart, (one, other)
    left, right, top, bottom = boxes[-1]
    page.mouse.click((left + right) / 2, (top + bottom) / 2)
    page.locator("#step-label", has_text="Step 180").or_(
        page.locator("#step-label", has_text="Step 200")
    ).wait_for()
    page.locator("[data-event='64']").click()
    assert "Step 60 " in page.inner_text("#step-label")
    # Every term is explained where it stands, and has a name.
    names = page.locator("details.term summary").all_inner_texts()
    assert len(names) >= 17
    assert all("What is" in name for name in names)
    page.locator("figure details.term summary").first.press("Enter")
    assert "section 4" in page.locator("figure details.term p").first.inner_text()
    # Nothing is left over for a fifth page.
    assert pages(page) == 4
    opened.check_quiet()


def test_runs_beside_each_other_have_maps_outputs_and_a_legend_in_the_chart(
    make_view: MakeView, open_page: Callable[..., Any], tmp_path: Path
) -> None:
    first, other = told(make_view()), told(make_view(seed=1, delay=30))
    other = replace(other, config_yaml=first.config_yaml.replace("k: 2", "k: 3"))
    opened = open_page(save_report([first, other], tmp_path / "both.html"), **DESKTOP)
    page = opened.page
    assert page.locator("[data-maps] .main-svg").count() >= 16
    assert page.locator("#output-maps .chart").count() == 6
    assert page.locator("#panels .legend").first.text_content() == "k 2k 3"
    # Tables call the runs what the charts call them.
    assert page.locator("table.compare").first.locator("th[scope=col]").all_inner_texts()[1:] == [
        "k 2\nmws, seed 0",
        "k 3\nmws, seed 0",
    ]
    scales = page.evaluate(
        "[...document.querySelectorAll('#output-maps .js-plotly-plot')].map(({ data }) => [data[0].zmin, data[0].zmax])"
    )
    assert scales[0] == scales[1]
    assert scales[2] == scales[3]  # the loss, on one scale for both runs
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    opened.check_quiet()


def test_a_long_setting_stays_on_the_printed_page(
    make_view: MakeView, open_page: Callable[..., Any], tmp_path: Path
) -> None:
    """A table wider than the paper has the browser shrink all that is printed."""
    first = told(make_view())
    others = [replace(first, config_yaml=f"{first.config_yaml}\nnote: {letter * 300}\n") for letter in "abc"]
    opened = open_page(save_report(others, tmp_path / "long.html"), viewport={"width": 700, "height": 900})
    opened.page.emulate_media(media="print")
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    opened.check_quiet()
