"""Renderer CPU of opening attention views in headless Chromium: an empty page, one map, and a page of 40 views.

The 40 are those of a run: 12 checkpoints with 8 heads each to choose from, and 28 maps. What is counted is all that the
renderer processes of a browser do (user and system time) from the request for the file until every view stands on the
page, and until they rest: CircuitsVis draws over a painted map afterwards. A browser that has just started is busy with
itself for half a second, so each is left to rest first; what a page costs is what it takes above an empty one.

    python benchmarks/view_pages.py [chromium]
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from playwright.sync_api import sync_playwright

from mechplateau.views import attention_heads, attention_pattern, gallery

if TYPE_CHECKING:
    from playwright.sync_api import BrowserType, Page

POSITIONS, HEADS, CHECKPOINTS, MAPS = 32, 8, 12, 28
REPEATS = 5
REST = 0.7
TICKS = os.sysconf("SC_CLK_TCK")


def pages(folder: Path) -> dict[str, tuple[Path, int]]:
    """Name → file and how many views are on it."""
    rng = np.random.default_rng(0)
    tokens = [str(position) for position in range(POSITIONS)]

    def maps(count: int) -> np.ndarray:
        return np.tril(rng.normal(size=(count, POSITIONS, POSITIONS)))

    one = attention_pattern(maps(1)[0], tokens, title="one")
    forty = [attention_heads(maps(HEADS), tokens, title=f"checkpoint {i}") for i in range(CHECKPOINTS)]
    forty += [attention_pattern(each, tokens, title=f"map {i}") for i, each in enumerate(maps(MAPS))]
    empty = folder / "empty.html"
    empty.write_text("<!DOCTYPE html><title>empty</title>", encoding="utf-8")
    return {
        "empty page": (empty, 0),
        "1 view": (one.save(folder / "one.html"), 1),
        f"{len(forty)} views": (gallery(forty).save(folder / "forty.html"), len(forty)),
    }


def renderer_seconds(folder: Path) -> float:
    """CPU time so far of the renderers of the browser whose profile lies in this folder."""
    total = 0
    for process in Path("/proc").iterdir():
        try:
            command = (process / "cmdline").read_bytes().decode(errors="replace")
            if "--type=renderer" in command and _is_child_of(process, folder):
                fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
                total += int(fields[11]) + int(fields[12])
        except OSError:
            continue  # not a process, or one that has ended
    return total / TICKS


def _is_child_of(process: Path, folder: Path) -> bool:
    """Whether the process or one above it was started with this profile."""
    while process.name != "0":
        if f"--user-data-dir={folder}" in (process / "cmdline").read_bytes().decode(errors="replace"):
            return True
        process = Path("/proc") / (process / "stat").read_text().rsplit(")", 1)[1].split()[1]
    return False


def rest(tab: Page, folder: Path) -> float:
    """CPU time of the renderers once they have done nothing (at most a tick) for a while."""
    before = renderer_seconds(folder)
    while True:
        tab.wait_for_timeout(1000 * REST)
        now = renderer_seconds(folder)
        if now - before <= 1.5 / TICKS:
            return now
        before = now


def opening(chromium: BrowserType, executable: str, page: Path, views: int) -> tuple[float, float]:
    """Renderer CPU in seconds until all views stand on the page, and until the renderers rest."""
    with tempfile.TemporaryDirectory() as profile:
        context = chromium.launch_persistent_context(
            profile,
            executable_path=executable,
            offline=True,
            viewport={"width": 1280, "height": 900},
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        tab = context.pages[0]
        before = rest(tab, Path(profile))
        tab.goto(page.as_uri())
        if views:
            tab.wait_for_selector(f":nth-match([data-mpv=drawn], {views})", state="attached", timeout=120_000)
        drawn = renderer_seconds(Path(profile))
        later = rest(tab, Path(profile))
        context.close()
    return drawn - before, later - before


def main() -> None:
    """Print the median of several openings of each page, in turn, and what it is above the empty one."""
    executable = sys.argv[1] if len(sys.argv) > 1 else shutil.which("chromium")
    if executable is None:
        raise SystemExit("no Chromium found: give its path")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        opened = pages(Path(folder))
        times = [
            [opening(playwright.chromium, executable, page, views) for page, views in opened.values()]
            for _ in range(REPEATS)
        ]
    medians = np.median(times, axis=0)
    for name, (drawn, rested) in zip(opened, medians, strict=True):
        above = rested - medians[0, 1]
        print(f"{name:>10}: renderer CPU {drawn:.2f} s until drawn, {rested:.2f} s until at rest", end="")
        print(f", {above:.2f} s above an empty page")


if __name__ == "__main__":
    main()
