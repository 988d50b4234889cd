"""Renderer CPU of opening a run's report in headless Chromium: until the first paint, until all is drawn, and at rest.

    python benchmarks/report_paint.py RUN                                  the run's report is written and opened
    python benchmarks/report_paint.py RUN --table results/report_paint.md  the table is written as well

How it is counted is told in `view_pages.py`: all that the renderer processes do, in the median of several openings. An
empty page, opened in turns with the report, shows what any page costs.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from machine import told
from playwright.sync_api import sync_playwright
from view_pages import renderer_seconds, rest

from mechplateau import load_run, save_report

if TYPE_CHECKING:
    from playwright.sync_api import BrowserType, Page

REPEATS = 7
MOST_SECONDS, MOST_BYTES = 1.0, 6_000_000
PAINTED = "performance.getEntriesByName('first-contentful-paint').length > 0"
DRAWN = "[...document.querySelectorAll('.chart')].every((chart) => chart.querySelector('.main-svg'))"


def opening(chromium: BrowserType, executable: str, page: Path) -> tuple[float, float, float]:
    """Renderer CPU in seconds until something is painted, until all charts are drawn, and until the renderers rest."""
    with tempfile.TemporaryDirectory() as profile:
        context = chromium.launch_persistent_context(
            profile,
            executable_path=executable,
            offline=True,
            viewport={"width": 1280, "height": 900},
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        tab, folder = context.pages[0], Path(profile)
        start = rest(tab, folder)
        tab.goto(page.as_uri(), wait_until="commit", timeout=300_000)
        wait(tab, PAINTED)
        painted = renderer_seconds(folder)
        wait(tab, f"document.readyState === 'complete' && {DRAWN}")
        drawn = renderer_seconds(folder)
        rested = rest(tab, folder)
        context.close()
    return painted - start, drawn - start, rested - start


def wait(tab: Page, wanted: str) -> None:
    """Wait until an expression is true. It is asked from outside: the report's content policy forbids eval inside."""
    while not tab.evaluate(wanted):
        tab.wait_for_timeout(20)


def table(rows: dict[str, np.ndarray], size: int, steps: int, checkpoints: int) -> str:
    """The medians as Markdown, with what is wanted."""
    lines = [
        f"Renderer CPU in seconds, median of {REPEATS} openings in headless Chromium: {told()}",
        f"The report of a run of {steps} steps with {checkpoints} checkpoints has {size / 1e6:.2f} MB (wanted: at most "
        f"{MOST_BYTES / 1e6:.0f} MB).",
        "",
        "| page | until the first paint | until all charts are drawn | until at rest | wanted |",
        "|---|---|---|---|---|",
    ]
    for name, (painted, drawn, rested) in rows.items():
        wanted = f"first paint below {MOST_SECONDS:g} s" if name == "report" else ""
        lines.append(f"| {name} | {painted:.2f} | {drawn:.2f} | {rested:.2f} | {wanted} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", help="a finished run")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    asked = parser.parse_args()
    if asked.chromium is None:
        raise SystemExit("no Chromium found: give its path with --chromium")
    run = load_run(asked.run)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        empty = Path(folder) / "empty.html"
        empty.write_text("<!DOCTYPE html><title>empty</title><p>empty", encoding="utf-8")
        report = save_report(run, Path(folder) / "report.html")
        pages = {"empty page": empty, "report": report}
        times: dict[str, list[tuple[float, float, float]]] = {name: [] for name in pages}
        for _ in range(REPEATS):
            for name, page in pages.items():
                times[name].append(opening(playwright.chromium, asked.chromium, page))
        size = report.stat().st_size
    medians = {name: np.median(each, axis=0) for name, each in times.items()}
    text = table(medians, size, run.reached, len(run.steps))
    print(text)
    if asked.table:
        asked.table.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
