"""The page of figures: every figure of every study is shown, or it is said what it would cost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mechplateau.studies import study_named, study_names

DOCS = Path(__file__).parents[1] / "docs"
LARGEST = 4_000_000
"""Bytes of all pictures."""


@pytest.fixture(scope="module")
def page():
    return (DOCS / "gallery.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("study", study_names())
def test_every_figure_is_shown_or_told(page, study):
    shown = set(re.findall(rf'<figure id="{study}-([^"]+)">', page))
    told = set(re.findall(rf"^\| {study}/(\S+) \|", page, re.MULTILINE))
    assert not shown & told
    assert shown | told == set(study_named(study).figures)


def test_its_pictures_are_there_and_small(page):
    pictures = set(re.findall(r'src="(pictures/[^"]+)"', page))
    assert all((DOCS / picture).is_file() for picture in pictures)
    assert sum(path.stat().st_size for path in (DOCS / "pictures").iterdir()) < LARGEST
