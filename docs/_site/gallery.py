"""Make the pictures of the site, and the page that shows all figures with their verdicts.

make gallery                                        trains what is missing: about half an hour on two cores
python docs/_site/gallery.py --figures figures      only collects the figures that are there
"""

from __future__ import annotations

import argparse
import html
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from PIL import Image

from mechplateau.studies import study_named

DOCS = Path(__file__).parents[1]
PICTURES = DOCS / "pictures"
WIDTH = 900
"""Pixels of a picture at most."""

WANTED = {
    "plateau": ("small", None),
    "matrix": ("tiny", ("1", "2", "T1", "4", "101", "102", "103")),
    "stages": ("paper", ("4", "C.2", "C.3", "C.4", "induction", "plateau-signs")),
}
"""Study → scale, and which figures; None: all. The others need hours or a GPU."""


def make(figures: Path, runs: Path, jobs: int) -> None:
    """Train what is missing, and draw."""
    for study, (scale, ids) in WANTED.items():
        options = ["--scale", scale, "--runs-dir", str(runs), "--out", str(figures), "--jobs", str(jobs)]
        commands = [["reproduce", study]] if ids is None else [["figure", f"{study}/{id}"] for id in ids]
        for command in commands:
            subprocess.run([sys.executable, "-m", "mechplateau", *command, *options], check=True)


def collect(figures: Path) -> str:
    """Shrink the figures into `docs/pictures`, and return the page that shows them."""
    lines = [
        "# Figures",
        "",
        "Every figure that a laptop makes in minutes, with the verdicts of its claims. `make gallery` trains the runs,",
        "draws the figures and writes this page. `mechplateau figure STUDY/ID --scale NAME` makes one of them. A claim",
        "that fails here is told as such.",
    ]
    for study, (scale, ids) in WANTED.items():
        named = study_named(study)
        lines += ["", f"## {named.title}", "", f"Scale: `{scale}`.", "", '<div class="gallery" markdown="0">']
        for id in named.figures if ids is None else ids:
            verdict = json.loads((figures / f"{study}-{id}.json").read_text(encoding="utf-8"))
            picture = PICTURES / f"{study}-{id}.webp"
            shrink(figures / f"{study}-{id}.png", picture)
            lines.append(card(verdict, picture))
        lines.append("</div>")
    return "\n".join(lines) + "\n"


def card(verdict: dict[str, Any], picture: Path) -> str:
    """One figure: picture, title, and what became of its claims."""
    title, claims = html.escape(verdict["title"]), verdict["claims"]
    counts = Counter(claim["verdict"] for claim in claims)
    told = ", ".join(f"{count} {name}" for name, count in counts.items()) or "no claims"
    failed = "".join(
        f"<li>{html.escape(claim['claim'])}: {html.escape(claim['verdict'])}</li>"
        for claim in claims
        if claim["verdict"] != "holds"
    )
    more = f"<ul>{failed}</ul>" if failed else ""
    source = f"pictures/{picture.name}"
    return (
        f'<figure id="{verdict["study"]}-{verdict["figure"]}"><a href="{source}">'
        f'<img src="{source}" alt="{title}" loading="lazy"></a>'
        f"<figcaption><b>{verdict['figure']}</b> {title}<br>{told}{more}</figcaption></figure>"
    )


def shrink(source: Path, target: Path) -> None:
    """A smaller copy, as WebP."""
    with Image.open(source) as image:
        whole = image.convert("RGB")
        whole.thumbnail((WIDTH, 10 * WIDTH))
        whole.save(target, "WEBP", quality=80, method=6)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--figures", type=Path, default=Path("figures"))
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--train", action="store_true", help="train and draw what is missing first")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    if asked.train:
        make(asked.figures, asked.runs, asked.jobs)
    PICTURES.mkdir(exist_ok=True)
    (DOCS / "gallery.md").write_text(collect(asked.figures), encoding="utf-8")


if __name__ == "__main__":
    main()
