"""A run to draw: the curves of the paper's own code, with made-up maps that follow them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest

from mechplateau.views.data import (
    CheckpointView,
    ClaimView,
    PlateauView,
    RunView,
    SampleView,
    TargetView,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CURVES = Path(__file__).parents[1] / "data" / "mws_authors_code_cpu.csv"
N_OUTPUTS, N_INPUT = 16, 32

CONFIG = """\
seed: 0
task:
  name: mws
  n: 16
  k: 2
  p: 17
model:
  d_model: 256
  n_layers: 1
  n_heads: 1
  attention: linear
training:
  steps: 400
  batch: 256
  optimizer: adam
  lr: 0.0001
"""

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
)


def metrics_of(curves: pd.DataFrame) -> pd.DataFrame:
    """The recorded curves under this project's names; row s of the recording is our step s + 1."""
    table = pd.DataFrame({"step": curves["step"] + 1})
    for ours, theirs in {
        "loss": "train_loss",
        "accuracy": "test_accuracy",
        "repetition": "model_repetition",
        "repetition_data": "data_repetition",
        "apm_window": "apm",
        "cos_final": "cos",
    }.items():
        table[ours] = curves[theirs]
    for output in range(N_OUTPUTS):
        table[f"accuracy_out_{output}"] = curves[f"accuracy_y{output}"]
        table[f"cos_out_{output}"] = curves["cos"] * (0.7 + 0.02 * output)
        table[f"loss_out_{output}"] = 2.85 * (1 - curves[f"accuracy_y{output}"])
    table.loc[:, "cos_out_15"] = np.nan  # no later output to compare with
    table["entropy"] = 2.4 - 1.9 * curves["model_repetition"]
    table["entropy_data"] = 2.37
    table["apm_zero_count"] = 0
    return table


def pattern_at(progress: float, rng: np.random.Generator, heads: int = 1) -> np.ndarray:
    """A causal signed map `[head, query, key]` with the share `progress` of its weight on Ω."""
    noise = rng.normal(0, 0.1, (heads, N_INPUT, N_INPUT))
    return np.tril(noise * (1.2 - progress) + 1.7 * progress * omega()[None])


def omega() -> np.ndarray:
    """Ω of moving window sums of two: output row r looks at inputs r − 1 and r."""
    mask = np.zeros((N_INPUT, N_INPUT), dtype=bool)
    for r in range(N_OUTPUTS):
        mask[N_OUTPUTS + r, max(0, r - 1) : r + 1] = True
    return mask


def cosine_at(level: float, rng: np.random.Generator) -> np.ndarray:
    """Cosine similarity of outputs that share `level` of their direction."""
    shared = rng.normal(size=24)
    vectors = np.sqrt(level) * shared + np.sqrt(1 - level) * rng.normal(size=(N_OUTPUTS, 24))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors @ vectors.T


def samples_at(accuracy: float, rng: np.random.Generator, count: int = 6) -> tuple[SampleView, ...]:
    """Moving window sums with each output right with probability `accuracy`, otherwise a repeated token."""
    fixed = np.random.default_rng(5)
    found = []
    for _ in range(count):
        x = fixed.integers(1, 17, N_OUTPUTS)
        y = [int(x[0]), *((x[1:] + x[:-1]) % 17).tolist()]
        guess = [y[0]] + [token if rng.random() < accuracy else int(y[0]) for token in y[1:]]
        found.append(SampleView((*map(str, x), "SEP"), tuple(map(str, y)), tuple(map(str, guess))))
    return tuple(found)


@pytest.fixture(scope="session")
def curves() -> pd.DataFrame:
    return pd.read_csv(CURVES)


@pytest.fixture(scope="session")
def make_view(curves: pd.DataFrame) -> Callable[..., RunView]:
    """Builds a paper-size run view: 400 steps, 21 checkpoints. Any field can be replaced by keyword."""

    def build(*, seed: int = 0, delay: int = 0, **fields: object) -> RunView:
        rng = np.random.default_rng(seed)
        shifted = curves.copy()
        shifted["step"] += delay
        table = metrics_of(shifted)
        checkpoints = []
        for step in range(0, 401, 20):
            row = min(max(step - 1, 0), len(curves) - 1)
            apm, level, accuracy = (float(curves[c].iloc[row]) for c in ("apm", "cos", "test_accuracy"))
            checkpoints.append(
                CheckpointView(
                    step,
                    (pattern_at(apm if step else 0.0, rng),),
                    cosine_at(min(0.98, max(0.0, level)), rng),
                    samples_at(accuracy, rng),
                )
            )
        values: dict[str, object] = {
            "title": "mws, seed 0",
            "config_yaml": CONFIG,
            "metrics": table,
            "plateau": PlateauView(
                True,
                62 + delay,
                191 + delay,
                2.64,
                1.31,
                0.97,
                f"The loss stays near 2.64 from step {62 + delay} to step {165 + delay} and is half-way to 1.31 "
                f"at step {191 + delay}: a stay 3.5 times as long as that fall.",
                before=0,
                during=120,
                after=400,
            ),
            "checkpoints": tuple(checkpoints),
            "targets": (TargetView("window", 0, omega()),),
            "output_rows": tuple(range(N_OUTPUTS, N_INPUT)),
            "claims": (
                ClaimView("The drop comes between steps 130 and 260", "130 – 260", "191", True),
                ClaimView("COS peaks before the drop", "≥ 0.93", "0.974 at step 98", True),
                ClaimView("APM at the end", "≥ 0.65", "0.61", False),
                ClaimView("α₁ reaches 1", "≥ 0.9", "not measured", None),
            ),
            "environment": {"python": "3.11.2", "torch": "2.13.0+cpu", "cpu threads": "2"},
        }
        return RunView(**{**values, **fields})  # type: ignore[arg-type]

    return build


@pytest.fixture(scope="session")
def hostile() -> tuple[str, ...]:
    """Tokens that break careless pages."""
    return HOSTILE


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Headless Chromium. Without it these tests are skipped, but fail where CI=true: there it must be."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        message = (
            "no Chromium on this machine: install Debian's `chromium` package to test pages in a browser"
        )
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page opened from disk without a network, and everything it asked for or complained about."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def check_quiet(self) -> None:
        """No request but for the file itself (data held in the page is no request), no error, no warning."""
        foreign = [url for url in self.requests[1:] if not url.startswith(("data:", "blob:"))]
        assert foreign == []
        assert self.requests[0].startswith("file://")
        assert self.complaints == []

    def colors(self, selector: str) -> int:
        """How many different colors an element's picture has; a blank one has one."""
        return len(np.unique(self.pixels(selector).reshape(-1, 3), axis=0))

    def pixels(self, selector: str) -> np.ndarray:
        """The element as it looks, uint8 `[y, x, 3]`."""
        import io

        from PIL import Image

        shot = self.page.locator(selector).first.screenshot(animations="disabled")
        return np.asarray(Image.open(io.BytesIO(shot)).convert("RGB"))


@pytest.fixture(scope="module")
def open_page(browser: Browser) -> Iterator[Callable[..., Opened]]:
    """Opens a file as a visitor without a network would; keywords go to the browser context."""
    contexts = []

    def open_file(path: Path, **settings: object) -> Opened:
        context = browser.new_context(offline=True, **settings)  # type: ignore[arg-type]
        contexts.append(context)
        opened = Opened(context.new_page())
        page = opened.page
        page.set_default_timeout(180_000)  # of a busy machine nothing is said here
        page.on("request", lambda request: opened.requests.append(request.url))
        page.on(
            "console",
            lambda message: (
                opened.complaints.append(message.text) if message.type in ("error", "warning") else None
            ),
        )
        page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        page.goto(path.as_uri())
        page.wait_for_timeout(300)
        return opened

    yield open_file
    for context in contexts:
        context.close()
