"""The figure and the page of a series of language-model checkpoints."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mechplateau.views.llm_page import HeadsSection, render_series, save_series
from mechplateau.views.llm_series import plot_series, segments

HOSTILE = (
    "</script><script>window.x=1</script>",
    "<b>",
    "&amp;",
    '"',
    "'",
    "\\",
    "\n",
    "\u2028",
    "🙂",
    " a",
    "",
    "<img src=x onerror=window.x=1>",
    "$x^2$",
)


def series(verdicts: list[str], joined: list[int], steps: list[int | None] | None = None) -> pd.DataFrame:
    """A table with made-up numbers; `joined` lists the rows that are."""
    n = len(verdicts)
    steps = steps if steps is not None else [0, *(2**i for i in range(n - 1))]
    measured = [verdict not in ("missing", "broken", "final") for verdict in verdicts]
    curve = np.where(measured, np.linspace(0.9, 0.2, n), np.nan)
    return pd.DataFrame(
        {
            "step": pd.Series(steps, dtype="Int64"),
            "label": pd.Series(
                [f"step{step}" if step is not None else "main" for step in steps], dtype="string"
            ),
            "verdict": pd.Series(verdicts, dtype="string"),
            "doubtful": [verdict in ("duplicate", "equals_final", "jump") for verdict in verdicts],
            "joined": [i in joined for i in range(n)],
            "note": pd.Series([f"note {i}" for i in range(n)], dtype="string"),
            "hash": pd.Series([f"{i:064x}" if m else None for i, m in enumerate(measured)], dtype="string"),
            "dtype": pd.Series(["float32"] * n, dtype="string"),
            "distance": curve,
            "loss": 8 * curve,
            "repetition": curve,
            "entropy": 1 - curve,
            "cos_final": curve,
            "cos_embed": curve / 2,
            "cos_layer_0": -curve / 4,
        }
    )


FAKE = ["duplicate", "duplicate", "ok", "ok", "equals_final", "missing", "ok", "ok", "broken", "ok"]


def test_lines_go_over_no_doubtful_point_and_no_gap() -> None:
    table = series(FAKE, joined=[3, 7])
    assert segments(table) == [[2, 3], [6, 7], [9]]
    assert segments(series(["ok"] * 4, joined=[1, 2, 3])) == [[0, 1, 2, 3]]


def test_the_figure_draws_just_these_lines() -> None:
    table = series(FAKE, joined=[3, 7])
    figure = plot_series(table)
    panels = figure.axes[:4]
    assert [ax.get_title(loc="left") for ax in panels] == [
        "Collapse of the final hidden states",
        "Repetition frequency",
        "Sequence entropy",
        "Loss on the prompts",
    ]
    for ax, column in zip(panels, ("cos_final", "repetition", "entropy", "loss"), strict=True):
        solid = [line for line in ax.lines if line.get_marker() == "o"]
        drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in solid]
        steps, values = table["step"].to_numpy(float), table[column].to_numpy()
        assert drawn == [([*steps[rows]], [*values[rows]]) for rows in ([2, 3], [6, 7], [9])]
        crosses = [line for line in ax.lines if line.get_marker() == "x"]
        assert [list(line.get_xdata()) for line in crosses] == [[0, 1, 8]]
        dotted = [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == ":"]
        assert dotted == [16, 128]
    image = figure.axes[4].images[0].get_array()
    assert image.shape == (3, 10)
    assert np.array_equal(image.mask[0], table["cos_final"].isna())
    assert image[1, 2] == pytest.approx(-table["cos_final"][2] / 4)
    key = [text.get_text() for text in figure.legends[0].get_texts()]
    assert key == ["doubtful checkpoint", "missing or broken (gray in the map)"]


def test_steps_are_logarithmic_only_where_they_span_much() -> None:
    wide = plot_series(series(["ok"] * 10, joined=list(range(1, 10))))
    narrow = plot_series(series(["ok"] * 3, joined=[1, 2], steps=[1000, 2000, 3000]))
    assert [figure.axes[0].get_xscale() for figure in (wide, narrow)] == ["symlog", "linear"]
    assert not narrow.legends


def test_the_published_weights_are_listed_and_not_drawn() -> None:
    table = series(["ok", "ok", "final"], joined=[1], steps=[0, 1, None])
    assert len(plot_series(table).axes[0].lines[0].get_xdata()) == 2
    assert '<th scope="row">main</th>' in render_series(table, title="t")


def test_many_checkpoints_are_labeled_now_and_then_and_doubtful_ones_marked() -> None:
    n = 154
    verdicts = ["duplicate" if i in (5, 80) else "ok" for i in range(n)]
    ax = plot_series(series(verdicts, joined=[], steps=list(range(n)))).axes[4]
    assert [label.get_text() for label in ax.get_xticklabels()] == [str(i) for i in range(0, n, 4)]
    # A labeled one needs no mark of its own: its label is red.
    assert ax.get_xticks(minor=True).tolist() == [5]
    assert ax.get_xticklabels()[20].get_color() == "#c0281c"
    assert ax.get_xticklabels()[21].get_color() != "#c0281c"


def test_figures_save_whole(tmp_path: Path) -> None:
    figure = plot_series(series(FAKE, joined=[3, 7]))
    for name in ("f.pdf", "f.png", "f.svg"):
        assert figure.save(tmp_path / name).stat().st_size > 5000


def written(html: str) -> str:
    """The page without the scripts that come with it."""
    return re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)


def test_the_page_says_what_is_known_and_shows_undefined_as_a_dash() -> None:
    page = render_series(series(FAKE, joined=[3, 7]), title="a series", summary=["One finding."])
    assert "One finding." in page
    assert page.count('<tr class="no">') == 5
    assert page.count('<tr class="yes">') == 5
    missing = page[page.index('<th scope="row">16</th>') :].split("</tr>")[0]
    assert missing.count("<td>–</td>") == 5
    assert "equals final" in page
    assert page == render_series(series(FAKE, joined=[3, 7]), title="a series", summary=["One finding."])


def test_what_is_not_finite_is_on_no_curve_and_is_told_in_the_table() -> None:
    table = series(["ok", "ok"], joined=[1])
    table.loc[0, "loss"] = np.inf
    nothing = HeadsSection(HEADS[:0], BORN[:0], "On random tokens.")
    page = written(render_series(table, title="broken", heads=nothing))
    assert "<td>inf</td>" in page
    assert '"values":[null,1.6]' in page
    assert "No head puts a fifth" in page


def test_without_measurements_there_is_no_figure() -> None:
    table = series(["ok", "ok"], joined=[])
    table[["cos_final", "cos_embed", "cos_layer_0", "loss", "repetition", "entropy"]] = np.nan
    page = written(render_series(table, title="identities"))
    assert 'id="panels"' not in page
    assert "nan" not in page.lower().replace("dominant", "")


def hostile_page(path: Path) -> Path:
    table = series(["ok", "duplicate", "ok"], joined=[])
    table["note"] = pd.Series([HOSTILE[0], HOSTILE[-2], "fine"], dtype="string")
    examples = {
        label: [(HOSTILE[0], HOSTILE), (HOSTILE[11], HOSTILE)] for label in ("step0", "step1", "step2")
    }
    return save_series(path, table, title=HOSTILE[0], summary=HOSTILE, examples=examples)


def test_no_markup_from_outside_gets_into_the_page(tmp_path: Path) -> None:
    html = hostile_page(tmp_path / "page.html").read_text(encoding="utf-8")
    page = written(html)
    assert html.count("<script") == html.count("</script>") == 3  # the data, plotly's, ours
    assert "<img src=x" not in page
    assert "http://" not in page
    assert "https://" not in page


@pytest.mark.browser
def test_hostile_tokens_are_shown_literally(tmp_path: Path, open_page) -> None:
    opened = open_page(hostile_page(tmp_path / "page.html"))
    opened.check_quiet()
    page = opened.page
    assert page.evaluate("window.x") is None
    assert page.locator("h1").inner_text() == HOSTILE[0]
    rows = page.locator(".completions > div").first.locator("tr")
    assert rows.count() == 3
    cells = rows.first.locator("td").all_inner_texts()
    assert len(cells) == len(HOSTILE)
    assert cells[0] == HOSTILE[0]
    assert cells[1:6] == ["<b>", "&amp;", '"', "'", "\\"]
    assert all(cell.strip() for cell in cells)
    assert opened.colors("#panels .chart") > 20


@pytest.mark.browser
@pytest.mark.parametrize("width", [380, 1280])
def test_the_page_fits_its_window(tmp_path: Path, open_page, width: int) -> None:
    path = save_series(
        tmp_path / "page.html",
        series(FAKE, joined=[3, 7]),
        title="EleutherAI/pythia-14m",
        examples={f"step{step}": [("Why?", ["token"] * 8)] for step in (1, 2, 4)},
    )
    opened = open_page(path, viewport={"width": width, "height": 900})
    opened.check_quiet()
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


HEADS = pd.DataFrame(
    [
        (step, layer, head, name, 0.1 + 0.2 * layer if step else None)
        for step in (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
        for layer in (0, 1)
        for head in (0, 1)
        for name in ("previous_token", "<b>own")
    ],
    columns=["step", "layer", "head", "set", "mass"],
)
BORN = pd.DataFrame(
    [(1, 0, "induction", 4, 0.5, 8, 0.4)], columns=["layer", "head", "set", "born", "most", "most_at", "last"]
)


@pytest.mark.browser
def test_its_charts_are_those_of_the_report(tmp_path: Path, open_page) -> None:
    table = series(FAKE, joined=[3, 7])
    heads = HeadsSection(HEADS, BORN, "On random tokens.")
    path = save_series(tmp_path / "page.html", table, title="a series", summary=["Found."], heads=heads)
    opened = open_page(path, viewport={"width": 1280, "height": 900})
    page = opened.page
    drawn = page.locator("#panels .chart").first.evaluate(
        """(chart) => chart.data.map(({ customdata, y }) => customdata.map((step, row) => [step, y[row]]))"""
    )
    curve, doubtful = drawn
    lines = [[]]
    for step, value in curve:
        if step is None:
            lines.append([])
        else:
            lines[-1].append((step, value))
    steps, cos = table["step"].tolist(), table["cos_final"].tolist()
    wanted = [[(steps[row], pytest.approx(cos[row], rel=1e-5)) for row in line] for line in segments(table)]
    assert lines[:-1] == wanted
    assert [step for step, _ in doubtful] == [0, 1, 8]
    absent = page.locator("#panels .chart").first.evaluate("(chart) => chart.layout.shapes.length")
    assert absent == 2  # one is missing, one broken
    cells = page.locator("#layers .chart").evaluate("(chart) => chart.data[0].z")
    assert cells[1][:2] == pytest.approx((table["cos_layer_0"][:2]).tolist(), rel=1e-6)
    assert [cells[0][row] is None for row in range(10)] == table["cos_embed"].isna().tolist()
    assert page.locator("#heads .panel").count() == 2
    assert "<b>own" in page.inner_text("#heads")
    named = page.locator(".chart[role=img]").evaluate_all("(all) => all.every((one) => one.ariaLabel)")
    assert named
    # The key moves through the page and shows where it is.
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    light = opened.pixels("#layers .chart")
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(400)
    dark = opened.pixels("#layers .chart")
    assert light.mean() > 120 > dark.mean()
    page.emulate_media(color_scheme="light")
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", page.pdf())) == 3
    opened.check_quiet()


def test_tokens_that_are_undefined_are_shown_as_that() -> None:
    page = render_series(
        series(["ok"], joined=[]), title="s", examples={"step0": [("p", ["undefined", None])]}
    )
    assert "<td>undefined</td><td><i>undefined</i></td>" in page


def test_page_and_figure_go_through_links(tmp_path: Path) -> None:
    table = series(["ok"] * 3, joined=[1, 2])
    for name in ("page.html", "figure.svg"):
        link, target = tmp_path / name, tmp_path / f"elsewhere-{name}"
        link.symlink_to(target)
        if name == "page.html":
            save_series(link, table, title="series")
        else:
            plot_series(table).save(link)
        assert link.is_symlink()
        assert target.stat().st_size > 1000
