"""Attention and token views in a real browser: colors, outlines, undefined cells, tokens, many on one page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mechplateau.views import (
    attention_heads,
    attention_on_target,
    attention_pattern,
    attention_phases,
    gallery,
    tokens_by_accuracy,
    tokens_by_loss,
    tokens_by_value,
)

pytestmark = pytest.mark.browser

Open = Callable[..., Any]
NEGATIVE, POSITIVE, UNDEFINED = (127, 20, 38), (18, 58, 115), (242, 197, 0)


def wait_for(opened: Any, count: int) -> None:
    opened.page.wait_for_selector(f":nth-match([data-mpv=drawn], {count})", state="attached")
    opened.page.wait_for_timeout(300)


def near(found: np.ndarray, wanted: tuple[int, int, int]) -> bool:
    return bool(np.abs(found.astype(int) - wanted).max() <= 6)


@pytest.fixture(scope="module")
def colors_page(open_page: Open, tmp_path_factory: pytest.TempPathFactory) -> Any:
    pattern = np.array([[3.0, 0, 0, 0], [-3.0, 0, 0, 0], [np.nan, 1.5, -1.5, 0], [np.inf, 0, 3.0, 0]])
    omega = np.zeros((4, 4), dtype=bool)
    omega[1, 1] = True
    view = attention_pattern(pattern, ["a", "b", "c", "d"], title="hand", outlines={"Ω": omega})
    opened = open_page(view.save(tmp_path_factory.mktemp("colors") / "view.html"))
    wait_for(opened, 1)
    return opened


def test_cells_have_the_colors_of_their_values(colors_page: Any) -> None:
    pixels = colors_page.pixels(".mpv-stack")
    size = pixels.shape[0] / 4

    def cell(row: int, column: int, right: float = 0.25) -> np.ndarray:
        return pixels[int((row + 0.12) * size), int((column + right) * size)]

    assert near(cell(0, 0), POSITIVE)
    assert near(cell(1, 0), NEGATIVE)
    assert near(cell(1, 1), (255, 255, 255))
    assert near(cell(2, 0), UNDEFINED)
    assert near(cell(3, 0), UNDEFINED)
    assert near(cell(3, 2), POSITIVE)
    assert near(cell(0, 3), (200, 200, 200))
    # Half the limit lies between white and the full color, on the right side of it.
    assert cell(2, 1)[2] > cell(2, 1)[0] + 20
    assert cell(2, 2)[0] > cell(2, 2)[2] + 20
    # The outline of the one cell of Ω runs along its sides, not through it or anywhere else.
    sides = np.flatnonzero((pixels[int(1.5 * size)].astype(int).sum(axis=-1)) < 120)
    assert len(sides) >= 2
    assert {round(place / size) for place in sides} == {1, 2}


def test_legend_and_labels(colors_page: Any) -> None:
    colors_page.check_quiet()
    legend = colors_page.page.inner_text(".mpv-legend")
    for text in ("−3", "3 attention", "undefined (2)", "Ω", "above the diagonal"):
        assert text in legend, text
    assert colors_page.page.locator(".mpv-axis.mpv-x span").all_inner_texts() == ["a", "b", "c", "d"]
    assert colors_page.page.locator(".mpv-axis.mpv-y span").all_inner_texts() == ["a", "b", "c", "d"]
    box = colors_page.page.locator(".mpv-stack").bounding_box()
    colors_page.page.mouse.move(box["x"] + box["width"] * 0.375, box["y"] + box["height"] * 0.625)
    assert colors_page.page.inner_text(".mpv-read") == "query 2 “c” → key 1 “b”: 1.5"
    colors_page.page.mouse.move(box["x"] + 5, box["y"] + box["height"] * 0.625)
    assert colors_page.page.inner_text(".mpv-read").endswith("undefined")


def test_hostile_tokens_are_literal(open_page: Open, hostile: tuple[str, ...], tmp_path: Path) -> None:
    n, script = len(hostile), hostile[0]
    literal = [*hostile[:6], "↵", "⟨U+2028⟩", "🙂", "␣a", "∅", hostile[-1]]
    pattern = np.tril(np.random.default_rng(0).normal(size=(n, n)))
    page = gallery(
        [
            attention_pattern(pattern, hostile, title=script, outlines={script: np.eye(n, dtype=bool)}),
            attention_heads(np.stack([pattern, pattern]), hostile, names=[script, "<i>"]),
            tokens_by_loss(hostile, [None, *np.linspace(0, 2, n - 1)], title=script),
            tokens_by_value([hostile, hostile[::-1]], np.ones((2, n)), label=script),
        ],
        title=script,
    )
    opened = open_page(page.save(tmp_path / "hostile.html"))
    wait_for(opened, 4)
    opened.check_quiet()
    assert opened.page.evaluate("typeof window.x") == "undefined"
    assert opened.page.title().startswith(script)
    assert opened.page.locator("h4").all_text_contents() == [script, script]
    for axis in (".mpv-x", ".mpv-y"):
        assert opened.page.locator(axis).first.locator("span").all_text_contents() == literal
    rows = opened.page.locator(".colored-tokens")
    for row, tokens in zip(range(3), (literal, literal, literal[::-1]), strict=True):
        assert rows.nth(row).locator("> span").all_text_contents() == tokens
    assert opened.page.locator(".mpv-none").count() == 1
    assert opened.page.locator(".mpv-heads button").all_text_contents() == [script, "<i>"]
    # CircuitsVis's own tooltip would show the escaped form: ours is shown instead.
    rows.first.locator("> span").nth(1).hover()
    opened.page.wait_for_timeout(300)
    assert "“<b>”: 0" in opened.page.locator(".mpv-read").nth(2).inner_text()
    assert not opened.page.get_by_text("&lt;b&gt;").first.is_visible()


def test_heads_are_chosen_by_click_and_keyboard(open_page: Open, tmp_path: Path) -> None:
    heads = np.stack([np.tril(np.full((6, 6), value)) for value in (1.0, -1.0)])
    opened = open_page(attention_heads(heads, list("abcdef")).save(tmp_path / "heads.html"))
    wait_for(opened, 1)
    large = "figure:visible .mpv-stack"
    first = opened.pixels(large)
    assert near(first[int(first.shape[0] * 0.55), 8], POSITIVE)
    opened.page.locator(".mpv-heads button").nth(1).focus()
    opened.page.keyboard.press("Enter")
    opened.page.wait_for_timeout(300)
    second = opened.pixels(large)
    assert near(second[int(second.shape[0] * 0.55), 8], NEGATIVE)
    assert opened.page.locator("figure:visible").count() == 1
    opened.check_quiet()


def test_forty_views_on_one_page_are_all_drawn(open_page: Open, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tokens = [str(i) for i in range(12)]
    views = []
    for index in range(10):
        pattern = np.tril(rng.normal(size=(12, 12)))
        views += [
            attention_pattern(pattern, tokens, title=f"pattern {index}"),
            attention_phases({"before": pattern, "during": 2 * pattern, "after": -pattern}, tokens),
            attention_on_target(pattern, np.eye(12, dtype=bool), tokens),
            tokens_by_accuracy(tokens, rng.random(12)),
        ]
    opened = open_page(gallery(views).save(tmp_path / "forty.html"))
    wait_for(opened, 40)
    opened.check_quiet()
    assert opened.page.locator("[data-mpv=drawn]:visible").count() == 40
    blank = opened.page.evaluate(
        """[...document.querySelectorAll("canvas")].filter((canvas) => {
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return new Set(new Uint32Array(data.buffer)).size < 10; }).length"""
    )
    assert opened.page.locator(".mpv-painted").count() == 70
    assert blank == 0
    shades = opened.page.evaluate(
        """new Set([...document.querySelectorAll(".colored-tokens > span > span")].map(
        (span) => span.style.backgroundColor)).size"""
    )
    assert shades > 60


@pytest.fixture(scope="module")
def long_page(open_page: Open, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Three views, each taller than the window, so that two are off the screen."""
    rng = np.random.default_rng(0)
    maps = [np.tril(rng.normal(size=(12, 12))) for _ in range(3)]
    tokens = [str(i) for i in range(12)]
    views = [attention_heads(np.stack([each, -each]), tokens, title=f"{i}") for i, each in enumerate(maps)]
    path = gallery(views).save(tmp_path_factory.mktemp("long") / "long.html")
    opened = open_page(path, viewport={"width": 700, "height": 420})
    wait_for(opened, 3)
    opened.page.locator("figure .mpv-stack").first.locator("canvas").nth(1).wait_for()
    return opened


def colors_at(opened: Any, picture: np.ndarray, stack: str) -> int:
    """How many colors a picture of the whole page has where a map stands."""
    box = opened.page.evaluate(
        "(path) => { const box = document.querySelectorAll(path)[2].getBoundingClientRect();"
        "return [box.top + scrollY, box.left + scrollX, box.width]; }",
        stack,
    )
    top, left, size = (int(number) for number in box)
    return len(np.unique(picture[top : top + size, left : left + size].reshape(-1, 3), axis=0))


def test_what_is_off_the_screen_is_on_pictures_of_the_page_and_on_paper(long_page: Any) -> None:
    import io

    from PIL import Image

    assert long_page.page.locator("figure .mpv-stack").nth(2).locator(".mpv-draw").count() == 0
    picture = np.asarray(Image.open(io.BytesIO(long_page.page.screenshot(full_page=True))).convert("RGB"))
    assert colors_at(long_page, picture, "figure .mpv-stack") > 60
    # Six small maps and two large ones are images; the one on the screen is drawn by CircuitsVis.
    assert long_page.page.pdf(print_background=True).count(b"/Subtype /Image") >= 8


def test_what_is_scrolled_to_is_drawn_by_circuitsvis(long_page: Any) -> None:
    last = long_page.page.locator("figure .mpv-stack").nth(2)
    last.scroll_into_view_if_needed()
    last.locator(".mpv-draw canvas").wait_for()
    long_page.page.wait_for_timeout(300)
    assert long_page.colors("figure >> nth=2 >> .mpv-draw") > 60
    long_page.check_quiet()


def test_painted_maps_have_the_colors_of_circuitsvis(colors_page: Any) -> None:
    drawn = colors_page.pixels(".mpv-stack")
    hidden = colors_page.page.add_style_tag(content=".mpv-draw { visibility: hidden; }")
    painted = colors_page.pixels(".mpv-stack")
    hidden.evaluate("(style) => style.remove()")
    assert colors_page.page.locator(".mpv-painted").count() == 1
    middle = (np.arange(4) + 0.25) * drawn.shape[0] / 4
    cells = np.ix_(middle.astype(int), middle.astype(int))
    assert np.abs(drawn[cells].astype(int) - painted[cells]).max() <= 6
    assert len(np.unique(painted[cells].reshape(-1, 3), axis=0)) >= 5


def test_a_map_without_a_value_says_so(open_page: Open, tmp_path: Path) -> None:
    views = [
        attention_pattern(np.full((3, 3), np.nan), list("abc")),
        attention_phases({"none": np.full((3, 3), np.nan), "some": np.eye(3)}, list("abc")),
        tokens_by_loss(list("abc"), [None] * 3),
    ]
    opened = open_page(gallery(views).save(tmp_path / "undefined.html"))
    wait_for(opened, 3)
    everywhere = "every value is undefined"
    assert opened.page.locator(".mpv-nothing").all_inner_texts() == [everywhere] * 2
    labels = [stack.get_attribute("aria-label") for stack in opened.page.locator(".mpv-stack").all()]
    assert [everywhere in label for label in labels] == [True, True, False]
    # No scale where there is nothing on it.
    legends = opened.page.locator(".mpv-legend").all_inner_texts()
    assert [text.strip() for text in legends[::2]] == [
        f"attention: {everywhere}",
        f"loss (nats): {everywhere}",
    ]
    assert "undefined (9)" in legends[1]
    assert opened.page.locator(".mpv-bar").count() == 1
    opened.check_quiet()


def test_views_draw_as_notebooks_place_them(open_page: Open, tmp_path: Path) -> None:
    import html
    import json

    views = [attention_pattern(np.eye(3), list("abc"), title="one"), tokens_by_loss(list("abc"), [0, 1, 2])]
    # Side by side in one document, each alone in a sandboxed frame, and put in late as JupyterLab does it:
    # set as HTML out of the page, scripts run by hand, then attached.
    late = json.dumps(str(views[0])).replace("<", "\\u003c")
    page = (
        "".join(map(str, views))
        + "".join(
            f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(view._repr_html_())}"></iframe>'
            for view in views
        )
        + f"""<div id="late"></div><script>
        const host = document.createElement("div");
        host.innerHTML = {late};
        for (const old of host.querySelectorAll("script")) {{
          const fresh = document.createElement("script");
          fresh.type = old.type; fresh.className = old.className; fresh.textContent = old.textContent;
          old.replaceWith(fresh);
        }}
        setTimeout(() => document.getElementById("late").append(host), 300);
        </script>"""
    )
    path = tmp_path / "notebook.html"
    path.write_text(page, encoding="utf-8")
    opened = open_page(path)
    wait_for(opened, 3)
    frames = [frame for frame in opened.page.frames if frame is not opened.page.main_frame]
    assert len(frames) == 2
    for frame in frames:
        frame.wait_for_selector("[data-mpv=drawn]", state="attached")
    assert opened.page.locator("#late .mpv-painted").count() == 1
    assert opened.complaints == []
    assert [url for url in opened.requests if url.startswith("http")] == []


def test_phone(open_page: Open, tmp_path: Path) -> None:
    tokens = [f"token_{i}" for i in range(32)]
    views = [
        attention_phases({"a" * 80: np.eye(32), "b": np.eye(32)}, tokens),
        attention_heads(np.stack([np.eye(32)] * 9), tokens),
        tokens_by_accuracy(["word" * 40, *tokens], [0.5] * 33),
    ]
    opened = open_page(
        gallery(views).save(tmp_path / "phone.html"),
        viewport={"width": 360, "height": 740},
        is_mobile=True,
        has_touch=True,
    )
    wait_for(opened, 3)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360
    # Labels stand at their cells though the cells are smaller than letters.
    heights = opened.page.evaluate(
        """[...document.querySelectorAll(".mpv-grid")].map(
        (grid) => grid.children[0].clientHeight - grid.children[1].clientHeight)"""
    )
    assert max(map(abs, heights)) <= 1


def test_a_very_long_sequence_is_drawn(open_page: Open, tmp_path: Path) -> None:
    n = 400
    view = attention_pattern(np.tril(np.ones((n, n))), [str(i) for i in range(n)], title="long")
    opened = open_page(view.save(tmp_path / "long.html"))
    opened.page.locator('[data-mpv="drawn"]').wait_for(timeout=60_000)
    opened.check_quiet()
    assert "from 0 to 1" in opened.page.locator(".mpv-stack").get_attribute("aria-label")
