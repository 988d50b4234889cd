"""Make the pictures of the site, and the page that shows all figures with their verdicts.

make gallery                                        trains what is missing: hours of one core from nothing
python docs/_site/gallery.py --figures figures      only collects the figures that are there

What was trained is kept: rerun an interrupted call to resume it.
"""

from __future__ import annotations

import argparse
import html
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from mechplateau.studies import Figure, Study, make_figure, study_named
from mechplateau.studies.claims import check_all
from mechplateau.studies.making import compared_to, cost
from mechplateau.studies.results import on_record, summaries_of
from mechplateau.studies.training import ensure

DOCS = Path(__file__).parents[1]
PAGE = DOCS / "gallery.md"
PICTURES = DOCS / "pictures"
WIDTH = 900
"""Pixels of a picture at most."""


@dataclass(frozen=True)
class Shelf:
    """The figures of a study that are made.

    Attributes:
        study: its name.
        scale: the scale they are made at.
        ids: which; None: all.
        others: why the others are not made.
    """

    study: str
    scale: str
    ids: tuple[str, ...] | None = None
    others: str = ""

    def figures(self, study: Study) -> list[Figure]:
        """Those that are made, in the study's order."""
        return [one for id, one in study.figures.items() if self.ids is None or id in self.ids]


SHELVES = (
    Shelf("plateau", "small"),
    Shelf("solved", "small"),
    Shelf(
        "matrix",
        "tiny",
        (
            *("1", "2", "T1", "3", "4", "6", "7", "8", "11", "12", "13", "14", "16", "19", "22", "23"),
            *("101", "102", "103", "104", "105", "106"),
        ),
        "They need the scale `small`, or the paper's size and a GPU.",
    ),
    Shelf(
        "stages",
        "paper",
        ("2", "4", "B.1", "C.2", "C.3", "C.4", "induction", "plateau-signs", "attention-lead"),
        "They need a long training, or chains at many checkpoints: an hour and more of one core.",
    ),
    Shelf("development", "paper", (), "They need chains at many checkpoints, which take hours of one core."),
)


def make(shelf: Shelf, figures: Path, runs: Path, jobs: int) -> None:
    """Train what is missing, and draw."""
    study = study_named(shelf.study)
    wanted = shelf.figures(study)
    recipes = dict.fromkeys(name for one in wanted for name in (*one.recipes, *compared_to(study, one)))
    options: dict[str, Any] = {"runs_dir": runs, "jobs": jobs, "threads": 1, "device": "cpu"}
    # All at once, so that jobs are never idle between figures.
    ensure(study.recipes, tuple(recipes), [0], shelf.scale, executor=None, progress="stderr", **options)
    for one in wanted:
        make_figure(study, one, scale=shelf.scale, out=figures, progress="stderr", **options)
        print(f"{study.name}/{one.id}", flush=True)


def collect(figures: Path, shelves: Sequence[Shelf] = SHELVES, pictures: Path = PICTURES) -> str:
    """Shrink the figures into `docs/pictures`, and return the page that shows them."""
    lines = [
        "# Figures",
        "",
        "Every figure that one core makes in minutes, with the verdicts of its claims on these runs, of one seed each.",
        "A claim that fails here is told as such; `mechplateau claims` judges all seeds on record.",
        "",
        "`make gallery` trains the runs, draws the figures and writes this page. One of them:",
        "`mechplateau figure STUDY/ID --scale NAME`.",
    ]
    for shelf in shelves:
        study = study_named(shelf.study)
        lines += ["", f"## {study.title}", ""]
        made = [one for one in shelf.figures(study) if (figures / f"{study.name}-{one.id}.json").is_file()]
        if made:
            lines += [f"Scale: `{shelf.scale}`.", "", '<div class="gallery" markdown="0">']
        for one in made:
            verdict = json.loads((figures / f"{study.name}-{one.id}.json").read_text(encoding="utf-8"))
            picture = pictures / f"{study.name}-{one.id}.webp"
            shrink(figures / f"{study.name}-{one.id}.png", picture)
            lines.append(card(verdict, picture))
        if made:
            lines.append("</div>")
        left = [one for one in study.figures.values() if one not in made]
        if left:
            why = shelf.others or "Their runs were not trained yet; `make gallery` trains them."
            lines += ["", f"Not made here. {why}", "", *not_made(study, left)]
    return "\n".join(lines) + "\n"


def not_made(study: Study, figures: Sequence[Figure]) -> list[str]:
    """A table of these figures: what they cost at the paper's size, and what became of their claims on record."""
    outcomes = check_all(study.claims, summaries_of(on_record(study), "paper"), "paper")
    lines = ["| figure | what | steps at the paper's size | claims on record |", "|---|---|---|---|"]
    for one in figures:
        counts = Counter(outcome.verdict for outcome in outcomes if outcome.claim.figure == one.id)
        told = ", ".join(f"{count} {name}" for name, count in counts.items()) or "no claims"
        lines.append(f"| {study.name}/{one.id} | {one.title} | {cost(study, one, 'paper', [0]):,} | {told} |")
    return lines


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
        for shelf in SHELVES:
            make(shelf, asked.figures, asked.runs, asked.jobs)
    PICTURES.mkdir(exist_ok=True)
    PAGE.write_text(collect(asked.figures), encoding="utf-8")


if __name__ == "__main__":
    main()
