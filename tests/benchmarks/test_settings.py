"""Benchmarks are timed without what the tests check at every call."""

from __future__ import annotations

import configparser
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_benchmarks_are_timed_without_the_shape_checks_of_the_tests():
    tests = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["addopts"]
    assert "--jaxtyping-packages" in tests
    settings = configparser.ConfigParser()
    settings.read(ROOT / "benchmarks" / "pytest.ini")
    assert "jaxtyping" not in settings["pytest"]["addopts"]


def test_a_table_is_written_in_parts():
    from side_by_side import with_part

    page = with_part("Not yet measured.\n", "1 thread", "A, commit 1.\n\n| a |\n")
    page = with_part(page, "2 threads", "B, commit 1.\n\n| b |\n")
    assert page == "<!-- 1 thread -->\nA, commit 1.\n\n| a |\n\n<!-- 2 threads -->\nB, commit 1.\n\n| b |\n"
    again = with_part(page, "1 thread", "A, commit 2.\n\n| c |\n")
    assert again == page.replace("A, commit 1.\n\n| a |", "A, commit 2.\n\n| c |")
