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
